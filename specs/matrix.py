"""Expand specs into variants: every point of the matrix on every target, in a fixed order."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pallasc.errors import Location, SpecError
from pallasc.specs.arrays import looks_like_array, parse_array, resolve_array
from pallasc.specs.fields import Number, PathParts, Place, typed
from pallasc.specs.kernel_fields import (
    AXIS_SIZE,
    BUDGET_FIELDS,
    NODES,
    TOLERANCE_FIELDS,
    is_parameter,
)
from pallasc.specs.meshes import Mesh, check_devices
from pallasc.specs.spec import ArgTree, Budget, Spec, Tolerance, Value, Variant, sorted_value
from pallasc.specs.spelling import plain, show, suggestion
from pallasc.specs.targets import Target, resolve_target
from pallasc.specs.templates import Scalar, parse_template

Point = dict[str, Scalar]
"""One value for each parameter."""

_NO_BUDGET = Budget()


def expand(specs: Iterable[Spec]) -> list[Variant]:
    """Return every variant of every spec, in the order of specs, matrix and targets.

    Raises:
        SpecError: a point, a parameter or a target is wrong, nothing is left to compile, or two
            variants have the same id.
    """
    variants: dict[str, Variant] = {}
    for spec in specs:
        for variant in expand_one(spec):
            other = variants.setdefault(variant.id, variant)
            if other is not variant:
                raise SpecError(
                    f"two variants are called {variant.id}.",
                    location=variant.location,
                    hint=f"The other one is declared at {other.location}.",
                )
    return list(variants.values())


def expand_one(spec: Spec) -> list[Variant]:
    """Return every variant of one spec.

    Raises:
        SpecError: as `expand`.
    """
    at = Place(_Declared(spec), origin=spec.name)
    points = _points(spec, at)
    _check_parameters(spec, points[0], at)
    targets = _targets(spec, at)
    return [_variant(spec, point, target, at) for point in points for target in targets]


@dataclass(frozen=True, slots=True)
class _Declared:
    """Finds the places of a spec's fields."""

    spec: Spec

    def value(self, path: PathParts) -> Location:
        return self.spec.where(*path)

    def key(self, path: PathParts) -> Location:
        return self.spec.where(*path)


def _points(spec: Spec, at: Place) -> list[Point]:
    points = _product(spec.matrix) if spec.matrix or not spec.include else []
    for index, partial in enumerate(spec.exclude):
        _check_exclude(partial, spec, at.child("exclude").child(index))
    points = [p for p in points if not any(_fits(part, p) for part in spec.exclude)]
    names = list(spec.matrix) or list(spec.include[0] if spec.include else ())
    for index, extra in enumerate(spec.include):
        points.append(_included(extra, names, points, at.child("include").child(index)))
    if not points:
        raise at.child("exclude").error("every point is excluded.", "Remove a point from it.")
    return points


def _product(matrix: Mapping[str, tuple[Scalar, ...]]) -> list[Point]:
    return [
        dict(zip(matrix, values, strict=True)) for values in itertools.product(*matrix.values())
    ]


def _fits(part: Point, point: Point) -> bool:
    return all(typed(point[key]) == typed(value) for key, value in part.items())


def _check_exclude(partial: Point, spec: Spec, at: Place) -> None:
    for name, value in partial.items():
        if name not in spec.matrix:
            raise at.unknown("parameter", name, list(spec.matrix))
        if typed(value) not in map(typed, spec.matrix[name]):
            known = [plain(v) for v in spec.matrix[name]]
            raise at.child(name).error(
                f"{show(value)} is no value of parameter {name!r}, so this excludes nothing.",
                suggestion(plain(value), known, otherwise=f"Values of {name!r}"),
            )


def _included(extra: Point, names: list[str], points: list[Point], at: Place) -> Point:
    for name in extra:
        if name not in names:
            raise at.unknown("parameter", name, names)
    for name in names:
        if name not in extra:
            raise at.error(f"parameter {name!r} is missing.", "Give every parameter a value.")
    point = {name: extra[name] for name in names}
    if typed(point) in map(typed, points):
        raise at.error(f"{_listed(point)} is a point already.", "Remove it.")
    return point


def _listed(point: Point) -> str:
    return ", ".join(f"{name}={plain(value)}" for name, value in point.items())


def _check_parameters(spec: Spec, point: Point, at: Place) -> None:
    used: set[str] = set()
    for place, text in _texts(spec, at):
        names = parse_template(text).names
        used.update(names)
        for name in names:
            if name not in point:
                hint = suggestion(name, point, otherwise="Parameters")
                raise place.error(
                    f"unknown parameter {name!r} in {show(text)}.",
                    hint or "Give it values under 'matrix'.",
                )
    for name in point:
        if name not in used:
            field = "matrix" if spec.matrix else "include"
            raise (
                at.child(field)
                .child(name)
                .error("this parameter is never used.", f"Use it as {{{name}}}, or remove it.")
            )


