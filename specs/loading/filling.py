"""Fill parameters into the trees of a spec: what no parameter changes is made once and shared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pallasc.errors import SpecError
from pallasc.specs.arrays import looks_like_array, parse_array, resolve_array
from pallasc.specs.entries import check_entry, parse_entry
from pallasc.specs.fields import PathParts, Place
from pallasc.specs.loading.entry_fields import NODES
from pallasc.specs.loading.kernel_fields import is_parameter
from pallasc.specs.spec import sorted_value
from pallasc.specs.spelling import show
from pallasc.specs.templates import Value, is_template, parse_template

Params = Mapping[str, Value]
"""What templates see of a point."""

Fill = Callable[[Params], Any]

_MOST_CHARACTERS = 2**28
"""Of all text that one spec's templates give, so that long values cannot fill the memory."""


class Filler(NamedTuple):
    """A tree to fill in: the same value for all points, or a function of the point."""

    value: Any = None
    fill: Fill | None = None

    def __call__(self, params: Params) -> Any:
        """Return the tree of a point; parts that are equal for all points are one object.

        Raises:
            SpecError: a template cannot be filled in, with its place.
        """
        return self.value if self.fill is None else self.fill(params)


class Trees:
    """Makes the fillers of one spec.

    Args:
        at: the place of the spec.
        base_dir: its folder, for entry points that templates give.
    """

    def __init__(self, at: Place, base_dir: str) -> None:
        self._at = at
        self._base_dir = base_dir
        self._entries: dict[str, str] = {}
        self._characters = 0

    def args(self, tree: Value, path: PathParts = ("args",)) -> Filler:
        """Return the filler of the arguments at a path of the spec.

        Raises:
            SpecError: what no parameter changes is wrong.
        """
        return self._args(tree, path)

    def static(self, tree: Value) -> Filler:
        """Return the filler of the static arguments."""
        return self._tree(tree, ("static",), self._static)

    def _args(self, tree: Any, path: PathParts, *, in_call: bool = False) -> Filler:
        """Return the filler of a tree of arrays; in a `$call`, all else is left as it is."""
        if isinstance(tree, list):
            items = enumerate(tree)
            return _joined([self._args(item, (*path, i), in_call=in_call) for i, item in items])
        if isinstance(tree, dict) and "$ref" not in tree:
            inside = in_call or "$call" in tree
            return _keyed({k: self._args(v, (*path, k), in_call=inside) for k, v in tree.items()})
        is_static = isinstance(tree, dict) or (in_call and path[-1] == "$call")
        leaf = self._static if is_static else self._in_call if in_call else self._array
        return self._tree(tree, path, leaf)

    def _tree(self, tree: Any, path: PathParts, leaf: Callable[[Any, str], Filler]) -> Filler:
        if isinstance(tree, list):
            return _joined([self._tree(item, (*path, i), leaf) for i, item in enumerate(tree)])
        if isinstance(tree, dict):
            return _keyed({k: self._tree(item, (*path, k), leaf) for k, item in tree.items()})
        with self._at.below(path).blamed():
            filler = leaf(tree, str(path[-1]))
        return filler if filler.fill is None else Filler(fill=self._blaming(filler.fill, path))

    def _blaming(self, fill: Fill, path: PathParts) -> Fill:
        """Return a function whose errors have a place, which is made for an error alone."""

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
            return Filler(fill=lambda params: _array_tree(template.fill(params), text))
        array = parse_array(text)
        return Filler(fill=array.resolve) if array.names else Filler(array.resolve({}))

    def _in_call(self, value: Any, key: str) -> Filler:
        if isinstance(value, str) and is_parameter(value):
            template = parse_template(value)
            return Filler(fill=lambda params: _array_or_data(template.fill(params)))
        is_array = isinstance(value, str) and looks_like_array(value)
        return self._array(value, key) if is_array else self._static(value, key)

    def _static(self, value: Any, key: str) -> Filler:
        if not isinstance(value, str):
            return Filler(value)
        if key in NODES:
            if not is_template(value):
                return Filler(value)
            return Filler(fill=lambda params: self._entry(parse_template(value).fill(params)))
        template = parse_template(value)
        if not template.names:
            return Filler(template.fill({}))
        return Filler(fill=lambda params: self._counted(template.fill(params)))

    def _entry(self, text: Value) -> str:
        """Return an entry point that a template gave, checked to exist."""
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

    def _counted(self, value: Value) -> Value:
        if isinstance(value, str):
            self._characters += len(value)
            if self._characters > _MOST_CHARACTERS:
                raise SpecError(
                    f"its templates give more than {_MOST_CHARACTERS} characters in all.",
                    hint="Make the matrix or the text smaller.",
                )
        return sorted_value(value) if isinstance(value, dict | list) else value


def _array_tree(value: Value, text: str) -> Any:
    """Return the array, `None`, or the tree of them, that a parameter holds."""
    if isinstance(value, list):
        return [_array_tree(item, text) for item in value]
    if isinstance(value, dict):
        if "$call" in value or "$ref" in value:
            return _array_or_data(value)
        return {key: _array_tree(item, text) for key, item in value.items()}
    if value is not None and not isinstance(value, str):
        raise SpecError(f"{text} is {show(value)}, which is not an array.")
    return None if value is None else resolve_array(value)


def _array_or_data(value: Value) -> Any:
    """Return an argument of a `$call`: arrays where text is one, all else unchanged."""
    if isinstance(value, list):
        return [_array_or_data(item) for item in value]
    if isinstance(value, dict):
        return {k: v if k in NODES else _array_or_data(v) for k, v in value.items()}
    if isinstance(value, str) and looks_like_array(value):
        return resolve_array(value)
    return value


def _joined(parts: list[Filler]) -> Filler:
    if all(part.fill is None for part in parts):
        return Filler([part.value for part in parts])
    return Filler(fill=lambda params: [part(params) for part in parts])


def _keyed(parts: dict[str, Filler]) -> Filler:
    if all(part.fill is None for part in parts.values()):
        return Filler({key: part.value for key, part in parts.items()})
    return Filler(fill=lambda params: {key: part(params) for key, part in parts.items()})
