"""Tuned kernels: the `tune` field of specs, rows of tables, and the data in compiled variants.

A kernel is a family of variants: its shapes and dtypes come from the matrix, and `tune.over` adds
parameters that change only its speed. A table row selects values of the tuned parameters for a
**key**, the values of `tune.by`, on one GPU model. A parameter with buckets appears in keys as the
value that names its bucket: a power of two (`pow2`), or one of the edges listed in the spec.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct, convert, to_builtins
from msgspec.structs import asdict, replace

from pallasc.errors import Location
from pallasc.specs.canonical import Natural, Number, Scalar, Value, canonical_text, plain, typed
from pallasc.specs.gpus import MODELS, device_names

Buckets = Literal["pow2"] | tuple[int, ...]
"""Grouping of whole numbers: by powers of two, or by ascending edges."""

How = Literal["row", "bucket", "default"]
"""The way a variant was chosen: by the row of its key, by the row of its bucket, or by default."""


class Measured(Struct, frozen=True):
    """Measurements of a variant.

    Attributes:
        us: median time of a launch, in microseconds.
        spread_percent: interquartile range of the times, in percent of the median.
        rounds: number of measured rounds.
        device: name of the GPU, as reported by its driver.
        driver: version of the driver, `580.95.05`; empty if unknown.
        clock_mhz: median SM clock during the launches, in MHz; None if unknown.
        date: date of the measurement, `2026-11-23`; empty if unknown.
    """

    us: Number
    spread_percent: Number = 0.0
    rounds: Natural = 0
    device: str = ""
    driver: str = ""
    clock_mhz: Natural | None = None
    date: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the known figures."""
        return {name: value for name, value in asdict(self).items() if value or name == "us"}


class Row(Struct, frozen=True):
    """A row of a table: the parameters used for a key on one GPU model.

    Attributes:
        gpu: the model, `h100-sxm`.
        key: a value of each parameter of `by`, in order; for a parameter with buckets, the bucket's
            value or an exact value.
        use: the label of each parameter of `over`.
        artifact: digest of the measured artifact, informational; None if unknown, and in bundles.
        source: origin of a row that `pallasc tune pick` did not write, `tokamax 0.0.17`.
        measured: its figures, None if nothing was measured.
        place: position in its table, None if it is not from one.
    """

    gpu: str
    key: tuple[Scalar, ...]
    use: dict[str, Scalar]
    artifact: str | None = None
    source: str = ""
    measured: Measured | None = None
    place: Location | None = None


class Tune(Struct, frozen=True):
    """The `tune` field of a spec.

    Attributes:
        over: values of each tuned parameter.
        by: parameters of the matrix that decide which values are best.
        buckets: grouping of the values of some of these parameters.
        pad: dimensions in which a variant's arrays may be longer than a call's: for a parameter,
            the padded dimension of each array, by the array's path in the launch plan.
        default: the label of each parameter of `over`, for calls that no row fits; without a
            default, these calls fail.
        table: the file of the rows, relative to the spec's folder.
    """

    over: dict[str, tuple[Value, ...]]
    by: tuple[str, ...]
    buckets: dict[str, Buckets] = {}
    pad: dict[str, dict[str, int]] = {}
    default: dict[str, Scalar] | None = None
    table: str = ""