def _texts(spec: Spec, at: Place) -> Iterator[tuple[Place, str]]:
    for name in ("args", "static", "tolerance", "budget", "mesh"):
        yield from _texts_in(getattr(spec, name), at.child(name))


def _texts_in(value: Any, at: Place) -> Iterator[tuple[Place, str]]:
    if isinstance(value, str):
        yield at, value
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts_in(item, at.child(index))
    elif isinstance(value, dict):
        for key, item in value.items():
            if key not in NODES:
                yield from _texts_in(item, at.child(key))


def _targets(spec: Spec, at: Place) -> list[Target]:
    place = at.child("targets")
    if not spec.targets:
        raise at.error("no targets.", "Add targets: [sm_90a], say, or pass --target sm_90a.")
    found: dict[str, str] = {}
    targets = []
    for index, name in enumerate(spec.targets):
        where = place.child(index)
        target = resolve_target(name, spec.models, location=where.location)
        first = found.setdefault(target.name, name)
        if first != name:
            raise where.error(f"{first!r} and {name!r} are the same model.", "Remove one of them.")
        targets.append(target)
    return targets


def _variant(spec: Spec, point: Point, target: Target, at: Place) -> Variant:
    tolerance = budget = {}
    if spec.tolerance:
        tolerance = _numbers(spec.tolerance, TOLERANCE_FIELDS, point, at.child("tolerance"))
    if spec.budget:
        budget = _numbers(spec.budget, BUDGET_FIELDS, point, at.child("budget"))
    return Variant(
        name=spec.name,
        params=tuple(point.items()),
        target=target,
        entry=spec.entry,
        args=_fill_args(spec.args, point, at, ("args",)),
        static=_fill_static(sorted_value(spec.static), point, at, ("static",)),
        reference=spec.reference,
        tolerance=Tolerance(**tolerance) if tolerance else None,
        budget=Budget(**budget) if budget else _NO_BUDGET,
        files=tuple(sorted(spec.files)),
        location=spec.location,
        base_dir=spec.base_dir,
        mesh=_mesh(spec.mesh, point, at.child("mesh")) if spec.mesh else (),
    )


def _mesh(given: Mapping[str, int | str], point: Point, at: Place) -> Mesh:
    sizes = {
        name: int(_number(size, AXIS_SIZE, point, at.child(name))) for name, size in given.items()
    }
    with at.blamed():
        check_devices(sizes)
    return tuple(sizes.items())


# The path is passed, and a place made of it only for an error: there may be 10,000 variants.
def _fill_args(
    value: Value, point: Point, at: Place, path: PathParts, *, in_call: bool = False
) -> Any:
    if isinstance(value, list):
        return [
            _fill_args(item, point, at, (*path, i), in_call=in_call) for i, item in enumerate(value)
        ]
    if isinstance(value, dict):
        if "$ref" in value:
            return _fill_static(value, point, at, path)
        inside = in_call or "$call" in value
        return {
            key: item
            if key == "$call"
            else _fill_args(item, point, at, (*path, key), in_call=inside)
            for key, item in value.items()
        }
    if in_call and not (isinstance(value, str) and _gives_array(value, point)):
        return _fill_static(value, point, at, path)
    if not isinstance(value, str):
        return None
    try:
        return _fill_array(value, point)
    except SpecError as error:
        raise at.below(path).blame(error) from None


def _gives_array(text: str, point: Point) -> bool:
    """Tell whether text among the arguments of a `$call` is an array, once it is filled in."""
    if is_parameter(text):
        filled = point.get(parse_template(text).names[0]) if parse_template(text).names else None
        return isinstance(filled, str) and looks_like_array(filled)
    return looks_like_array(text)


def _fill_array(text: str, point: Point) -> ArgTree:
    if not is_parameter(text):
        return parse_array(text).resolve(point)
    value = parse_template(text).fill(point)
    if value is not None and not isinstance(value, str):
        raise SpecError(f"{text} is {show(value)}, which is no array.")
    return None if value is None else resolve_array(value)


def _fill_static(value: Value, point: Point, at: Place, path: PathParts) -> Any:
    if isinstance(value, list):
        return [_fill_static(item, point, at, (*path, i)) for i, item in enumerate(value)]
    if isinstance(value, dict):
        return {
            key: item if key in NODES else _fill_static(item, point, at, (*path, key))
            for key, item in value.items()
        }
    if not isinstance(value, str):
        return value
    try:
        return parse_template(value).fill(point)
    except SpecError as error:
        raise at.below(path).blame(error) from None


def _numbers(
    given: Mapping[str, Any], fields: Iterable[Any], point: Point, at: Place
) -> dict[str, Any]:
    kinds = {field.name: field.kind for field in fields}
    return {
        name: _number(value, kinds[name], point, at.child(name)) for name, value in given.items()
    }


def _number(value: Any, kind: Number, point: Point, at: Place) -> int | float:
    if isinstance(value, str):
        with at.blamed():
            value = parse_template(value).fill(point)
    return kind.checked(value, at)
