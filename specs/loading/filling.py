"""Fill a point's parameters into a spec; parts without parameters are built once and shared."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pallasc.errors import SpecError
from pallasc.specs.arrays import array_tree, looks_like_array, parse_array, resolve_array
from pallasc.specs.entries import check_entry, parse_entry
from pallasc.specs.fields import NODES, PathParts, Place
from pallasc.specs.gpus import Target
from pallasc.specs.loading.schema import (
    ARGS_KEY,
    AXIS_SIZE,
    DIFFERENCE,
    LIMITS,
    SEED_KEY,
    TOLERANCE_KEY,
    is_parameter,
)
from pallasc.specs.spec import (
    Budget,
    Check,
    Spec,
    Tolerance,
    Variant,
    check_devices,
    sorted_value,
)
from pallasc.specs.spelling import shortened, show, suggestion
from pallasc.specs.templates import (
    Point,
    Value,
    choice_of,
    contents,
    is_template,
    label_of,
    labels,
    parse_template,
    point_text,
)

LONGEST_ID = 2000
"""Longest id in characters; expressions that select ids have the same limit."""

_NO_BUDGET = Budget()

Params = Mapping[str, Value]
"""Values of a point as templates see them."""

Fill = Callable[[Params], Any]


class Filler(NamedTuple):
    """A tree to fill in: the same value for all points, or a function of the point."""

    value: Any = None
    fill: Fill | None = None

    def __call__(self, params: Params) -> Any:
        """Return the tree for a point; parts that are equal for all points are shared.

        Raises:
            SpecError: a template cannot be filled in; the error has its location.
        """
        return self.value if self.fill is None else self.fill(params)


class Trees:
    """Builds the fillers of one spec, and notes the parameters that it uses.

    Args:
        at: the place of the spec.
        base_dir: its folder, to look up entry points from templates.
        names: its parameters.

    Attributes:
        used: the parameters that are used.
    """

    def __init__(self, at: Place, base_dir: str, names: Collection[str]) -> None:
        self.used: set[str] = set()
        self._at = at
        self._base_dir = base_dir
        self._names = names
        self._entries: dict[str, str] = {}

    def static(self, tree: Value) -> Filler:
        """Return the filler of the static arguments.

        Raises:
            SpecError: a part without parameters is wrong.
        """
        return self._tree(tree, ("static",), self._static)

    def args(self, tree: Any, path: PathParts, *, in_call: bool = False) -> Filler:
        """Return the filler of the arrays at a path; in a `$call`, other values are kept unchanged.

        Raises:
            SpecError: a part without parameters is wrong.
        """
        if isinstance(tree, list):
            items = enumerate(tree)
            return _joined([self.args(item, (*path, i), in_call=in_call) for i, item in items])
        if isinstance(tree, dict) and "$ref" not in tree:
            inside = in_call or "$call" in tree
            return _keyed({k: self.args(v, (*path, k), in_call=inside) for k, v in tree.items()})
        is_static = isinstance(tree, dict) or (in_call and path[-1] == "$call")
        leaf = self._static if is_static else self._in_call if in_call else self._array
        return self._tree(tree, path, leaf)

    def numbers(self, values: Mapping[str, Any], path: PathParts, kind: Any) -> Filler:
        """Return the filler of a mapping of numbers; `kind(name)` checks the value of a field."""
        fillers = {}
        for name, value in values.items():
            place, checked = self._at.below((*path, name)), kind(name).checked
            with place.blamed():
                fillers[name] = self._number(value, checked, place)
        return _keyed(fillers)

    def _number(self, value: Any, checked: Callable[[Any, Place], Any], place: Place) -> Filler:
        if not isinstance(value, str) or not is_template(value):
            return Filler(value)
        template = parse_template(value)
        self._use(template.names, value)

        def fill(params: Params) -> Any:
            with place.blamed():
                number = template.fill(params)
            return checked(number, place)

        return Filler(fill=fill)

    def _tree(self, tree: Any, path: PathParts, leaf: Callable[[Any, str], Filler]) -> Filler:
        if isinstance(tree, list):
            return _joined([self._tree(item, (*path, i), leaf) for i, item in enumerate(tree)])
        if isinstance(tree, dict):
            return _keyed({k: self._tree(item, (*path, k), leaf) for k, item in tree.items()})
        with self._at.below(path).blamed():
            filler = leaf(tree, str(path[-1]))
        return filler if filler.fill is None else Filler(fill=self._blaming(filler.fill, path))

    def _use(self, names: Iterable[str], text: str) -> None:
        """Note parameters as used; `text` is for the error about an unknown one."""
        for name in names:
            if name not in self._names:
                hint = suggestion(name, self._names, otherwise="Parameters")
                raise SpecError(
                    f"unknown parameter {name!r} in {show(text)}.",
                    hint=hint or "Give it values under 'matrix'.",
                )
            self.used.add(name)

    def _blaming(self, fill: Fill, path: PathParts) -> Fill:
        """Add a place to the errors of a function; the place is built only on error."""

        def blaming(params: Params) -> Any:
            try:
                return fill(params)
            except SpecError as error:
                raise self._at.below(path).blame(error) from None

        return blaming

    def _array(self, text: Any, key: str) -> Filler:
        if not isinstance(text, str):
            return Filler()
        if is_parameter(text):
            template = parse_template(text)
            self._use(template.names, text)
            return Filler(fill=lambda params: _array_tree(template.fill(params), text))
        array = parse_array(text)
        self._use(array.names, text)
        return Filler(fill=array.resolve) if array.names else Filler(array.resolve({}))

    def _in_call(self, value: Any, key: str) -> Filler:
        if isinstance(value, str) and is_parameter(value):
            template = parse_template(value)
            self._use(template.names, value)
            return Filler(fill=lambda params: array_tree(template.fill(params), in_call=True))
        is_array = isinstance(value, str) and looks_like_array(value)
        return self._array(value, key) if is_array else self._static(value, key)

    def _static(self, value: Any, key: str) -> Filler:
        if not isinstance(value, str) or (key in NODES and not is_template(value)):
            return Filler(value)
        template = parse_template(value)
        self._use(template.names, value)
        if key in NODES:
            return Filler(fill=lambda params: self._entry(template.fill(params)))
        if not template.names:
            return Filler(template.fill({}))
        return Filler(fill=lambda params: _sorted(template.fill(params)))

    def _entry(self, text: Value) -> str:
        """Return an entry point from a template after checking that it exists."""
        if not isinstance(text, str):
            raise SpecError(f"{show(text)} is not an entry point.")
        if text not in self._entries:
            try:
                entry = parse_entry(text)
                check_entry(entry, self._base_dir)
            except SpecError as error:
                raise SpecError(f"{text!r}: {error.message}", hint=error.hint) from None
            self._entries[text] = str(entry)
        return self._entries[text]


def _sorted(value: Value) -> Value:
    return sorted_value(value) if isinstance(value, dict | list) else value


def _array_tree(value: Value, text: str) -> Any:
    """Return the array, `None`, or tree of arrays in a parameter's value."""
    if isinstance(value, list):
        return [_array_tree(item, text) for item in value]
    if isinstance(value, dict):
        if "$call" in value or "$ref" in value:
            return array_tree(value, in_call=True)
        return {key: _array_tree(item, text) for key, item in value.items()}
    if value is not None and not isinstance(value, str):
        raise SpecError(f"{text} is {show(value)}, which is not an array.")
    return None if value is None else resolve_array(value)


