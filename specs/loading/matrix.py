"""Expand specs into variants: every point of the matrix on every target, in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from pallasc.errors import Location, SpecError
from pallasc.specs.arrays import without_layout
from pallasc.specs.fields import Number, PathParts, Place
from pallasc.specs.gpus import Target
from pallasc.specs.loading.batches import check_batch_arrays
from pallasc.specs.loading.budget_fields import LIMITS
from pallasc.specs.loading.filling import Params, Trees
from pallasc.specs.loading.kernel_fields import AXIS_SIZE, DIFFERENCE
from pallasc.specs.loading.limits import check_expansion
from pallasc.specs.loading.parameter_fields import ARGS_KEY, SEED_KEY, TOLERANCE_KEY
from pallasc.specs.loading.points import points_of, source_of
from pallasc.specs.meshes import Mesh, check_devices
from pallasc.specs.parameters import (
    Point,
    choice_of,
    contents,
    label_of,
    labels,
    point_text,
)
from pallasc.specs.spec import Budget, Check, Spec, Tolerance, Variant, sorted_value
from pallasc.specs.spelling import shortened, show, suggestion
from pallasc.specs.targets import resolve_target
from pallasc.specs.templates import Value, parse_template

if TYPE_CHECKING:
    from pallasc.specs.loading.tuned_points import TunedPoints

LONGEST_ID = 2000
"""Characters of an id: as many as an expression may have that chooses it."""

_NO_BUDGET = Budget()


def expand(
    specs: Iterable[Spec],
    *,
    all_points: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> list[Variant]:
    """Return the variants of every spec, in the order of specs, matrix and targets.

    Of a tuned kernel, whose table is read here, these are the points that a row uses and the
    default (`tuned_points`).

    Args:
        specs: the specs.
        all_points: return every point of tuned kernels, too.
        tell: called with a remark where points of a tuned kernel are left out or none is.

    Raises:
        SpecError: there are more than specs may expand to (`limits`); a point, a parameter or a
            target is wrong, nothing is left to compile, or two variants have the same id; or a
            table is wrong.
    """
    specs = list(specs)
    check_expansion(specs)
    tuned = _tuned(specs, all_points=all_points, tell=tell)
    variants: dict[str, Variant] = {}
    for spec in specs:
        for variant in _expanded(spec, tuned):
            identity = variant.id
            other = variants.setdefault(identity, variant)
            if other is not variant:
                raise SpecError(
                    f"two variants have the id {identity}.",
                    location=variant.location,
                    hint=f"The other is declared at {other.location}.",
                )
    made = list(variants.values())
    check_batch_arrays(made)
    return made


def _tuned(
    specs: list[Spec], *, all_points: bool, tell: Callable[[str], None]
) -> TunedPoints | None:
    """Return what chooses points of tuned kernels, None where there are none."""
    if all(spec.tune is None for spec in specs):
        return None
    from pallasc.specs.loading.tuned_points import TunedPoints

    return TunedPoints(specs, all_points=all_points, tell=tell)


def _expanded(spec: Spec, tuned: TunedPoints | None) -> Iterator[Variant]:
    at = Place(_Declared(spec), origin=spec.name)
    points = points_of(spec, at)
    _check_parameters(spec, points[0], at)
    targets = _targets(spec, at)
    filled = _Filled(spec, at)
    if tuned is None or spec.tune is None:
        for point in points:
            yield from filled.variants(point, targets)
        return
    for point, tunings in tuned.chosen(spec, spec.tune, points, targets):
        made = filled.variants(point, [target for target, _ in tunings])
        for variant, (_, tuning) in zip(made, tunings, strict=True):
            yield replace(variant, tuning=tuning)


class _Declared(NamedTuple):
    """Finds the places of a spec's fields."""

    spec: Spec

    def value(self, path: PathParts) -> Location:
        return self.spec.where(*path)

    def key(self, path: PathParts) -> Location:
        return self.spec.where(*path)


def _check_parameters(spec: Spec, point: Point, at: Place) -> None:
    used: set[str] = set()
    for place, text in _texts(spec, at):
        names = parse_template(without_layout(text)).names
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
            raise source_of(spec, name, at).error(
                "this parameter is never used."
                if name in spec.axes or not spec.rows
                else f"parameter {name!r} is never used.",
                f"Use it as {{{name}}}, or remove it.",
            )


def _texts(spec: Spec, at: Place) -> Iterator[tuple[Place, str]]:
    for name in ("args", "static", "tolerance", "budget", "mesh"):
        yield from _texts_in(getattr(spec, name), at.child(name))
    for name in (ARGS_KEY, TOLERANCE_KEY):
        yield from _texts_in(spec.check.get(name), at.child("check").child(name))


def _texts_in(value: Any, at: Place) -> Iterator[tuple[Place, str]]:
    if isinstance(value, str):
        yield at, value
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts_in(item, at.child(index))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts_in(item, at.child(key))


def _targets(spec: Spec, at: Place) -> list[Target]:
    place = at.child("targets")
    if not spec.targets:
        raise at.error(
            "no targets.", "Add targets, such as targets: [sm_90a], or pass --target sm_90a."
        )
    names: dict[str, str] = {}
    targets = []
    for index, name in enumerate(spec.targets):
        where = place.child(index)
        target = resolve_target(name, spec.models, location=where.location)
        first = names.setdefault(target.name, name)
        if first != name:
            raise where.error(f"{first!r} and {name!r} are the same model.", "Remove one of them.")
        targets.append(target)
    return targets