class Tuning(Struct, frozen=True):
    """Tuning data that a variant carries into a bundle.

    Attributes:
        by, buckets, pad: as in `Tune`.
        over: the tuned parameters.
        is_default: True if the variant is used when no row fits.
        rows: the rows that choose the variant, in table order; their `use` is in its parameters.
        rank: the variant's position among the points of its key, from 1, estimated without a GPU; 0
            in bundles that are not jobs for `pallasc tune run`.
        sharing: number of variants that the variant's row chooses; 0 in bundles.
        table: all rows of the kernel, including those for other models; empty in bundles.
        default: as in `Tune`; None in bundles.
    """

    by: tuple[str, ...]
    over: tuple[str, ...]
    buckets: Mapping[str, Buckets] = {}
    pad: Mapping[str, Mapping[str, int]] = {}
    is_default: bool = False
    rows: tuple[Row, ...] = ()
    rank: int = 0
    sharing: int = 0
    table: tuple[Row, ...] = ()
    default: dict[str, Scalar] | None = None

    def key_of(self, params: Mapping[str, Scalar]) -> tuple[Scalar, ...]:
        """Return the exact key of a point."""
        return tuple(params[name] for name in self.by)

    def to_json(self) -> dict[str, Any]:
        """Return the form used in a bundle's entry, without default values."""
        rows = tuple(map(_row_json, self.rows))
        own = _TuneJson(
            self.by, self.over, self.buckets, self.pad, self.is_default, rows, self.rank
        )
        data: dict[str, Any] = to_builtins(own)
        return data

    @classmethod
    def from_json(cls, value: object, params: Mapping[str, Scalar]) -> "Tuning":
        """Parse the form used in a bundle's entry.

        Args:
            value: the data in the entry.
            params: the variant's parameters.

        Raises:
            ValueError: the data is malformed.
        """
        own = convert(value, _TuneJson)
        if missing := [name for name in (*own.by, *own.over) if name not in params]:
            raise ValueError(f"it has no parameter {missing[0]}")
        for edges in own.buckets.values():
            if isinstance(edges, tuple) and (not edges or list(edges) != sorted(set(edges))):
                raise ValueError(f"{str(edges)[:80]} are not ascending edges")
        use = {name: params[name] for name in own.over}
        rows = tuple(_row_from(row, len(own.by), use) for row in own.rows)
        return cls(own.by, own.over, own.buckets, own.pad, own.default, rows, own.rank)


class _TuneJson(Struct, frozen=True, omit_defaults=True):
    """The form of `Tuning` in a bundle's entry."""

    by: tuple[str, ...]
    over: tuple[str, ...]
    buckets: Mapping[str, Buckets] = {}
    pad: Mapping[str, Mapping[str, Natural]] = {}
    default: bool = False
    rows: tuple[dict[str, Any], ...] = ()
    rank: Natural = 0


class _RowJson(Struct, frozen=True):
    """The form of a row in a bundle's entry, without its figures."""

    gpu: str
    key: tuple[Scalar, ...]
    source: str = ""


def chosen_by(
    tuning: Tuning, params: Mapping[str, Scalar], is_here: Callable[[Row], bool]
) -> tuple[How, Row | None] | None:
    """Return how a variant's rows choose it for a GPU, None if they do not.

    Args:
        tuning: the variant's tuning data.
        params: its parameters.
        is_here: returns True for rows for that GPU.
    """
    # In reverse, so that the first of several rows for a key is used.
    rows = {typed(row.key): row for row in reversed(tuning.rows) if is_here(row)}
    if rows:
        key = tuning.key_of(params)
        if row := rows.get(typed(key)):
            return "row", row
        if row := rows.get(typed(bucket_key(key, tuning.by, tuning.buckets))):
            return "bucket", row
    return ("default", None) if tuning.is_default else None


def is_for(row: Row, names: Collection[str]) -> bool:
    """Return True if a row is for a GPU with one of these names, a driver's or a target's."""
    if row.measured is not None and row.measured.device in names:
        return True
    return not names_of(row.gpu).isdisjoint(names)


def names_of(target: str) -> set[str]:
    """Return all names of a model: its own, and its device's names if known."""
    model = MODELS.get(target)
    return {target} if model is None else {target, *device_names(model.description)}


