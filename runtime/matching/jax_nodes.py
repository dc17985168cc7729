"""Pytree nodes of a caller, taken apart by the JAX that they are registered with."""

from __future__ import annotations

from typing import Any

from pallasc.specs.nodes import static_text


def take_apart(value: Any) -> tuple[list[Any], str | None] | None:
    """Return the children of a node and the text of its static data; None where it is none.

    JAX is imported already where a type was registered with it.

    Raises:
        SpecError: its static data has no text.
    """
    from jax import tree_util

    if tree_util.all_leaves([value]):
        return None
    structure: Any
    children, structure = tree_util.tree_flatten(value, is_leaf=lambda node: node is not value)
    data = structure.node_data()[1]
    is_empty = data is None or (isinstance(data, tuple | list | dict) and not data)
    return children, None if is_empty else static_text(data)