class _Filled:
    """Makes the variants of one spec."""

    def __init__(self, spec: Spec, at: Place) -> None:
        trees = Trees(at, spec.base_dir)
        self._spec = spec
        self._at = at
        self._args = trees.args(spec.args)
        self._static = trees.static(sorted_value(spec.static))
        self._files = tuple(sorted(spec.files))
        self._env = tuple(sorted({*spec.env}))
        own = _check_args(spec, at)
        self._check_args = None if own is None else trees.args(own, ("check", ARGS_KEY))

    def variants(self, point: Point, targets: Iterable[Target]) -> Iterator[Variant]:
        """Yield the variants of a point, which differ in the target alone."""
        spec, at, params = self._spec, self._at, contents(point)
        made = {
            **self._made(point),
            "budget": _budget(spec, params, at.child("budget")) if spec.budget else _NO_BUDGET,
            "check": self._check(point) if spec.check else None,
        }
        for target in targets:
            variant = Variant(
                name=spec.name,
                target=target,
                entry=spec.entry,
                reference=spec.reference,
                files=self._files,
                env=self._env,
                vmap=spec.vmap,
                location=spec.location,
                base_dir=spec.base_dir,
                locations=spec.locations,
                **made,
            )
            if len(variant.id) > LONGEST_ID:
                raise at.error(
                    f"{shortened(variant.id)!r} has {len(variant.id)} characters; an id has at "
                    f"most {LONGEST_ID}.",
                    "Give long values a name: {$name: short, text: …}, used as {parameter.text}.",
                )
            yield variant

    def _made(self, point: Point) -> dict[str, Any]:
        """Return the fields of a point's variants that a check has of its own, too."""
        spec, at, params = self._spec, self._at, contents(point)
        tolerance = _numbers(spec.tolerance, DIFFERENCE, params, at.child("tolerance"))
        return {
            "params": labels(point),
            "args": self._args(params),
            "static": self._static(params),
            "tolerance": Tolerance(**tolerance) if tolerance else None,
            "mesh": _mesh(spec.mesh, params, at.child("mesh")) if spec.mesh else (),
        }

    def _check(self, point: Point) -> Check:
        """Return what is checked in the place of a point's variants."""
        at, given = self._at.child("check"), dict(self._spec.check)
        seed, tolerance = given.pop(SEED_KEY, None), given.pop(TOLERANCE_KEY, None)
        given.pop(ARGS_KEY, None)
        for name in given:
            if name not in point:
                raise at.unknown("parameter", name, list(point))
        small = {**point, **{name: choice_of(v) for name, v in given.items()}}
        try:
            made = self._made(small)
        except SpecError as error:
            sizes = point_text({name: label_of(value) for name, value in given.items()})
            raise at.error(f"with {sizes}: {error.message}", error.hint) from None
        if isinstance(tolerance, dict):
            place = at.child(TOLERANCE_KEY)
            made["tolerance"] = Tolerance(
                **_numbers(tolerance, DIFFERENCE, contents(point), place)  # type: ignore[arg-type]
            )
        if self._check_args is not None:
            own = self._check_args(contents(small))
            made["args"] = {**made["args"], **own} if isinstance(own, dict) else own
        return Check(
            **made,
            seed=seed if isinstance(seed, int) else None,
            names_args=self._check_args is not None,
        )


def _check_args(spec: Spec, at: Place) -> dict[str, Value] | list[Value] | None:
    """Return the arguments of a check, None where it names none.

    Raises:
        SpecError: they are not like those of the kernel.
    """
    own = spec.check.get(ARGS_KEY)
    if own is None:
        return None
    place = at.child("check").child(ARGS_KEY)
    if isinstance(own, dict) and isinstance(spec.args, dict):
        for name in own:
            if name not in spec.args:
                raise place.unknown("argument", name, list(spec.args))
        return own
    if not (isinstance(own, list) and isinstance(spec.args, list)):
        kind = "a mapping, by name" if isinstance(spec.args, dict) else "a list, by position"
        raise place.error(f"the arguments of {spec.name} are {kind}.", "Write those of a check so.")
    if len(own) != len(spec.args):
        raise place.error(
            f"{len(own)} arguments, and {spec.name} takes {len(spec.args)}.", "Give all of them."
        )
    return own


def _budget(spec: Spec, params: Params, at: Place) -> Budget:
    limits = {}
    for name, value in spec.budget.items():
        place = at.child(name)
        limits[name] = LIMITS[name].checked(_filled(value, params, place), place)
    return Budget(**limits)


def _mesh(axes: Mapping[str, int | str], params: Params, at: Place) -> Mesh:
    numbers = _numbers(axes, AXIS_SIZE, params, at)
    sizes = {name: int(size) for name, size in numbers.items()}
    with at.blamed():
        check_devices(sizes)
    return tuple(sizes.items())


def _numbers(
    values: Mapping[str, float | str], kind: Number, params: Params, at: Place
) -> dict[str, int | float]:
    """Return numbers with their templates filled in."""
    return {name: _number(value, kind, params, at.child(name)) for name, value in values.items()}


def _number(value: object, kind: Number, params: Params, at: Place) -> int | float:
    return kind.checked(_filled(value, params, at), at)


def _filled(value: object, params: Params, at: Place) -> object:
    """Return a number, or what its template gives."""
    if not isinstance(value, str):
        return value
    with at.blamed():
        return parse_template(value).fill(params)
