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

from pallasc.errors import Location, SpecError
from pallasc.specs.canonical import plain
from pallasc.specs.gpus import DEFAULT_MODELS, MODELS, Target, target_suggestion
from pallasc.specs.loading.tune_fields import table_of
from pallasc.specs.loading.tuned_table import Table, read_table
from pallasc.specs.spec import Spec
from pallasc.specs.spelling import show, suggestion, values_text
from pallasc.specs.templates import Point, Scalar, labels, typed
from pallasc.specs.tuning import Row, Tune, Tuning, bucket_key, key_text, use_text

Tell = Callable[[str], None]
"""Receives a remark."""

_Key = tuple[Scalar, ...]


class TunedPoints:
    """Selects the points of tuned kernels.

    Args:
        specs: all specs of a command.
        all_points: select every point.
        tell: receives a remark if points are left out, or if all are built for lack of rows.
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
        table = self._tables.of(spec, tune)
        rows = () if table is None else self._rows(spec, tune, points, targets, table)
        models = {row.gpu for row in rows}
        # For these targets, neither rows nor a default select points.
        is_open = [t for t in targets if tune.default is None and t.name not in models]
        everywhere = {t.name for t in (targets if self._all_points else is_open)}
        tunings = _Tunings(tune, () if table is None else table.rows, rows, points, targets)
        left_out: dict[str, dict[str, _Key]] = {target.name: {} for target in targets}
        covered: set[tuple[str, str]] = set()
        for point in points:
            own = dict(labels(point))
            key = tuple(own[name] for name in tune.by)
            taken = []
            for target in targets:
                tuning = tunings.of(own, target)
                if target.name in everywhere or tuning.rows or tuning.is_default:
                    taken.append((target, tuning))
                    covered.add((target.name, typed(key)))
                else:
                    left_out[target.name][typed(key)] = key
            if taken:
                yield point, taken
        if not covered:
            raise SpecError(
                f"{spec.name}: no row of {table_shown(spec, tune)} fits a point of the matrix, and "
                "there is no default.",
                location=spec.where("tune"),
                hint="Add a default, tune these points, or bundle with --all-points.",
            )
        if is_open and len(points) > 1 and not self._all_points:
            self._tell(
                f"{spec.name}: {table_shown(spec, tune)} has no rows for "
                f"{_listed(target.name for target in is_open)}, and tune has no default: all "
                f"{len(points)} points are built."
            )
        for name, keys in left_out.items():
            own_keys = [key for text, key in keys.items() if (name, text) not in covered]
            self._remark_left_out(spec, tune, name, own_keys)

    def _rows(
        self, spec: Spec, tune: Tune, points: list[Point], targets: list[Target], table: Table
    ) -> tuple[Row, ...]:
        """Check and return the rows that apply to a spec."""
        rows = table.rows
        if not self._tables.is_alone(spec, tune):  # each of these specs has its own models
            names = {target.name for target in targets}
            rows = tuple(row for row in rows if row.gpu in names)
        check = _Check(spec, tune, points)
        for row in rows:
            check.model(row)
            check.use(row)
            check.key(row)
        return rows

    def _remark_left_out(self, spec: Spec, tune: Tune, target: str, keys: list[_Key]) -> None:
        """Report the keys of a target for which nothing is built."""
        if keys:
            more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            self._tell(
                f"{spec.name}: nothing is built for {key_text(tune.by, keys[0])}{more} on {target}:"
                f" no row of {table_shown(spec, tune)} fits, and tune has no default."
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


class _Tunings:
    """Tuning data of the variants of one spec.

    Args:
        tune: the spec's `tune` field.
        table: the rows of its table.
        rows: the rows for its models.
        points: all points of the spec.
        targets: its targets.
    """

    def __init__(
        self,
        tune: Tune,
        table: tuple[Row, ...],
        rows: Sequence[Row],
        points: list[Point],
        targets: list[Target],
    ) -> None:
        self._tune = tune
        self._usual = Tuning(
            by=tune.by,
            over=tuple(tune.over),
            buckets=tune.buckets,
            rounding=tune.rounding,
            pad=tune.pad,
            table=table,
            default=tune.default,
        )
        self._rows = {(row.gpu, typed(row.key)): row for row in rows}
        self._known: dict[tuple[int, bool], Tuning] = {}
        chosen = (self._row_of(dict(labels(p)), t) for p in points for t in targets if rows)
        self._sharing = Counter(id(row) for row in chosen if row is not None)

    def of(self, own: Mapping[str, Scalar], target: Target) -> Tuning:
        """Return the tuning data of a point's variant, given the point's labels."""
        default = self._tune.default
        is_default = default is not None and typed(self._use(own)) == typed(default)
        row = self._row_of(own, target)
        kind = (id(row), is_default)
        if kind not in self._known:
            rows = () if row is None else (row,)
            self._known[kind] = replace(
                self._usual, is_default=is_default, rows=rows, sharing=self._sharing[id(row)]
            )
        return self._known[kind]

    def _use(self, own: Mapping[str, Scalar]) -> dict[str, Scalar]:
        return {name: own[name] for name in self._tune.over}

    def _row_of(self, own: Mapping[str, Scalar], target: Target) -> Row | None:
        """Return the row that selects a point: the row of its key, else of its bucket."""
        tune = self._tune
        key = tuple(own[name] for name in tune.by)
        row = self._rows.get((target.name, typed(key)))
        if row is None and self._rows:
            around = bucket_key(key, tune.by, tune.buckets, tune.rounding)
            row = None if around is None else self._rows.get((target.name, typed(around)))
        return row if row is not None and typed(row.use) == typed(self._use(own)) else None


class _Check:
    def __init__(self, spec: Spec, tune: Tune, points: list[Point]) -> None:
        self._spec, self._tune = spec, tune
        self._values: dict[str, dict[str, Scalar]] = {}
        self._points: dict[str, set[str]] = {}
        for point in points:
            own = dict(labels(point))
            for name, value in own.items():
                self._values.setdefault(name, {})[typed(value)] = value
            key = tuple(own[name] for name in self._tune.by)
            use = typed({name: own[name] for name in self._tune.over})
            self._points.setdefault(typed(key), set()).add(use)
            around = self._bucket(key)
            if around is not None:
                self._points.setdefault(f"bucket {typed(around)}", set()).add(use)

    def _bucket(self, key: _Key) -> _Key | None:
        return bucket_key(key, self._tune.by, self._tune.buckets, self._tune.rounding)

    def model(self, row: Row) -> None:
        if row.gpu in MODELS or row.gpu in self._spec.models:
            return
        hint = target_suggestion(row.gpu, [*MODELS, *self._spec.models], otherwise="Models")
        if row.gpu in DEFAULT_MODELS:
            hint = f"A row is for a model: {DEFAULT_MODELS[row.gpu]}."
        raise self._error(row, f"unknown model {show(row.gpu)}.", hint)

    def use(self, row: Row) -> None:
        for name, value in row.use.items():
            if name not in self._tune.over:
                hint = suggestion(name, self._tune.over, otherwise="Tuned parameters")
                raise self._error(row, f"parameter {show(name)} is not tuned.", hint)
            self._known(row, name, value)
        if missing := [name for name in self._tune.over if name not in row.use]:
            message = f"the row does not say which {missing[0]} is used."
            raise self._error(row, message, "Give each parameter of 'over'.")

    def key(self, row: Row) -> None:
        for name, value in zip(self._tune.by, row.key, strict=True):
            if name not in self._tune.buckets:
                self._known(row, name, value)
            elif type(value) is not int:
                message = f"{name} has buckets, and {show(value)} is not a whole number."
                raise self._error(row, message, None)
        shown = key_text(self._tune.by, row.key)
        uses = self._points.get(typed(row.key))
        if uses is None and typed(self._bucket(row.key)) != typed(row.key):
            raise self._error(
                row,
                f"no point has {shown}, and no bucket is named so.",
                "Remove the row, or add the point to the matrix.",
            )
        if uses is None and self._tune.pad:
            raise self._error(
                row,
                f"calls would be padded to {shown}, and no variant has these sizes.",
                "Add the point to the matrix, or remove the row.",
            )
        around = self._points.get(f"bucket {typed(row.key)}", set())
        if (uses or around) and typed(row.use) not in (uses or set()) | around:
            raise self._error(
                row,
                f"no point with {shown} has {use_text(row.use)}: 'exclude' drops it.",
                "Remove the row, or what excludes its point.",
            )

    def _known(self, row: Row, name: str, value: Scalar) -> None:
        values = self._values.get(name, {})
        if typed(value) not in values:
            near = suggestion(plain(value), list(map(plain, values.values())))
            raise self._error(
                row,
                f"{show(value)} is not a value of parameter {name!r}.",
                near or f"Values of {name}: {values_text(values.values(), value)}.",
            )

    def _error(self, row: Row, message: str, hint: str | None) -> SpecError:
        return SpecError(f"{self._spec.name}: {message}", location=row.place, hint=hint)


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
