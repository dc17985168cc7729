"""The caller's view of a plan: its arrays, their order, and rules for their addresses.

This module binds the arguments of a call, by position or by name, to the arrays of a plan.
Arguments and results are pytrees: arguments are flattened to arrays, and results are rebuilt from
arrays. A tree is a number (an array), None, a list of trees, or an object that names its original
type:

* `{"dict": {key: tree}}`, `{"tuple": [tree]}`
* `{"namedtuple": name, "fields": {field: tree}}`; the fields are in the order of their arrays, and
  `order` lists them if a field without arrays precedes a field with arrays
* `{"node": name, "children": [tree]}` for a type that was registered with JAX. For an argument, it
  has `keys`, the names of its children, and may have `static`, its static data as text
  (`static_text`), so that a node with other data does not match.
"""

from __future__ import annotations

import math
import sys
from collections import namedtuple
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any

from pallasc.errors import ArgumentError, CorruptError, SpecError
from pallasc.specs.arrays import array_text
from pallasc.specs.artifacts.plan import LaunchPlan, tree_leaves
from pallasc.specs.spelling import an, suggestion


def check_addresses(plan: LaunchPlan, name: str, pointers: Sequence[int]) -> None:
    """Check addresses, alignment, and overlap of the arrays.

    Raises:
        ArgumentError: an array has no address, is misaligned, or overlaps another one.
    """
    sizes = plan.passed_bytes
    for binding, pointer, size in zip(plan.passed, pointers, sizes, strict=True):
        alignment = plan.buffers[binding.buffer].alignment
        if pointer % alignment and size:
            raise ArgumentError(
                f"{name}: {binding.path} starts at {pointer:#x}, misaligned by "
                f"{pointer % alignment} bytes: the kernel requires multiples of {alignment}.",
                hint="Pass a copy, or a view that starts at an aligned address.",
            )
        if not pointer and size:
            raise ArgumentError(
                f"{name}: {binding.path} has {size} bytes, and its address is 0.",
                hint="Pass an array that has memory.",
            )
    first_result = len(plan.inputs)
    for number in (*plan.updated, *range(first_result, len(sizes))):
        start, end = pointers[number], pointers[number] + sizes[number]
        for other in range(max(number, first_result)):
            last = min(end, pointers[other] + sizes[other])
            if other == number or max(start, pointers[other]) >= last:
                continue
            written, other_path = plan.passed[number].path, plan.passed[other].path
            if number >= first_result:
                message = f"the memory for {written} overlaps {other_path}."
                hint = "Pass an out array that shares no memory."
            else:
                message = f"{written}, which is updated in place, overlaps {other_path}."
                hint = "Pass a copy of one of them."
            raise ArgumentError(f"{name}: {message}", hint=hint)


MISSING: Any = object()
"""Marks an argument that was not given."""


class Arguments:
    """The parameters of a kernel.

    Args:
        name: the kernel.
        plan: its launch plan.
        params: names of matrix parameters that are also accepted.
        others: other accepted names, for suggestions.

    Attributes:
        names: the names that a caller can use for arrays and parameters.
    """

    def __init__(
        self,
        name: str,
        plan: LaunchPlan,
        params: Iterable[str],
        others: Sequence[str] = ("out", "stream"),
    ) -> None:
        self._name = name
        self._others = others
        self._plan = plan
        self._trees = input_names(plan)
        self._params = list(params)
        self.names = [*(own for own, _ in self._trees if own), *self._params]

    def bind(
        self, positional: Sequence[Any], named: Mapping[str, object]
    ) -> tuple[list[Any], dict[str, object]]:
        """Return the arrays, and the other arguments, which are parameters of the matrix.

        Raises:
            ArgumentError: there are too many or too few arguments, one is given twice, or a name is
                unknown.
        """
        values, rest, names = list(positional), dict(named), [name for name, _ in self._trees]
        if len(values) > len(names):
            raise self._error(f"was given {len(values)} arguments by position")
        for name in names[len(values) :]:
            values.append(MISSING if name is None else rest.pop(name, MISSING))
        for name in rest:
            if name in names:
                raise self._error(f"was given {name} twice")
            if name not in self._params:
                raise self._unknown(name)
        return self._flat(values), rest

    def _flat(self, values: Sequence[Any]) -> list[Any]:
        leaves: dict[int, Any] = {}
        for number, ((name, tree), value) in enumerate(zip(self._trees, values, strict=True)):
            if type(tree) is int and value is not MISSING:  # the common case, without a generator
                leaves[tree] = value
                continue
            label = name or f"argument {number}"
            if value is not MISSING:
                leaves.update(flatten(tree, value, f"{self._name}: {label}"))
            elif tree is not None:
                raise self._error(f"was not given {label}")
        return [leaves[number] for number in range(len(leaves))]

    def _error(self, what: str) -> ArgumentError:
        arrays = ", ".join(
            f"{array.path}: {array_text(array.dtype, array.shape, array.layout)}"
            for array in self._plan.inputs
        )
        return ArgumentError(f"{self._name} {what}.", hint=f"It takes {arrays or 'no arrays'}.")

    def _unknown(self, name: str) -> ArgumentError:
        hint = suggestion(name, [*self.names, *self._others], otherwise="Its arguments")
        return ArgumentError(f"{self._name} has no argument {name!r}.", hint=hint)


