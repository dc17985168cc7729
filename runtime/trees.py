"""The pytrees of a plan, met with a caller's values.

A tree is a number (an array), None, a list of trees, or an object that names what it was:
`{"dict": {key: tree}}`, `{"tuple": [tree]}`, `{"namedtuple": name, "fields": {field: tree}}`, or
`{"node": name, "children": [tree]}` for a type that was registered with JAX.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from pallasc.errors import ArgumentError, CorruptError


def flatten(tree: Any, value: Any, path: str) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each array, given a tree and a value of the same structure.

    What was a list, a tuple or a node may be given as a list or tuple, a named tuple also as an
    object with its fields.

    Raises:
        ArgumentError: the structures differ.
        CorruptError: the tree is none.
    """
    if type(tree) is int:
        yield tree, value
    elif tree is None:
        if value is not None:
            raise ArgumentError(f"{path} must be None, as it was when the kernel was compiled.")
    else:
        for key, child, part in _pairs(tree, value, path):
            yield from flatten(child, part, f"{path}.{key}")


def unflatten(tree: Any, leaves: Sequence[Any]) -> Any:
    """Return the tree with arrays in place of their numbers; nodes become tuples.

    Raises:
        CorruptError: the tree is none.
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
    """Tell whether a tree is one array, or a tuple or list of arrays."""
    if type(tree) is int:
        return True
    if tree is None:
        return False
    kind, children = _node(tree)
    return kind in ("list", "tuple") and all(type(child) is int for _, child in children)


def leaves_of(tree: Any, value: Any) -> list[Any]:
    """Return the values of a flat tree in the order of their numbers.

    Raises:
        ValueError: the value is no tuple or list of that length.
    """
    if type(tree) is int:
        return [value]
    numbers = children_of(tree)
    if type(value) not in (tuple, list) or len(value) != len(numbers):
        raise ValueError("the structures differ")
    found = dict(zip(numbers, value, strict=True))
    return [found[number] for number in sorted(found)]


def children_of(tree: Any) -> list[Any]:
    """Return the trees in a tree that is neither an array nor None."""
    return [child for _, child in _node(tree)[1]]


def _node(tree: Any) -> tuple[str, list[tuple[str, Any]]]:
    """Return what a tree was, and what is in it by key."""
    if isinstance(tree, list):
        return "list", [(str(n), item) for n, item in enumerate(tree)]
    if isinstance(tree, Mapping):
        for kind, field in _FIELDS.items():
            held = tree.get(field)
            if kind in tree and isinstance(held, Mapping):
                return kind, [(str(key), item) for key, item in held.items()]
            if kind in tree and isinstance(held, list):
                return kind, [(str(n), item) for n, item in enumerate(held)]
    raise CorruptError(f"{tree!r} is no pytree of a plan")


_FIELDS = {"dict": "dict", "tuple": "tuple", "namedtuple": "fields", "node": "children"}


def _pairs(tree: Any, value: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield key, tree and value of what lies one level below."""
    kind, children = _node(tree)
    if kind == "dict":
        if not isinstance(value, Mapping) or set(map(str, value)) != {key for key, _ in children}:
            keys = ", ".join(key for key, _ in children)
            raise ArgumentError(f"{path} must be a mapping with the keys {keys}.")
        by_name = {str(key): item for key, item in value.items()}
        parts = [by_name[key] for key, _ in children]
    elif kind == "namedtuple" and all(hasattr(value, key) for key, _ in children):
        parts = [getattr(value, key) for key, _ in children]
    elif isinstance(value, list | tuple) and len(value) == len(children):
        parts = list(value)
    else:
        raise ArgumentError(f"{path} must be a list or tuple of {len(children)}.")
    for (key, child), part in zip(children, parts, strict=True):
        yield key, child, part


@cache
def _namedtuple(name: str, fields: tuple[str, ...]) -> Any:
    try:
        return namedtuple(name, fields)
    except ValueError as error:
        raise CorruptError(f"a named tuple of a plan is damaged: {error}") from error
