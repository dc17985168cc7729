"""Expand specs into variants: every point of the matrix on every target, in a fixed order.

`Filling` fills a point's parameters into a spec.

A spec's points are all combinations of a row of its `$file` with values of its matrix. The rows of
a file are a list, or the values of a mapping. In `select`, `$key` is a row's key in that mapping, a
number if it is written as a whole number, and `$value` is the row itself. The content of a file is
data: nothing in it is a template, and none of its keys begins with `$`.

`exclude` removes some of these points; then `include` adds points at the end. The number of points
is checked before any spec is expanded. Counting only adds and multiplies lengths, so it is fast.
"""

from __future__ import annotations

import itertools
import math
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from pallasc.errors import SpecError
from pallasc.specs.arrays import (
    array_tree,
    is_template,
    looks_like_array,
    parse_array,
    parse_template,
)
from pallasc.specs.canonical import NAME, Value, label_of, plain, typed
from pallasc.specs.fields import NODES, PARAMETER, SCALAR, PathParts, Place, tree
from pallasc.specs.gpus import Target, resolve_target
from pallasc.specs.loading.schema import (
    ARGS_KEY,
    AXIS_SIZE,
    DIFFERENCE,
    FILE_KEY,
    LIMITS,
    SEED_KEY,
    is_parameter,
)
from pallasc.specs.loading.yaml_text import Document, read_document
from pallasc.specs.spec import Choice, Point, Spec, Tolerance, Variant, check_devices, plain_args
from pallasc.specs.spelling import did_you_mean, shortened, show, suggestion
from pallasc.specs.user_files import check_entry

if TYPE_CHECKING:
    from pallasc.specs.loading.tuned_table import TunedPoints
    from pallasc.specs.tuning import Tuning

MOST_VARIANTS = 100_000
"""Limit for the variants of all specs."""


def choice_of(value: Value) -> Choice:
    """Return the choice for a value."""
    content = value
    if isinstance(value, dict) and NAME in value:
        content = {key: item for key, item in value.items() if key != NAME}
    return Choice(label_of(value), content, typed(value))


def contents(point: Point) -> dict[str, Value]:
    """Return the values of a point as templates see them."""
    return {name: choice.content for name, choice in point.items()}


