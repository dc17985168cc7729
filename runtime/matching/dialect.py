"""How the generated functions of a kernel ask a framework about its arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Dialect:
    """How generated code asks a framework; `{x}` is an array, `{d}` an ordinal.

    Attributes:
        kind, other_kinds: the usual type of its arrays, and others that are used alike.
        dtypes: its dtypes by short name.
        dtype, shape, device, pointer, stream, current_device: expressions.
        plain: an expression that holds where `{x}` is what its memory says: torch conjugates
            complex arrays without touching them, and so negates their imaginary parts, which
            without gaps have one element. Empty where there is no such thing.
        layout: an expression that holds where `{x}` has the shape `{shape}` without gaps;
            `{strides}` are those of such an array, in elements. Like all expressions on an array,
            it may raise what `FOREIGN_ERRORS` lists, or an `AssertionError`.
        mark_written: an expression that tells the framework that the arrays of the tuple `{xs}` are
            written; empty where it does not count writes.
        strided: the same for an array that is not row-major, whose strides are `{strides}`; empty
            where such arrays have no generated functions.
        empty: a function like `torch.empty`, with `dtype` and `device`.
        place: the expression for its `device`.
        values: what the expressions use.
    """

    kind: type
    other_kinds: frozenset[type]
    dtypes: Mapping[str, Any]
    dtype: str
    shape: str
    layout: str
    device: str
    pointer: str
    stream: str
    current_device: str
    empty: Callable[..., Any]
    values: Mapping[str, Any]
    plain: str = ""
    mark_written: str = ""
    strided: str = ""
    place: str = "{x}.device"
