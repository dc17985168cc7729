"""Static data of pytree nodes as text.

A pytree node of a type registered with JAX has children, which are arrays or nodes, and static
data, which affects tracing. A launch plan stores the static data as text, so that a node with
different data does not match.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from pallasc.errors import SpecError


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
    if is_dataclass(value) and not isinstance(value, type):
        items_text = (f"{f.name}={static_text(getattr(value, f.name))}" for f in fields(value))
        return f"{type(value).__name__}({', '.join(items_text)})"
    return _named(value) or _repr(value)


def _named(value: Any) -> str | None:
    """Return the name of a function, type, or dtype; JAX's types have the name of their dtype."""
    if all(hasattr(value, name) for name in ("itemsize", "kind", "name")):
        return str(value.name)
    for name in ("__qualname__", "__name__"):
        if isinstance(qualified := getattr(value, name, None), str):
            return qualified.rpartition(".")[2]
    return None


def _repr(value: Any) -> str:
    text = repr(value)
    if " at 0x" in text:
        raise SpecError(
            f"static data of type {type(value).__name__}, which cannot be told from other data: "
            f"its text is {text}.",
            hint="Give its type a __repr__ that says what it holds.",
        )
    return text