def expand(
    specs: Iterable[Spec],
    *,
    all_points: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> list[Variant]:
    """Return the variants of every spec, in the order of specs, matrix, and targets.

    For a tuned kernel, these are the default and the points in its tuning table, which is read here
    (see `TunedPoints`).

    Args:
        specs: the specs.
        all_points: also return the other points of tuned kernels.
        tell: receives a remark if points of a tuned kernel are left out, or if all are built
            because its table has no rows.

    Raises:
        SpecError: there are too many variants; a point, a parameter, a target, or a table is wrong;
            nothing is left to compile; or two variants have the same id.
    """
    specs = list(specs)
    _check_expansion(specs)
    tuned = None
    if any(spec.tune is not None for spec in specs):
        from pallasc.specs.loading.tuned_table import TunedPoints

        tuned = TunedPoints(specs, all_points=all_points, tell=tell)
    variants: dict[str, Variant] = {}
    for spec in specs:
        for variant in _expanded(spec, tuned):
            other = variants.setdefault(variant.id, variant)
            if other is not variant:
                hint = f"The other is declared at {other.location}. Rename or remove one."
                if other.location == variant.location:
                    hint = "A loop, 'include', or the rows of '$file' repeat it; remove one."
                message = f"two variants have the id {variant.id}."
                raise SpecError(message, location=variant.location, hint=hint)
    return list(variants.values())


def _expanded(spec: Spec, tuned: TunedPoints | None) -> Iterator[Variant]:
    at = Place(lambda path, at_key: spec.where(*path), origin=spec.name)
    points, targets = _points_of(spec, at), _targets(spec, at)
    everywhere = [(target, None) for target in targets]
    filled = Filling(spec, at)
    next(filled.variants(points[0], everywhere))
    for name in points[0]:
        if name not in filled.used:
            raise _source_of(spec, name, at).error(
                f"parameter {name!r} is never used.", f"Use it as {{{name}}}, or remove it."
            )
    if tuned is None or spec.tune is None:
        for point in points:
            yield from filled.variants(point, everywhere)
        return
    for point, tunings in tuned.chosen(spec, spec.tune, points, targets):
        yield from filled.variants(point, tunings)


def _targets(spec: Spec, at: Place) -> list[Target]:
    if not spec.targets:
        raise at.error(
            "no targets.", "Add targets, such as targets: [sm_90a], or pass --target sm_90a."
        )
    # All of them exist: loading a spec and replacing its targets check this.
    targets = [resolve_target(name, spec.models) for name in spec.targets]
    return list({target.name: target for target in targets}.values())


def _points_of(spec: Spec, at: Place) -> list[Point]:
    """Return every point of a spec.

    Rows vary slowest and the last parameter fastest; `include` comes last.

    Raises:
        SpecError: a point is wrong, or none is left.
    """
    rows = [{name: choice_of(value) for name, value in row.items()} for row in spec.rows]
    axes = {name: [choice_of(value) for value in values] for name, values in spec.axes.items()}
    known = _known_choices(spec, rows, axes, at)
    excluded = _excluded(spec, known, at.child("exclude"))
    points: list[Point] = []
    if rows or spec.matrix or not spec.include:
        for row in rows or [{}]:
            for values in itertools.product(*axes.values()):
                point = {**row, **dict(zip(axes, values, strict=True))}
                if not any(
                    tuple([point[name].key for name in names]) in keys
                    for names, keys in excluded.items()
                ):
                    points.append(point)
    if spec.include:
        points.extend(_included(spec, known, at.child("include")))
    if not points:
        raise at.child("exclude").error("every point is excluded.", "Exclude fewer points.")
    return points


_Known = Mapping[str, Mapping[str, Choice]]
"""The values of each parameter by their key; a value with a `$name` also by that name."""


def _known_choices(
    spec: Spec, rows: Iterable[Point], axes: Mapping[str, Iterable[Choice]], at: Place
) -> _Known:
    """Return the values in rows and matrix; reject two values with the same name."""
    known: dict[str, dict[str, Choice]] = {}
    pairs = [pair for row in rows for pair in row.items()]
    pairs += [(name, choice) for name, choices in axes.items() for choice in choices]
    for name, choice in pairs:
        choices = known.setdefault(name, {})
        for key in (choice.key, typed(choice.label)):
            if choices.setdefault(key, choice).key != choice.key:
                raise _source_of(spec, name, at).error(
                    f"two values have the name {choice.label!r}.", "Give each its own $name."
                )
    return known


def _excluded(spec: Spec, known: _Known, at: Place) -> dict[tuple[str, ...], set[tuple[str, ...]]]:
    """Return the excluded combinations of value keys, by the names of their parameters."""
    excluded: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for index, partial in enumerate(spec.exclude):
        names, place = tuple(sorted(partial)), at.child(index)
        key = tuple(_excluded_value(known, name, partial[name], place) for name in names)
        excluded.setdefault(names, set()).add(key)
    return excluded


def _excluded_value(known: _Known, name: str, value: Value, at: Place) -> str:
    """Return the key of a value; reject a value that no point has."""
    if name not in known:
        raise at.unknown("parameter", name, known)
    choice = known[name].get(typed(value))
    if choice is None:
        values = [plain(choice.label) for choice in known[name].values()]
        shown = label_of(value)
        raise at.child(name).error(
            f"{show(shown)} is not a value of parameter {name!r}, so this excludes nothing.",
            suggestion(plain(shown), values, otherwise=f"Values of {name!r}"),
        )
    return choice.key


def _included(spec: Spec, known: _Known, at: Place) -> Iterator[Point]:
    names = list(known)
    if not spec.rows and not spec.matrix:  # only `include` defines the parameters
        own = [name for name in spec.include[0] if name not in spec.axes]
        names = [*own, *spec.axes]
    for index, extra in enumerate(spec.include):
        place = at.child(index)
        for name in {**extra, **dict.fromkeys(names)}:
            if name not in names:
                raise place.unknown("parameter", name, names)
            if name not in extra:
                hint = "Give every parameter a value."
                raise place.error(f"parameter {name!r} is missing.", hint)
        yield {
            name: known.get(name, {}).get(typed(extra[name])) or choice_of(extra[name])
            for name in names
        }


def _source_of(spec: Spec, name: str, at: Place) -> Place:
    """Return the place that defines a parameter."""
    if spec.tune is not None and name in spec.tune.over:
        return at.child("tune").child("over").child(name)
    if name in spec.matrix:
        return at.child("matrix").child(name)
    return at.child("matrix").child(FILE_KEY) if spec.rows else at.child("include").child(name)


def _check_expansion(specs: Iterable[Spec]) -> None:
    """Check that specs do not expand to too many variants, including excluded ones."""
    variants = 0
    for spec in specs:
        axes = math.prod(len(values) for values in spec.axes.values())
        points = len(spec.include) + max(1, len(spec.rows)) * axes
        variants += points * max(1, len(spec.targets))
        if variants > MOST_VARIANTS:
            raise SpecError(
                f"{spec.name}: with the earlier specs, {variants} variants exceed the limit of "
                f"{MOST_VARIANTS}.",
                location=spec.where("matrix"),
                hint="Make the matrix smaller.",
            )


LONGEST_ID = 900
"""Longest id in characters; a key of a lock file, in quotes, may have 1024."""

Params = Mapping[str, Value]
"""Values of a point as templates see them."""

Leaf = Callable[[str, PathParts, Params], Any]
"""Fills parameters into a text at a path."""


class Filling:
    """Builds the variants of one spec.

    Args:
        spec: the spec.
        at: the spec's place.

    Attributes:
        used: the parameters that the variants made so far use.

    Raises:
        SpecError: the arguments for checks do not match the kernel's.
    """

    def __init__(self, spec: Spec, at: Place) -> None:
        self.used: set[str] = set()
        self._spec = spec
        self._at = at
        self._entries: dict[str, str] = {}
        self._static = plain_args(spec.static)
        self._files, self._env = tuple(sorted(spec.files)), tuple(sorted({*spec.env}))
        self._small_values = dict(spec.check)
        self._seed: Any = self._small_values.pop(SEED_KEY, None)
        self._check_args = self._small_values.pop(ARGS_KEY, None)
        _check_same_args(spec, self._check_args, at.child("check").child(ARGS_KEY))

    def _fill(self, tree: Any, path: PathParts, leaf: Leaf, params: Params) -> Any:
        """Fill in a tree; errors get the place of the leaf."""
        if isinstance(tree, list):
            return [self._fill(item, (*path, i), leaf, params) for i, item in enumerate(tree)]
        if isinstance(tree, dict):
            leaf = self._in_call if leaf == self._array and "$call" in tree else leaf
            return {key: self._fill(item, (*path, key), leaf, params) for key, item in tree.items()}
        if not isinstance(tree, str):
            return tree
        try:
            return leaf(tree, path, params)
        except SpecError as error:
            raise self._at.below(path).blame(error) from None

    def _value(self, text: str, params: Params) -> Value:
        template = parse_template(text)
        self.used.update(template.names)
        return template.fill(params)

    def _number(self, text: str, path: PathParts, params: Params) -> Any:
        field, name = path[0], str(path[-1])
        others = AXIS_SIZE if field == "mesh" else DIFFERENCE
        kind = LIMITS[name] if field == "budget" else others
        return kind.read(self._value(text, params), self._at.below(path))

    def _array(self, text: str, path: PathParts, params: Params, *, in_call: bool = False) -> Any:
        if is_parameter(text):
            return array_tree(self._value(text, params), in_call=in_call)
        array = parse_array(text)
        self.used.update(array.names)
        return array.resolve(params)

    def _in_call(self, text: str, path: PathParts, params: Params) -> Any:
        if path[-1] not in NODES and (is_parameter(text) or looks_like_array(text)):
            return self._array(text, path, params, in_call=True)
        return self._static_text(text, path, params)

    def _static_text(self, text: str, path: PathParts, params: Params) -> Any:
        if not is_template(text):
            return text
        value = self._value(text, params)
        return self._entry(value) if path[-1] in NODES else plain_args(value)

    def _entry(self, text: Value) -> str:
        """Return an entry point from a template after checking that it exists."""
        if not isinstance(text, str):
            raise SpecError(f"{show(text)} is not an entry point.")
        if text not in self._entries:
            try:
                self._entries[text] = check_entry(text, self._spec.base_dir)
            except SpecError as error:
                raise SpecError(f"{text!r}: {error.message}", hint=error.hint) from None
        return self._entries[text]

    def variants(
        self, point: Point, targets: Sequence[tuple[Target, Tuning | None]]
    ) -> Iterator[Variant]:
        """Yield the variants of a point, one for each target, with its tuning data.

        Raises:
            SpecError: the spec uses an unknown parameter, or cannot be filled in for the point.
        """
        spec = self._spec
        made = self._made(point)
        budget = self._fill(spec.budget, ("budget",), self._number, contents(point))
        check = self._check(point) if spec.check else None
        for target, tuning in targets:
            variant = Variant(
                name=spec.name,
                target=target,
                entry=spec.entry,
                reference=spec.reference,
                files=self._files,
                env=self._env,
                vmap=spec.vmap,
                program=spec.programs.get(target.name),
                location=spec.location,
                base_dir=spec.base_dir,
                places=spec.places,
                tuning=tuning,
                budget=budget,
                **made,
            )
            if len(variant.id) > LONGEST_ID:
                raise self._at.error(
                    f"{shortened(variant.id)!r} has {len(variant.id)} characters; an id has at "
                    f"most {LONGEST_ID}.",
                    "Give long values a name: {$name: short, text: …}, used as {parameter.text}.",
                )
            if check is not None:
                small = replace(variant, budget={}, tuning=None, **check)
                variant = replace(variant, check=small)
            yield variant

    def _made(self, point: Point) -> dict[str, Any]:
        """Return the fields that variants and checks share."""
        spec, params = self._spec, contents(point)
        tolerance = self._fill(spec.tolerance, ("tolerance",), self._number, params)
        mesh = self._fill(spec.mesh, ("mesh",), self._number, params)
        if mesh:
            with self._at.child("mesh").blamed():
                check_devices(mesh)
        return {
            "params": tuple((name, choice.label) for name, choice in point.items()),
            "args": self._fill(spec.args, ("args",), self._array, params),
            "static": self._fill(self._static, ("static",), self._static_text, params),
            "tolerance": Tolerance(**tolerance) if tolerance else None,
            "mesh": tuple(mesh.items()),
        }

    def _check(self, point: Point) -> dict[str, Any]:
        """Return the fields of a point's check variants that differ from its variants."""
        at, given = self._at.child("check"), self._small_values
        at.check_known("parameter", given, point)
        small = {**point, **{name: choice_of(value) for name, value in given.items()}}
        try:
            made = self._made(small)
        except SpecError as error:
            sizes = ", ".join(f"{name}={plain(label_of(value))}" for name, value in given.items())
            raise at.error(f"with {sizes}: {error.message}", error.hint) from None
        path = ("check", ARGS_KEY)
        own = self._fill(self._check_args, path, self._array, contents(small))
        if own is not None:
            made["args"] = {**made["args"], **own} if isinstance(own, dict) else own
        return {**made, "seed": self._seed, "names_args": own is not None}


def _check_same_args(spec: Spec, own: Any, at: Place) -> None:
    """Check that the arguments of a check, if it has any, match the kernel's."""
    if isinstance(own, dict) and isinstance(spec.args, dict):
        at.check_known("argument", own, spec.args)
    elif own is not None and (type(own) is not type(spec.args) or len(own) != len(spec.args)):
        message = f"the arguments do not match the {len(spec.args)} in 'args' of {spec.name}."
        raise at.error(message, "Give all arguments, by name or by position as in 'args'.")


class _FileRow(NamedTuple):
    """A row of a file: its place, its key, and its content."""

    at: Place
    key: Value
    content: Any


_SUFFIXES = (".json", ".yaml", ".yml")
_WHOLE_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,17}")
_DATA = tree(SCALAR, nodes=())
"""A value in a row, in which nothing is a node."""