def check_padding(
    pad: Mapping[str, Mapping[str, int]],
    params: Mapping[str, Scalar],
    shapes: Mapping[str, Sequence[int]],
) -> None:
    """Check the dimensions in which a variant's arrays may be longer than a call's.

    Args:
        pad: as in `Tune`.
        params: the variant's parameters.
        shapes: the shape of each of its arrays, inputs and outputs, by path.

    Raises:
        ValueError: a parameter is not a positive whole number, no array has that path or dimension,
            or an array is padded in two of its dimensions.
    """
    padded: dict[str, str] = {}
    for name, places in pad.items():
        value = params.get(name)
        if type(value) is not int or value < 1:
            raise ValueError(f"pad: {name} must be a positive whole number, not {plain(value)}")
        for path, dimension in places.items():
            shape = shapes.get(path)
            if shape is None or not 0 <= dimension < len(shape):
                known = ", ".join(f"{own}: {len(each)}" for own, each in list(shapes.items())[:8])
                raise ValueError(
                    f"pad: there is no dimension {dimension} of {path} (they count from 0); "
                    f"dimensions of arrays: {known}"
                )
            if (other := padded.setdefault(path, name)) != name:
                raise ValueError(
                    f"pad: {path} is padded for {other} and for {name}; only one dimension of an "
                    "array can be"
                )


def bucket_key(
    key: Sequence[Scalar], by: Sequence[str], buckets: Mapping[str, Buckets]
) -> tuple[Scalar, ...] | None:
    """Return the key of the bucket that contains an exact key, None if there is none."""
    values = [
        bucket(value, buckets[name]) if name in buckets else value
        for name, value in zip(by, key, strict=True)
    ]
    is_outside = any(own is None for own, name in zip(values, by, strict=True) if name in buckets)
    return None if is_outside else tuple(values)


def bucket(value: Scalar, buckets: Buckets) -> int | None:
    """Return the upper end of the bucket that contains a value, None if no bucket does."""
    if type(value) is not int:
        return None
    if isinstance(buckets, str):
        return None if value < 1 else 1 << (value - 1).bit_length()
    place = bisect_left(buckets, value)
    return buckets[place] if place < len(buckets) else None


def key_text(by: Sequence[str], key: Sequence[Scalar]) -> str:
    """Return a key for messages: `m=1024, dtype=bf16`."""
    return ", ".join(f"{name}={plain(value)}" for name, value in zip(by, key, strict=True))


def use_text(use: Mapping[str, Scalar]) -> str:
    """Return the parameters that a row uses for messages: `tile_m=64, stages=4`."""
    return key_text(tuple(use), tuple(use.values()))


def row_order(row: Row) -> tuple[object, ...]:
    """Return the sort key of a row: the model, then its key; numbers come before text."""
    return row.gpu, *scalar_order(*row.key)


def scalar_order(*values: Scalar) -> tuple[tuple[int, Scalar], ...]:
    """Return the sort key of values: null, numbers, text."""
    return tuple((1, v) if isinstance(v, str) else (0, -1 if v is None else v) for v in values)


def tuned_digest_text(tuning: Tuning, rows: Sequence[Row]) -> str:
    """Return the text covered by a tuned kernel's digest in the lock, as canonical JSON.

    It has the spec's `tune` field and the rows. The values of `over` are left out, because they are
    in the ids of variants in the lock.

    Args:
        tuning: tuning data of one of the kernel's variants.
        rows: the rows of its table for one model.
    """
    listed = [
        {**_row_json(row), "use": row.use, "artifact": row.artifact}
        for row in sorted(rows, key=row_order)
    ]
    spec = replace(tuning, is_default=False, rows=(), rank=0).to_json()
    return canonical_text({**spec, "default": tuning.default, "rows": listed})


def _row_json(row: Row) -> dict[str, object]:
    return {
        "gpu": row.gpu,
        "key": list(row.key),
        **({"source": row.source} if row.source else {}),
        **(row.measured.to_json() if row.measured is not None else {}),
    }


def _row_from(value: Mapping[str, Any], length: int, use: dict[str, Scalar]) -> Row:
    own = convert(value, _RowJson)
    if len(own.key) != length:
        raise ValueError(f"the key of a row has {len(own.key)} values, not {length}")
    measured = convert(value, Measured) if "us" in value else None
    return Row(own.gpu, own.key, use, None, own.source, measured)