def _joined(parts: list[Filler]) -> Filler:
    if all(part.fill is None for part in parts):
        return Filler([part.value for part in parts])
    return Filler(fill=lambda params: [part(params) for part in parts])


def _keyed(parts: dict[str, Filler]) -> Filler:
    if all(part.fill is None for part in parts.values()):
        return Filler({key: part.value for key, part in parts.items()})
    return Filler(fill=lambda params: {key: part(params) for key, part in parts.items()})


class Filling:
    """Builds the variants of one spec.

    Args:
        spec: the spec.
        names: its parameters.
        at: its place.

    Attributes:
        used: the parameters that it uses.

    Raises:
        SpecError: it uses an unknown parameter, or a part without parameters is wrong.
    """

    def __init__(self, spec: Spec, names: Collection[str], at: Place) -> None:
        trees = Trees(at, spec.base_dir, names)
        self.used = trees.used
        self._spec = spec
        self._at = at
        self._args = trees.args(spec.args, ("args",))
        self._static = trees.static(sorted_value(spec.static))
        self._tolerance = trees.numbers(spec.tolerance, ("tolerance",), lambda name: DIFFERENCE)
        self._budget = trees.numbers(spec.budget, ("budget",), LIMITS.__getitem__)
        self._mesh = trees.numbers(spec.mesh, ("mesh",), lambda name: AXIS_SIZE)
        self._files = tuple(sorted(spec.files))
        self._env = tuple(sorted({*spec.env}))
        self._check_values = dict(spec.check)
        self._seed: Any = self._check_values.pop(SEED_KEY, None)
        tolerance: Any = self._check_values.pop(TOLERANCE_KEY, None)
        self._check_tolerance = (
            None
            if tolerance is None
            else trees.numbers(tolerance, ("check", TOLERANCE_KEY), lambda name: DIFFERENCE)
        )
        own = _check_args(spec, self._check_values.pop(ARGS_KEY, None), at)
        self._check_args = None if own is None else trees.args(own, ("check", ARGS_KEY))

    def variants(self, point: Point, targets: Iterable[Target]) -> Iterator[Variant]:
        """Yield the variants of a point, one for each target."""
        spec, at, params = self._spec, self._at, contents(point)
        made = {
            **self._made(point),
            "budget": Budget(**self._budget(params)) if spec.budget else _NO_BUDGET,
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
                program=None if spec.program is None else spec.program.on(target.name),
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
        """Return the fields that a variant and its check both have."""
        params = contents(point)
        tolerance, mesh = self._tolerance(params), self._mesh(params)
        if mesh:
            with self._at.child("mesh").blamed():
                check_devices(mesh)
        return {
            "params": labels(point),
            "args": self._args(params),
            "static": self._static(params),
            "tolerance": Tolerance(**tolerance) if tolerance else None,
            "mesh": tuple(mesh.items()),
        }

    def _check(self, point: Point) -> Check:
        """Return the check that runs instead of a point's variants."""
        at, given = self._at.child("check"), self._check_values
        for name in given:
            if name not in point:
                raise at.unknown("parameter", name, list(point))
        small = {**point, **{name: choice_of(v) for name, v in given.items()}}
        try:
            made = self._made(small)
        except SpecError as error:
            sizes = point_text({name: label_of(value) for name, value in given.items()})
            raise at.error(f"with {sizes}: {error.message}", error.hint) from None
        if self._check_tolerance is not None:
            made["tolerance"] = Tolerance(**self._check_tolerance(contents(point)))
        if self._check_args is not None:
            own = self._check_args(contents(small))
            made["args"] = {**made["args"], **own} if isinstance(own, dict) else own
        return Check(**made, seed=self._seed, names_args=self._check_args is not None)


def _check_args(spec: Spec, own: Any, at: Place) -> dict[str, Value] | list[Value] | None:
    """Return the arguments of a check, None if it has none.

    Raises:
        SpecError: they do not match the kernel's arguments.
    """
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