def read_rows(
    table: Mapping[str, Any], at: Place, documents: dict[str, Document]
) -> tuple[dict[str, Value], ...]:
    """Return the rows that `$file` selects, in the order of the file.

    Args:
        table: the value of `$file`.
        at: the place of `$file`.
        documents: files that were already read, by path; the file is added.

    Raises:
        SpecError: the file is missing or malformed, or lacks the requested data.
    """
    name = table["path"]
    if posixpath.splitext(name)[1] not in _SUFFIXES:
        hint = f"Data files end in {', '.join(_SUFFIXES)}."
        raise at.child("path").error(f"{show(name)} is not a data file.", hint)
    if name not in documents:
        shown = os.path.join(os.path.dirname(at.location.file), name)
        documents[name] = read_document(os.path.join(at.base_dir, name), shown)
    document = documents[name]
    skipped = table.get("skip", ())
    rows = [row for row in _rows(document, table, at) if str(row.key) not in skipped]
    if not rows:
        raise at.error(f"there are no rows in {document.file}.")
    select = table.get("select") or _all_fields(rows[0])
    return tuple(_selected(row, select) for row in rows)


def _rows(document: Document, table: Mapping[str, Any], at: Place) -> Iterator[_FileRow]:
    path: PathParts = ()
    rows = document.data
    for part in table.get("rows", ()):
        key = _key_in(rows, part)
        if key is None:
            hint = suggestion(part, rows if isinstance(rows, dict) else [], otherwise="It has")
            raise at.child("rows").error(f"{document.place(path)} has no {part!r}.", hint)
        path, rows = (*path, key), rows[key]
    if not isinstance(rows, list | dict):
        raise SpecError(
            f"expected rows, a list or a mapping of them, got {show(rows)}.",
            location=document.place(path),
            hint=f"{at.label}.rows says where they are.",
        )
    for key, content in rows.items() if isinstance(rows, dict) else enumerate(rows):
        place = Place(document.place, (*path, key), f"row {show(key)}", len(path) + 1)
        is_number = isinstance(key, str) and _WHOLE_NUMBER.fullmatch(key)
        yield _FileRow(place, int(key) if is_number else key, content)


