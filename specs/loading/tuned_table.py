"""Tables of tuned kernels, `*.tuned.yaml`: the variant to use for a key on a GPU model.

The writer emits exactly this form: UTF-8 YAML, schema 1, kernels and rows sorted:

    table    = notes "schema: 1" LF "kernels:" ( " {}" LF | LF { kernel } )
    notes    = { "#" text LF }
    kernel   = "  " scalar ":" LF "    by: " list LF "    rows:" LF { row }
    row      = "      - {gpu: " scalar ", key: " list ", use: {" [ scalar ": " scalar
               { ", " scalar ": " scalar } ] "}" { ", " figure } "}" LF
    list     = "[" [ scalar { ", " scalar } ] "]"
    figure   = "artifact: " digest | "source: " text
             | "us: " number | "spread_percent: " number | "rounds: " n | "device: " text
             | "driver: " text | "clock_mhz: " n | "date: " text, in this order, each once at most
    scalar   = null | true | false | number | plain text of letters, digits and _ . - that YAML
               reads as text | text
    text     = text in double quotes, with YAML escapes for unprintable characters
    digest   = 64 lower-case hexadecimal digits, in double quotes if YAML reads them as a number

* `key` has a value for each parameter of `by`, in order. For a parameter with buckets, the value is
  the bucket's name or an exact value; exact values take precedence
* `use` has the value of each tuned parameter; a list or a mapping is written as its label
  (`specs/canonical.py`)
* `artifact` is informational: the digest of the measured artifact. A build warns if the variants
  that the row selects compile to other artifacts. `source` is the origin of a row that `tune pick`
  did not write
* the figures are the fields of `specs/tuning.Measured`; unknown figures are omitted

Each row is one line, so that changes are small and easy to review. The file has no checksum, since
every merge of two branches would then conflict. The reader accepts any YAML with the same content,
with the same restrictions as specs.

`TunedPoints` selects the points of a tuned kernel to build: those that a row uses, and the default.
For each point of the matrix on each target, the row for its exact key on the target's model
applies, else the row for its bucket. If a target has neither rows nor a default, all of its points
are built, as with `--all-points`.

History:
    1  the first version.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from pallasc.errors import Location, SpecError
from pallasc.specs.canonical import Scalar, plain, typed
from pallasc.specs.fields import (
    PARAMETER,
    SCALAR,
    Field,
    Place,
    list_of,
    map_of,
    number,
    record,
    text,
)
from pallasc.specs.gpus import MODELS, Target, target_suggestion
from pallasc.specs.loading.lock import DIGEST, quoted
from pallasc.specs.loading.schema import table_of
from pallasc.specs.loading.yaml_text import check_merged, decoded, parse_document, reads_as_text
from pallasc.specs.spec import Point, Spec
from pallasc.specs.spelling import show, suggestion, values_text
from pallasc.specs.tuning import (
    Measured,
    Row,
    Tune,
    Tuning,
    bucket_key,
    key_text,
    row_order,
    use_text,
)
from pallasc.specs.user_files import read_regular

TABLE_SCHEMA = 1
NOTES = (
    "# The variants of tuned kernels to use on each GPU; review and commit this file.",
    "# Written by pallasc tune pick; comments are not kept.",
)

_MOST_BYTES = 64 << 20
_MOST_VALUES = 2_000_000
"""Maximum number of values in one table; a row has about twenty."""

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_HINT = "Correct it, or restore the file; pallasc tune pick writes tables."


class Table(NamedTuple):
    """The rows of one kernel.

    Attributes:
        by: the parameters of the keys.
        rows: the rows, each with its position.
    """

    by: tuple[str, ...]
    rows: tuple[Row, ...]


_ANY = text("a name", r"[\s\S]*")
_VALUES = list_of(SCALAR, "values", 0, repeats=True)
_USE = map_of(_ANY, SCALAR, "tuned parameters")
_DATE = text("a date", r"\d{4}-\d{2}-\d{2}", 'Write it like "2026-11-23".')
_ROW = record(
    (
        Field("gpu", text("the name of a model"), "The GPU model, like h100-sxm.", True),
        Field("key", _VALUES, "A value for each parameter of 'by'.", True),
        Field("use", _USE, "The value of each parameter that is tuned.", True),
        Field("artifact", text("a digest of 64 hexadecimal digits", DIGEST), "Measured artifact."),
        Field("source", text("text"), "Origin of the row."),
        Field("us", number(whole=False), "Microseconds."),
        Field("spread_percent", number(whole=False), "Interquartile range."),
        Field("rounds", number(), "Rounds."),
        Field("device", text("text"), "The GPU's name."),
        Field("driver", text("text"), "The driver's version."),
        Field("clock_mhz", number(), "SM clock."),
        Field("date", _DATE, "Date of the measurement."),
    )
)
_KERNEL = record(
    (
        Field("by", list_of(PARAMETER, "parameters", 0), "The parameters of the keys.", True),
        Field("rows", list_of(_ROW, "rows", 0, repeats=True), "The rows.", True),
    )
)
_FILE = record(
    (
        Field("schema", number(), f"Write schema: {TABLE_SCHEMA}.", True),
        Field("kernels", map_of(_ANY, _KERNEL, "kernels", 0), _HINT, True),
    )
)


def read_table(path: str | os.PathLike[str], shown: str | None = None) -> dict[str, Table]:
    """Read the rows of each kernel in a table; there are none if the file does not exist.

    Args:
        path: the file.
        shown: the path to show in messages, by default `path`.

    Raises:
        SpecError: the file cannot be read, is not a table, or has two rows for one key.
    """
    if not os.path.lexists(path):
        return {}
    name = shown or str(path)
    return parse_table(decoded(read_regular(str(path), most_bytes=_MOST_BYTES), name, _HINT), name)


def parse_table(text: str, file: str) -> dict[str, Table]:
    """Parse the rows of each kernel in the text of a table.

    Args:
        text: content of the file.
        file: its name for messages.

    Raises:
        SpecError: the text is not a table, or has two rows for one key.
    """
    advice = "Keep the correct rows of both sides, and remove the markers."
    check_merged(text, file, "table", advice)
    if not text.strip():
        raise SpecError(
            "the table is empty.",
            location=Location(file),
            hint="Restore the file, or remove it: a table is optional.",
        )
    document = parse_document(text, file, most_values=_MOST_VALUES)
    data, at = document.data, Place(document.place)
    if isinstance(data, dict) and (schema := data.get("schema", TABLE_SCHEMA)) != TABLE_SCHEMA:
        raise at.child("schema").error(
            f"the table has schema {show(schema)}, and this pallasc reads schema {TABLE_SCHEMA}.",
            "Install the version of pallasc that wrote it.",
        )
    kernels = _FILE.read(data, at)["kernels"]
    return {name: _table(own, at.below(("kernels", name))) for name, own in kernels.items()}


def _table(fields: Mapping[str, Any], at: Place) -> Table:
    by: tuple[str, ...] = fields["by"]
    rows, seen = [], dict[str, Location]()
    for index, each in enumerate(fields["rows"]):
        place = at.below(("rows", index))
        row = _row(each, by, place)
        first = seen.setdefault(typed((row.gpu, row.key)), place.location)
        if first != place.location:
            raise place.error(
                f"a second row for {row.gpu}, {key_text(by, row.key)}; the first is at {first}.",
                "Remove one of them.",
            )
        rows.append(row)
    return Table(by, tuple(rows))


def _row(fields: Mapping[str, Any], by: Sequence[str], at: Place) -> Row:
    if len(fields["key"]) != len(by):
        raise at.child("key").error(
            f"'key' and 'by' have different lengths: {len(fields['key'])} and {len(by)}.",
            "Give a value for each parameter of 'by', in the same order.",
        )
    figures = {name: own for name, own in fields.items() if name in Measured.__annotations__}
    if figures and "us" not in figures:
        raise at.error("the row has measurements, but no time.", "Add us: <time>.")
    measured = Measured(**{**figures, "us": float(figures["us"])}) if figures else None
    others = {name: own for name, own in fields.items() if name not in figures}
    return Row(**others, measured=measured, place=at.location)


def table_text(tables: Mapping[str, Table]) -> str:
    """Return the text of a table; it does not depend on the order of the rows."""
    lines = [*NOTES, f"schema: {TABLE_SCHEMA}", "kernels:" if tables else "kernels: {}"]
    for name in sorted(tables):
        by, rows = tables[name].by, sorted(tables[name].rows, key=row_order)
        lines += [f"  {_scalar(name)}:", f"    by: {_listed(by)}"]
        lines += ["    rows:" if rows else "    rows: []", *map(_line, rows)]
    return "\n".join([*lines, ""])


def _line(row: Row) -> str:
    use = ", ".join(f"{_scalar(name)}: {_scalar(value)}" for name, value in row.use.items())
    fields = [f"gpu: {_scalar(row.gpu)}", f"key: {_listed(row.key)}", f"use: {{{use}}}"]
    return f"      - {{{', '.join([*fields, *_figures(row)])}}}"


def _figures(row: Row) -> Iterator[str]:
    if row.artifact is not None:
        digest = row.artifact if reads_as_text(row.artifact) else quoted(row.artifact)
        yield f"artifact: {digest}"
    if row.source:
        yield f"source: {quoted(row.source)}"
    for name, value in row.measured.to_json().items() if row.measured is not None else ():
        yield f"{name}: {quoted(value) if isinstance(value, str) else _scalar(value)}"


def _listed(values: Sequence[Scalar]) -> str:
    return f"[{', '.join(map(_scalar, values))}]"


def _scalar(value: object) -> str:
    if isinstance(value, str):
        is_plain = _PLAIN.fullmatch(value) is not None and reads_as_text(value)
        return value if is_plain else quoted(value)
    if isinstance(value, float):
        text = repr(value)  # YAML 1.1 reads 1e-05 as text, and 1.0e-05 as a number
        return text if "." in text else text.replace("e", ".0e")
    return plain(value)


Tell = Callable[[str], None]
"""Called with a remark for the user."""


class _TunedPoint:
    """A point with the values that decide which rows select it, as text made by `typed`.

    Attributes:
        point: the point.
        labels: its labels.
        key: its key.
        bucket: the key of its bucket.
        use: its tuned parameters.
    """

    def __init__(self, tune: Tune, point: Point) -> None:
        self.point = point
        self.labels = {name: choice.label for name, choice in point.items()}
        key = tuple(self.labels[name] for name in tune.by)
        self.key = typed(key)
        self.bucket = typed(bucket_key(key, tune.by, tune.buckets))
        self.use = typed({name: self.labels[name] for name in tune.over})


class TunedPoints:
    """Selects the points of tuned kernels by the tables of their specs; reads each table once.

    Args:
        specs: all specs of a command, which may share tables.
        all_points: select every point.
        tell: receives remarks about rows of unknown kernels, and about missing rows.
    """

    def __init__(
        self, specs: Iterable[Spec], *, all_points: bool = False, tell: Tell = lambda text: None
    ) -> None:
        self._all_points = all_points
        self._tell = tell
        self._sharing: dict[str, list[Spec]] = {}
        for spec in specs:
            if spec.tune is not None:
                self._sharing.setdefault(_path(spec, spec.tune), []).append(spec)
        self._read: dict[str, dict[str, Table]] = {}

    def chosen(
        self, spec: Spec, tune: Tune, points: list[Point], targets: list[Target]
    ) -> list[tuple[Point, list[tuple[Target, Tuning]]]]:
        """Return the points of a spec to build, with their targets and tuning data.

        Raises:
            SpecError: the spec's table is wrong, or no point is left.
        """
        known = [_TunedPoint(tune, point) for point in points]
        rows = self.table(spec, tune).rows
        usual = Tuning(
            tune.by, tuple(tune.over), tune.buckets, tune.pad, table=rows, default=tune.default
        )
        sharing_table = self._sharing.get(_path(spec, tune), [spec])
        if sum(other.name == spec.name for other in sharing_table) > 1:  # each has its own models
            names = {target.name for target in targets}
            rows = tuple(row for row in rows if row.gpu in names)
        _check_rows(spec, tune, known, rows)
        models = {row.gpu for row in rows}
        # For these targets, neither rows nor a default select points.
        is_open = [t for t in targets if tune.default is None and t.name not in models]
        everywhere = {t.name for t in (targets if self._all_points else is_open)}
        by_key = {(row.gpu, typed(row.key)): row for row in rows}
        selecting = [[_row_of(by_key, target, own) for target in targets] for own in known]
        sharing = Counter(id(row) for own in selecting for row in own if row is not None)
        chosen = []
        for own, selected in zip(known, selecting, strict=True):
            is_default = own.use == typed(tune.default)
            here = replace(usual, is_default=is_default)
            taken = [
                (target, replace(here, rows=(row,), sharing=sharing[id(row)]) if row else here)
                for target, row in zip(targets, selected, strict=True)
                if target.name in everywhere or row is not None or is_default
            ]
            if taken:
                chosen.append((own.point, taken))
        shown = table_shown(spec, tune)
        if not chosen:
            raise SpecError(
                f"{spec.name}: no row of {shown} fits a point of the matrix, and there is no "
                "default.",
                location=spec.where("tune"),
                hint="Add a default, tune these points, or bundle with --all-points.",
            )
        if is_open and len(points) > 1 and not self._all_points:
            self._tell(
                f"{spec.name}: {shown} has no rows for "
                f"{_names(target.name for target in is_open)}, and tune has no default: all "
                f"{len(points)} points are built."
            )
        return chosen

    def table(self, spec: Spec, tune: Tune) -> Table:
        """Return the rows of a kernel.

        Raises:
            SpecError: the table is invalid, or has other key parameters than the spec.
        """
        path, shown = _path(spec, tune), table_shown(spec, tune)
        if path not in self._read:
            self._read[path] = read_table(path, shown)
            self._check_names(self._read[path], self._sharing.get(path, [spec]), shown)
        table = self._read[path].get(spec.name, Table(tune.by, ()))
        if table.by != tune.by:
            raise SpecError(
                f"rows of {spec.name} have by: {_names(table.by)}; its spec has by: "
                f"{_names(tune.by)}.",
                location=_first_place(table, shown),
                hint=f"The spec is at {spec.where('tune', 'by')}. Make both equal, or remove "
                "these rows and tune again.",
            )
        return table

    def _check_names(self, tables: Mapping[str, Table], sharing: list[Spec], shown: str) -> None:
        """Reject rows of unknown kernels, unless they may belong to another spec file."""
        known = {spec.name for spec in sharing}
        others = [name for name in tables if name not in known]
        owner = next(
            (s for s in sharing if s.tune and s.tune.table == table_of(s.location.file)), None
        )
        if others and owner is not None:
            raise SpecError(
                f"kernel {show(others[0])} is not tuned in {owner.location.file}.",
                location=_first_place(tables[others[0]], shown),
                hint=suggestion(others[0], known, otherwise="Tuned kernels"),
            )
        if others:
            self._tell(f"{shown} has rows for kernels that these specs lack: {_names(others)}.")


def _row_of(rows: Mapping[tuple[str, str], Row], target: Target, own: _TunedPoint) -> Row | None:
    """Return the row that selects a point: the row of its key, else of its bucket."""
    row = rows.get((target.name, own.key)) or rows.get((target.name, own.bucket))
    return row if row is not None and typed(row.use) == own.use else None


def _check_rows(spec: Spec, tune: Tune, points: Sequence[_TunedPoint], rows: Sequence[Row]) -> None:
    """Check that rows are for known models, and for points of the spec.

    Raises:
        SpecError: a row is for another model or point.
    """
    values: dict[str, dict[str, Scalar]] = {}
    uses: dict[str, set[str]] = {}
    for own in points if rows else ():
        for name, value in own.labels.items():
            values.setdefault(name, {})[typed(value)] = value
        for group in (own.key, own.bucket):
            uses.setdefault(group, set()).add(own.use)
    exact = {own.key for own in points}
    for row in rows:
        try:
            _check_values(spec, tune, row, values)
            shown, key = key_text(tune.by, row.key), typed(row.key)
            bucket = bucket_key(row.key, tune.by, tune.buckets)
            if key not in exact and (tune.pad or typed(bucket) != key):
                hint = "Add the point to the matrix, or remove the row."
                raise SpecError(f"no point has {shown}.", hint=hint)
            if key in uses and typed(row.use) not in uses[key]:
                raise SpecError(
                    f"no point with {shown} has {use_text(row.use)}: 'exclude' removes it.",
                    hint="Remove the row, or change 'exclude'.",
                )
        except SpecError as error:
            message = f"{spec.name}: {error.message}"
            raise SpecError(message, location=row.place, hint=error.hint) from None


def _check_values(
    spec: Spec, tune: Tune, row: Row, values: Mapping[str, Mapping[str, Scalar]]
) -> None:
    """Check that a row is for a known model, and that its values are values of parameters."""
    models = [*MODELS, *spec.models]
    if row.gpu not in models:
        hint = target_suggestion(row.gpu, models, otherwise="Models")
        raise SpecError(f"unknown model {show(row.gpu)}.", hint=hint)
    if row.use.keys() != tune.over.keys():
        raise SpecError(
            f"the row has 'use' for: {_names(row.use)}; tuned parameters: {_names(tune.over)}.",
            hint="Give each parameter of 'over' a value.",
        )
    keys = zip(tune.by, row.key, strict=True)
    for name, value in (*(own for own in keys if own[0] not in tune.buckets), *row.use.items()):
        if typed(value) not in values[name]:
            raise SpecError(
                f"{show(value)} is not a value of parameter {name!r}.",
                hint=f"Values of {name}: {values_text(values[name].values(), value)}.",
            )


def table_shown(spec: Spec, tune: Tune) -> str:
    """Return the path of a spec's table for messages."""
    return os.path.join(os.path.dirname(spec.location.file), tune.table)


def _path(spec: Spec, tune: Tune) -> str:
    return os.path.join(spec.base_dir, tune.table)


def _first_place(table: Table, shown: str) -> Location:
    return (table.rows[0].place if table.rows else None) or Location(shown)


def _names(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"
