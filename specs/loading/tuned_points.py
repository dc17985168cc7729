"""Points of a tuned kernel to build: those that a row of its table uses, and the default.

For each point of the matrix on each target, the row for its exact key on the target's model
applies, else the row for its bucket. If a target has neither rows nor a default, all of its points
are built, as with `--all-points`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from pallasc.errors import Location, SpecError
from pallasc.specs.gpus import MODELS, Target, target_suggestion
from pallasc.specs.loading.tune_fields import table_of
from pallasc.specs.loading.tuned_table import Table, read_table
from pallasc.specs.spec import Spec
from pallasc.specs.spelling import show, suggestion, values_text
from pallasc.specs.templates import Point, Scalar, labels, typed
from pallasc.specs.tuning import Row, Tune, Tuning, bucket_key, key_text, use_text

Tell = Callable[[str], None]
"""Receives a remark."""

_Key = tuple[Scalar, ...]


class _TunedPoint(NamedTuple):
    """A point with what decides whether a row selects it.

    Attributes:
        point: the point.
        labels: its labels.
        key: its key.
        bucket: the key of its bucket, None if there is none.
        use: its tuned parameters.
    """

    point: Point
    labels: dict[str, Scalar]
    key: _Key
    bucket: _Key | None
    use: dict[str, Scalar]

    @classmethod
    def of(cls, tune: Tune, point: Point) -> _TunedPoint:
        own = dict(labels(point))
        key = tuple(own[name] for name in tune.by)
        bucket = bucket_key(key, tune.by, tune.buckets, tune.rounding)
        return cls(point, own, key, bucket, {name: own[name] for name in tune.over})


class TunedPoints:
    """Selects the points of tuned kernels.

    Args:
        specs: all specs of a command.
        all_points: select every point.
        tell: receives a remark if all points are built for lack of rows.
    """

    def __init__(self, specs: Iterable[Spec], *, all_points: bool, tell: Tell) -> None:
        self._tables = Tables(specs, tell)
        self._all_points = all_points
        self._tell = tell

    def chosen(
        self, spec: Spec, tune: Tune, points: list[Point], targets: list[Target]
    ) -> Iterator[tuple[Point, list[tuple[Target, Tuning]]]]:
        """Yield the points of a spec to build, with their targets and tuning data.

        Raises:
            SpecError: the spec's table is wrong, or no point is left.
        """
        known = [_TunedPoint.of(tune, point) for point in points]
        table = self._tables.of(spec, tune)
        all_rows = () if table is None else table.rows
        rows = all_rows
        if not self._tables.is_alone(spec, tune):  # each of these specs has its own models
            names = {target.name for target in targets}
            rows = tuple(row for row in rows if row.gpu in names)
        if rows:
            _check_rows(spec, tune, known, rows)
        models = {row.gpu for row in rows}
        # For these targets, neither rows nor a default select points.
        is_open = [t for t in targets if tune.default is None and t.name not in models]
        everywhere = {t.name for t in (targets if self._all_points else is_open)}
        is_empty = True
        for own, tunings in zip(known, _tunings(tune, all_rows, rows, known, targets), strict=True):
            taken = [
                (target, tuning)
                for target, tuning in zip(targets, tunings, strict=True)
                if target.name in everywhere or tuning.rows or tuning.is_default
            ]
            if taken:
                is_empty = False
                yield own.point, taken
        shown = table_shown(spec, tune)
        if is_empty:
            raise SpecError(
                f"{spec.name}: no row of {shown} fits a point of the matrix, and there is no "
                "default.",
                location=spec.where("tune"),
                hint="Add a default, tune these points, or bundle with --all-points.",
            )
        if is_open and len(points) > 1 and not self._all_points:
            self._tell(
                f"{spec.name}: {shown} has no rows for "
                f"{_listed(target.name for target in is_open)}, and tune has no default: all "
                f"{len(points)} points are built."
            )


def _tunings(
    tune: Tune,
    table: tuple[Row, ...],
    rows: Iterable[Row],
    points: Sequence[_TunedPoint],
    targets: Sequence[Target],
) -> list[list[Tuning]]:
    """Return the tuning data of each point's variants, in the order of the targets.

    Args:
        tune: the spec's `tune` field.
        table: all rows of its table.
        rows: the rows for its models.
        points: all points of the spec.
        targets: its targets.
    """
    usual = Tuning(
        by=tune.by,
        over=tuple(tune.over),
        buckets=tune.buckets,
        rounding=tune.rounding,
        pad=tune.pad,
        table=table,
        default=tune.default,
    )
    known = {(row.gpu, typed(row.key)): row for row in rows}
    selecting = [[_row_of(known, target, own) for target in targets] for own in points]
    sharing = Counter(id(row) for own in selecting for row in own if row is not None)
    default = None if tune.default is None else typed(tune.default)
    return [
        [
            replace(
                usual,
                is_default=typed(own.use) == default,
                rows=() if row is None else (row,),
                sharing=sharing[id(row)],
            )
            for row in chosen
        ]
        for own, chosen in zip(points, selecting, strict=True)
    ]


def _row_of(rows: Mapping[tuple[str, str], Row], target: Target, own: _TunedPoint) -> Row | None:
    """Return the row that selects a point: the row of its key, else of its bucket."""
    if not rows:
        return None
    row = rows.get((target.name, typed(own.key))) or rows.get((target.name, typed(own.bucket)))
    return row if row is not None and typed(row.use) == typed(own.use) else None


def _check_rows(spec: Spec, tune: Tune, points: Sequence[_TunedPoint], rows: Iterable[Row]) -> None:
    """Check that rows are for known models, and for points of the spec.

    Raises:
        SpecError: a row is not.
    """
    values: dict[str, dict[str, Scalar]] = {}
    exact: dict[str, set[str]] = {}
    uses: dict[str, set[str]] = {}
    for own in points:
        for name, value in own.labels.items():
            values.setdefault(name, {})[typed(value)] = value
        exact.setdefault(typed(own.key), set()).add(typed(own.use))
        for group in (own.key, own.bucket):
            uses.setdefault(typed(group), set()).add(typed(own.use))
    for row in rows:
        try:
            _check_values(spec, tune, row, values)
            shown, key = key_text(tune.by, row.key), typed(row.key)
            bucket = bucket_key(row.key, tune.by, tune.buckets, tune.rounding)
            if key not in exact and (tune.pad or typed(bucket) != key):
                hint = "Add the point to the matrix, or remove the row."
                raise SpecError(f"no point has {shown}.", hint=hint)
            if key in uses and typed(row.use) not in uses[key]:
                raise SpecError(
                    f"no point with {shown} has {use_text(row.use)}: 'exclude' drops it.",
                    hint="Remove the row, or what excludes its point.",
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
            f"the row says what to use for {_listed(row.use)}, and {_listed(tune.over)} are tuned.",
            hint="Give each parameter of 'over' a value.",
        )
    keys = zip(tune.by, row.key, strict=True)
    for name, value in (*(own for own in keys if own[0] not in tune.buckets), *row.use.items()):
        if typed(value) not in values[name]:
            raise SpecError(
                f"{show(value)} is not a value of parameter {name!r}.",
                hint=f"Values of {name}: {values_text(values[name].values(), value)}.",
            )


class Tables:
    """The tables that specs name, each read once and checked against the names of kernels.

    Args:
        specs: the specs that may share them.
        tell: receives a remark about rows of unknown kernels.
    """

    def __init__(self, specs: Iterable[Spec], tell: Tell = lambda text: None) -> None:
        self._tell = tell
        self._sharing: dict[str, list[Spec]] = {}
        for spec in specs:
            if spec.tune is not None:
                self._sharing.setdefault(_path(spec, spec.tune), []).append(spec)
        self._read: dict[str, dict[str, Table]] = {}

    def of(self, spec: Spec, tune: Tune) -> Table | None:
        """Return the rows of a kernel, None if its table has none.

        Raises:
            SpecError: the table is wrong, or its parameters differ from the spec's.
        """
        path, shown = _path(spec, tune), table_shown(spec, tune)
        if path not in self._read:
            self._read[path] = read_table(path, shown)
            self._check_names(self._read[path], self._sharing.get(path, [spec]), shown)
        table = self._read[path].get(spec.name)
        if table is not None and table.by != tune.by:
            raise SpecError(
                f"the rows of {spec.name} are by {_listed(table.by)}, and its spec says by "
                f"{_listed(tune.by)}.",
                location=_first_place(table, shown),
                hint=f"The spec is at {spec.where('tune', 'by')}. Write the same in both; rows of "
                "other keys have to be tuned again.",
            )
        return table

    def is_alone(self, spec: Spec, tune: Tune) -> bool:
        """Return True if no other spec has rows under the same name in the same table."""
        sharing = self._sharing.get(_path(spec, tune), ())
        return all(other is spec or other.name != spec.name for other in sharing)

    def _check_names(self, tables: Mapping[str, Table], sharing: list[Spec], shown: str) -> None:
        """Reject rows of unknown kernels, unless they may belong to another spec file."""
        known = {spec.name for spec in sharing}
        others = [name for name in tables if name not in known]
        owner = next((spec for spec in sharing if _is_own(spec)), None)
        if others and owner is not None:
            raise SpecError(
                f"kernel {show(others[0])} is not tuned in {owner.location.file}.",
                location=_first_place(tables[others[0]], shown),
                hint=suggestion(others[0], known, otherwise="Tuned kernels"),
            )
        if others:
            self._tell(f"{shown}: the rows of {_listed(others)} are of no kernel of these specs.")


def table_shown(spec: Spec, tune: Tune) -> str:
    """Return the path of a spec's table for messages."""
    return os.path.join(os.path.dirname(spec.location.file), tune.table)


def _path(spec: Spec, tune: Tune) -> str:
    return os.path.join(spec.base_dir, tune.table)


def _is_own(spec: Spec) -> bool:
    """Return True if a spec uses the default table of its file."""
    return spec.tune is not None and spec.tune.table == table_of(spec.location.file)


def _first_place(table: Table, shown: str) -> Location:
    return (table.rows[0].place if table.rows else None) or Location(shown)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"