def _key_in(value: Any, part: str) -> str | int | None:
    """Return the key or index that a part of a path names, None if there is no such item."""
    if isinstance(value, list) and _WHOLE_NUMBER.fullmatch(part):
        return int(part) if int(part) in range(len(value)) else None
    return part if isinstance(value, dict) and part in value else None


def _all_fields(row: _FileRow) -> dict[str, tuple[str, ...]]:
    if not isinstance(row.content, dict) or not row.content:
        raise row.at.error(f"expected a row, got {show(row.content)}.")
    return {PARAMETER.read(name, row.at.key(name)): (name,) for name in row.content}


def _selected(row: _FileRow, select: Mapping[str, tuple[str, ...]]) -> dict[str, Value]:
    special = {"$key": row.key, "$value": row.content}
    values = {}
    for name, path in select.items():
        value: Any = special if path[0] in special else row.content
        for part in path:
            key = _key_in(value, part)
            if key is None:
                fields = row.content if isinstance(row.content, dict) else ()
                hint = did_you_mean(".".join(path), fields)
                hint = hint or "'select' chooses fields, 'skip' drops rows."
                raise row.at.error(f"the row has no field {'.'.join(path)!r}.", hint)
            value = value[key]
        values[name] = _DATA.read(value, row.at)
    return values