def input_names(plan: LaunchPlan) -> list[tuple[str | None, Any]]:
    """Return the parameters of the function: name, and the tree of array numbers below it.

    Names are None if the function takes its arrays by position. JSON does not preserve the order of
    names, so they are sorted by their arrays, which are in the function's order. Names without
    arrays come last, unless the plan has another order.
    """
    tree = plan.input_tree
    if not isinstance(tree, Mapping):
        return [(None, item) for item in (tree if isinstance(tree, list) else [tree])]
    if plan.parameters:
        return [(name, tree[name]) for name in plan.parameters]
    return sorted(tree.items(), key=lambda item: min(tree_leaves(item[1]), default=math.inf))


Node = Mapping[str, object]
"""An object in the tree of a plan."""


def flatten(tree: Any, value: Any, path: str) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each array, given a tree and a value with the same structure.

    A list, a tuple, or a node can be given as a list or tuple, and a named tuple also as an object
    with its fields. A node can be given as an object of a type with its name and equal static data,
    or as a mapping of its children.

    Raises:
        ArgumentError: the structures differ.
        CorruptError: `tree` is not the tree of a plan.
    """
    if type(tree) is int:
        yield tree, value
    elif tree is None:
        if value is not None:
            raise ArgumentError(f"{path} must be None, as it was when the kernel was compiled.")
    else:
        kind, children = _node(tree)
        parts = _parts(kind, tree, [key for key, _ in children], value, path)
        for (key, child), part in zip(children, parts, strict=True):
            yield from flatten(child, part, f"{path}.{key}")


def unflatten(tree: Any, leaves: Sequence[Any]) -> Any:
    """Replace the numbers in a tree with arrays; nodes become tuples.

    Raises:
        CorruptError: `tree` is not the tree of a plan.
    """
    if tree is None or type(tree) is int:
        return None if tree is None else leaves[tree]
    kind, children = _node(tree)
    if kind == "dict":
        return {key: unflatten(child, leaves) for key, child in children}
    parts = [unflatten(child, leaves) for _, child in children]
    if kind == "list":
        return parts
    if kind == "namedtuple":
        return _namedtuple(str(tree[kind]), tuple(key for key, _ in children))(*parts)
    return tuple(parts)


def is_flat(tree: Any) -> bool:
    """Return True if a tree is one array, or a tuple or list of arrays."""
    if type(tree) is int:
        return True
    if tree is None:
        return False
    kind, children = _node(tree)
    return kind in ("list", "tuple") and all(type(child) is int for _, child in children)


def _node(tree: Any) -> tuple[str, list[tuple[str, object]]]:
    """Return the original type of a tree, and its children by key."""
    if isinstance(tree, list):
        return "list", [(str(n), item) for n, item in enumerate(tree)]
    for kind, field in _FIELDS.items() if isinstance(tree, Mapping) else ():
        held = tree.get(field) if kind in tree else None
        if isinstance(held, Mapping):
            names = _order(tree, held) if kind == "namedtuple" else list(held)
            if sorted(names) == sorted(held):
                return kind, [(key, held[key]) for key in names]
        elif isinstance(held, list):
            keys = tree.get("keys") or range(len(held))
            if isinstance(keys, list | range) and len(keys) == len(held):
                return kind, list(zip(map(str, keys), held, strict=True))
    raise CorruptError(f"{tree!r} is not a pytree of a plan")


def _order(tree: Node, fields: Node) -> list[str]:
    """Return the fields of a named tuple in order, which JSON does not preserve."""
    named = tree.get("order")
    if isinstance(named, list):
        return list(map(str, named))
    return sorted(fields, key=lambda name: min(tree_leaves(fields[name]), default=math.inf))


_FIELDS = {"dict": "dict", "tuple": "tuple", "namedtuple": "fields", "node": "children"}


def _parts(kind: str, tree: Node, keys: Sequence[str], value: Any, path: str) -> Sequence[Any]:
    """Return the parts of a value for the children of a tree."""
    by_name = {str(key): value[key] for key in value} if isinstance(value, Mapping) else None
    if kind in ("dict", "node") and by_name is not None and by_name.keys() == set(keys):
        return [by_name[key] for key in keys]
    if kind == "dict":
        raise ArgumentError(f"{path} must be a mapping with the keys {', '.join(keys)}.")
    if kind == "namedtuple" and all(hasattr(value, key) for key in keys):
        return [getattr(value, key) for key in keys]
    if kind == "node" and (not isinstance(value, list | tuple) or hasattr(value, "_fields")):
        return _node_parts(tree, value, keys, path)  # a plain list or tuple has the arrays instead
    if isinstance(value, list | tuple) and len(value) == len(keys):
        return value
    raise ArgumentError(f"{path} must be a list or tuple of {len(keys)}.")


def _node_parts(tree: Node, value: Any, keys: Sequence[str], path: str) -> list[Any]:
    """Return the children of a value that is passed for a node.

    Raises:
        ArgumentError: the value is another node, or cannot be flattened.
    """
    name, static = str(tree["node"]), tree.get("static")
    listed = ", ".join(keys)
    given = type(value).__name__
    if given != name:
        article = "None" if value is None else an(given)
        raise ArgumentError(
            f"{path} must be a {name}, not {article}.",
            hint=f"Pass one, or its arrays as a tuple: ({listed}).",
        )
    node = _registered(value, path)
    if node is not None:
        parts, own = node
        if len(parts) != len(keys):
            raise ArgumentError(f"{path} is a {name} of {len(parts)} parts, not of {len(keys)}.")
        if own != static:
            raise ArgumentError(
                f"{path} is a {name} with the static data {own}, and the kernel was "
                f"compiled for {static}.",
                hint="Compile a variant for it.",
            )
        return parts
    if static is None and "keys" in tree and all(hasattr(value, key) for key in keys):
        return [getattr(value, key) for key in keys]
    raise ArgumentError(
        f"{path} is a {name} that is not registered with JAX, and so cannot be taken apart.",
        hint=f"Pass its arrays as a tuple: ({listed}).",
    )


def _registered(value: Any, path: str) -> tuple[list[Any], str | None] | None:
    """Return children and static data of a node, None if JAX does not know its type."""
    # If its type is registered, JAX was imported; importing it here would take a second.
    tree_util: Any = getattr(sys.modules.get("jax"), "tree_util", None)
    if tree_util is None or tree_util.all_leaves([value]):
        return None
    children, structure = tree_util.tree_flatten(value, is_leaf=lambda node: node is not value)
    data = structure.node_data()[1]
    if data is None or (isinstance(data, tuple | list | dict) and not data):
        return children, None
    try:
        return children, static_text(data)
    except SpecError as error:
        raise ArgumentError(f"{path} has {error.message}", hint=error.hint) from error


@cache
def _namedtuple(name: str, fields: tuple[str, ...]) -> Any:
    try:
        return namedtuple(name, fields)
    except ValueError as error:
        raise CorruptError(f"a named tuple of a plan is damaged: {error}") from error


def static_text(value: Any) -> str:
    """Return text that is equal for equal static data, in every process.

    Raises:
        SpecError: the value has no such text, only an address in memory.
    """
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"({', '.join(map(static_text, value))})"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(static_text, value)))}}}"
    if isinstance(value, Mapping):
        items = sorted((static_text(key), static_text(item)) for key, item in value.items())
        return f"{{{', '.join(f'{key}: {item}' for key, item in items)}}}"
    if hasattr(type(value), "__dataclass_fields__"):
        import dataclasses  # the module of the value is imported, so this one is too

        names = [field.name for field in dataclasses.fields(value)]
        items_text = (f"{name}={static_text(getattr(value, name))}" for name in names)
        return f"{type(value).__name__}({', '.join(items_text)})"
    text = _named(value) or repr(value)
    if " at 0x" in text:
        raise SpecError(
            f"static data of type {type(value).__name__}, whose text is only an address: {text}.",
            hint="Give its type a __repr__ that shows its content.",
        )
    return text


def _named(value: Any) -> str | None:
    """Return the name of a function, type, or dtype; JAX's types have the name of their dtype."""
    if all(hasattr(value, name) for name in ("itemsize", "kind", "name")):
        return str(value.name)
    for name in ("__qualname__", "__name__"):
        if isinstance(qualified := getattr(value, name, None), str):
            return qualified.rpartition(".")[2]
    return None
