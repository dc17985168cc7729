"""The points of a spec: rows and combinations of the matrix, less what is excluded, and more."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from pallasc.errors import SpecError
from pallasc.specs.canonical import plain
from pallasc.specs.fields import Place, typed
from pallasc.specs.loading.limits import MOST_EXCLUDED_SETS
from pallasc.specs.loading.parameter_fields import FILE_KEY
from pallasc.specs.parameters import Choice, Point, choice_of, labels, point_text
from pallasc.specs.spec import Spec
from pallasc.specs.spelling import show, suggestion
from pallasc.specs.templates import Value


def points_of(spec: Spec, at: Place) -> list[Point]:
    """Return every point of a spec: rows slowest, the last parameter fastest, `include` at the end.

    Raises:
        SpecError: a point is wrong or repeated, or none is left.
    """
    axes = _Axes(spec, at)
    _check_rows(spec, axes)
    excluded = _Excluded(spec, axes, at.child("exclude"))
    points = [point for point in axes.product() if point not in excluded]
    if spec.include:
        points.extend(_included(spec, axes, points, at.child("include")))
    if not points:
        raise at.child("exclude").error("every point is excluded.", "Exclude fewer points.")
    return points


class _Axes:
    """The parameters of a spec, and the values that they have.

    Attributes:
        names: the parameters, those of the rows first.
        rows: what each row gives.
        choices: the values of each parameter by what may be written for them.
    """

    def __init__(self, spec: Spec, at: Place) -> None:
        self._spec, self._at = spec, at
        self._known: dict[str, dict[str, Choice]] = {}
        self.rows = [
            {name: self._choice(name, value) for name, value in row.values.items()}
            for row in spec.rows
        ]
        self._matrix = {
            name: [self._choice(name, value) for value in values]
            for name, values in spec.axes.items()
        }
        self._only_included = not spec.rows and not spec.matrix and bool(spec.include)
        self.names = list(self._known)
        if self._only_included:
            tuned = {*spec.axes} - {*spec.matrix}
            self.names = [name for name in spec.include[0] if name not in tuned]
            self.names += [name for name in spec.axes if name not in self.names]

    def _choice(self, name: str, value: Value) -> Choice:
        known = self._known.setdefault(name, {})
        choice = choice_of(value)
        if choice.key not in known:
            known[choice.key] = choice
            if isinstance(choice.content, list | dict):
                other = known.setdefault(typed(choice.label), choice)
                if other is not choice:
                    raise (
                        source_of(self._spec, name, self._at).error(
                            f"two values have the name {choice.label!r}.",
                            "Give each its own $name.",
                        )
                    )
        return known[choice.key]

    def product(self) -> Iterator[Point]:
        """Yield every combination."""
        if self._only_included:
            return
        names = list(self._matrix)
        for row in self.rows or [{}]:
            for values in itertools.product(*self._matrix.values()):
                yield {**row, **dict(zip(names, values, strict=True))}

    def known(self, name: str) -> dict[str, Choice]:
        """Return the values of a parameter by their keys; those with a name by that as well."""
        return self._known.get(name, {})


def _check_rows(spec: Spec, axes: _Axes) -> None:
    """Refuse rows that repeat another row."""
    seen: dict[tuple[str, ...], int] = {}
    for index, row in enumerate(axes.rows):
        first = seen.setdefault(_identity(row, row), index)
        if first != index:
            raise SpecError(
                f"{spec.name}: this row gives {point_text(dict(labels(row)))}, as the one at "
                f"{spec.rows[first].location} does.",
                location=spec.rows[index].location,
                hint="Filter the rows with 'where', or select fields in which they differ.",
            )


class _Excluded:
    """The points that `exclude` drops: looked up by the values of each set of parameters."""

    def __init__(self, spec: Spec, axes: _Axes, at: Place) -> None:
        self._sets: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
        for index, partial in enumerate(spec.exclude):
            names = tuple(sorted(partial))
            key = tuple(_excluded_value(axes, name, partial[name], at, index) for name in names)
            self._sets.setdefault(names, set()).add(key)
            if len(self._sets) > MOST_EXCLUDED_SETS:
                raise at.child(index).error(
                    f"the points here have more than {MOST_EXCLUDED_SETS} different sets of "
                    "parameters.",
                    "Give the points the same parameters.",
                )

    def __contains__(self, point: Point) -> bool:
        return any(_identity(point, names) in keys for names, keys in self._sets.items())


def _excluded_value(axes: _Axes, name: str, value: Value, at: Place, index: int) -> str:
    """Return the key of a value that some point has."""
    place = at.child(index)
    if not axes.known(name):
        raise place.unknown("parameter", name, _known_names(axes))
    choice = axes.known(name).get(typed(value))
    if choice is None:
        known = [plain(choice.label) for choice in axes.known(name).values()]
        shown = choice_of(value).label if isinstance(value, list | dict) else value
        raise place.child(name).error(
            f"{show(shown)} is not a value of parameter {name!r}, so this excludes nothing.",
            suggestion(plain(shown), known, otherwise=f"Values of {name!r}"),
        )
    return choice.key


def _known_names(axes: _Axes) -> list[str]:
    return [name for name in axes.names if axes.known(name)]


def _included(spec: Spec, axes: _Axes, points: list[Point], at: Place) -> Iterator[Point]:
    names = axes.names
    known = set(names)
    seen = {_identity(point, names) for point in points}
    for index, extra in enumerate(spec.include):
        place = at.child(index)
        for name in extra:
            if name not in known:
                raise place.unknown("parameter", name, names)
        for name in names:
            if name not in extra:
                raise place.error(
                    f"parameter {name!r} is missing.", "Give every parameter a value."
                )
        point = {
            name: axes.known(name).get(typed(extra[name])) or choice_of(extra[name])
            for name in names
        }
        identity = _identity(point, names)
        if identity in seen:
            raise place.error(
                f"{point_text(dict(labels(point)))} is already a point.", "Remove it."
            )
        seen.add(identity)
        yield point


def _identity(point: Point, names: Iterable[str]) -> tuple[str, ...]:
    return tuple([point[name].key for name in names])


def source_of(spec: Spec, name: str, at: Place) -> Place:
    """Return the place that gives a parameter."""
    if spec.tune is not None and name in spec.tune.over:
        return at.child("tune").child("over").child(name)
    if name in spec.matrix:
        return at.child("matrix").child(name)
    return at.child("matrix").child(FILE_KEY) if spec.rows else at.child("include").child(name)
