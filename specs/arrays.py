"""Array notation: `bf16[1024, 4096]`, or with parameters `bf16[{m}, {n // 2}]`.

Grammar:
    array     := dtype "[" (dimension ("," dimension)*)? "]" layout?
    layout    := "{" number ("," number)* "}"
    dtype     := a name in `DTYPES` or `ALIASES` | "{" parameter "}"
    dimension := whole number without leading zeros | "{" expression "}"

A layout lists the dimensions from minor to major, as in XLA: `bf16[4096, 1024]{0,1}` has the memory
order of a row-major `bf16[1024, 4096]`. The default is row-major, `{1,0}`.

The element types are the dtypes of JAX 0.10 to 0.12, under short names. These follow JAX's own
notation, but floats of eight bits or fewer have no underscore: `bf16`, `i4`, `f8e4m3fn`. JAX's and
NumPy's names (`bfloat16`, `int4`, `float8_e4m3fn`) and JAX's notation (`f8_e4m3fn`) are also
accepted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from pallasc.errors import SpecError
from pallasc.specs.canonical import plain
from pallasc.specs.spelling import show, suggestion
from pallasc.specs.templates import (
    Template,
    Value,
    label_of,
    parse_template,
)


class DType(NamedTuple):
    """An element type.

    Attributes:
        name: the canonical short name, `bf16`.
        jax_name: the attribute of `jax.numpy`, `bfloat16`.
        bits: bits per element in a device buffer. Types under eight bits are packed; `bool` takes a
            whole byte.
    """

    name: str
    jax_name: str
    bits: int


_INTEGER_BITS = (1, 2, 4, 8, 16, 32, 64)
_SMALL_FLOATS = (
    (8, "e4m3fn e5m2 e4m3b11fnuz e4m3fnuz e5m2fnuz e4m3 e3m4 e8m0fnu"),
    (6, "e2m3fn e3m2fn"),
    (4, "e2m1fn"),
)
DTYPES: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (
        DType("bool", "bool_", 8),
        *(DType(f"i{bits}", f"int{bits}", bits) for bits in _INTEGER_BITS),
        *(DType(f"u{bits}", f"uint{bits}", bits) for bits in _INTEGER_BITS),
        DType("f16", "float16", 16),
        DType("bf16", "bfloat16", 16),
        DType("f32", "float32", 32),
        DType("f64", "float64", 64),
        *(
            DType(f"f{bits}{kind}", f"float{bits}_{kind}", bits)
            for bits, kinds in _SMALL_FLOATS
            for kind in kinds.split()
        ),
        DType("c64", "complex64", 64),
        DType("c128", "complex128", 128),
    )
}
"""Every element type by its canonical name."""

ALIASES: dict[str, str] = {
    **{dtype.jax_name: dtype.name for dtype in DTYPES.values()},
    **{f"{name[:2]}_{name[2:]}": name for name in DTYPES if name[0] == "f" and "e" in name},
}
"""Other accepted spellings, mapped to the canonical names."""


def parse_dtype(text: str) -> DType:
    """Return the element type with this name or alias.

    Raises:
        SpecError: the name is unknown; the hint suggests the nearest spelling.
    """
    dtype = DTYPES.get(ALIASES.get(text, text))
    if dtype is None:
        raise SpecError(f"unknown dtype {text!r}.", hint=suggestion(text, [*DTYPES, *ALIASES]))
    return dtype


_ARRAY = re.compile(
    r"\s*(?P<dtype>[^\[\]\s]+|\{[^{}]*\})\s*\[(?P<dims>[^\[\]]*)\]"
    r"(?:\{(?P<layout>\s*\d+\s*(?:,\s*\d+\s*)*)\})?\s*"
)
_NUMBER = re.compile("0|[1-9][0-9]*")
_COMMA = re.compile(r",(?![^{}]*\})")
_EXAMPLE = 'Write it like "bf16[1024, {n}]", or "f32[]" for a scalar.'
_LONGEST = 1000
_LARGEST_DIMENSION = 2**63
_LARGEST_BYTES = 2**63


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """The dtype and shape of one array argument; `str()` is the canonical notation.

    Attributes:
        dtype: canonical name of the element type.
        shape: sizes of the dimensions; zero is allowed, and a scalar has no dimensions.
        layout: dimensions from minor to major, or None for row-major.
    """

    dtype: str
    shape: tuple[int, ...]
    layout: tuple[int, ...] | None = None

    def __str__(self) -> str:
        return array_text(self.dtype, self.shape, self.layout)

    @property
    def nbytes(self) -> int:
        """Return the size of a dense device buffer in bytes; types under eight bits are packed."""
        return (math.prod(self.shape) * parse_dtype(self.dtype).bits + 7) // 8


def array_text(dtype: str, shape: Iterable[int], layout: Iterable[int] | None = None) -> str:
    """Return `bf16[1024, 4096]`, followed by the layout if it is not row-major."""
    order = "" if layout is None else f"{{{','.join(map(str, layout))}}}"
    return f"{dtype}[{', '.join(map(str, shape))}]{order}"


def settled_layout(order: Sequence[int], shape: Sequence[int]) -> tuple[int, ...] | None:
    """Normalize a layout, so that equal memory orders compare equal.

    Row-major becomes None. In other layouts, dimensions of size 1 come last.
    """
    if 0 in shape:
        return None
    wide = [dim for dim in order if shape[dim] != 1]
    if wide == sorted(wide, reverse=True):
        return None
    return (*wide, *(dim for dim in reversed(range(len(shape))) if shape[dim] == 1))


def strides_of(shape: Sequence[int], layout: Sequence[int] | None = None) -> tuple[int, ...]:
    """Return the strides, in elements, of an array without gaps."""
    strides, step = [0] * len(shape), 1
    for dim in reversed(range(len(shape))) if layout is None else layout:
        strides[dim] = step
        step *= shape[dim]
    return tuple(strides)


@lru_cache(maxsize=1024)
def layout_of(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the layout for strides in elements; None for row-major or strides with gaps."""
    order = sorted(range(len(shape)), key=lambda dim: (strides[dim], -dim))
    layout = settled_layout(order, shape)
    dense = strides_of(shape, layout)
    is_dense = all(
        size == 1 or own == stride for size, own, stride in zip(shape, dense, strides, strict=True)
    )
    return layout if is_dense else None


class ArrayTemplate(NamedTuple):
    """An array in spec notation whose parameters are not filled in."""

    text: str
    dtype: Template
    dims: tuple[Template, ...]
    layout: tuple[int, ...] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Return the parameters used, in order of appearance."""
        parts = (self.dtype, *self.dims)
        return tuple(dict.fromkeys(name for part in parts for name in part.names))

    def resolve(self, params: Mapping[str, Value]) -> ArraySpec:
        """Fill in the parameters.

        Raises:
            SpecError: a parameter is unknown, its value is not a dtype or a dimension, or the
                array is too large.
        """
        shape = tuple(self._dimension(i, dim, params) for i, dim in enumerate(self.dims))
        element = self.dtype.fill(params)
        if isinstance(element, list | dict):
            raise SpecError(f"{self.text!r}: {show(element)} is not a dtype.")
        dtype = parse_dtype(plain(element))
        layout = None if self.layout is None else settled_layout(self.layout, shape)
        if layout is not None and dtype.bits < 8:
            raise SpecError(
                f"{self.text!r}: a type of {dtype.bits} bits has no layout but row-major.",
                hint="Leave the layout out.",
            )
        array = ArraySpec(dtype.name, shape, layout)
        check_size(array)
        return array

    def _dimension(self, index: int, dim: Template, params: Mapping[str, Value]) -> int:
        value = dim.fill(params)
        if isinstance(value, str) and not dim.names and value.isdecimal():
            value = int(value)
        if type(value) is not int or not 0 <= value < _LARGEST_DIMENSION:
            raise SpecError(
                f"{self.text!r}: dimension {index} is {show(value)}{self._given(params)}.",
                hint="A dimension must be a whole number, 0 or more.",
            )
        return value

    def _given(self, params: Mapping[str, Value]) -> str:
        used = [f"{name}={plain(label_of(params[name]))}" for name in self.names]
        return f" with {', '.join(used)}" if used else ""


def check_size(array: ArraySpec) -> None:
    """Check that the size of an array in bytes fits in 63 bits, the compiler's limit.

    Raises:
        SpecError: the array is too large.
    """
    if array.nbytes >= _LARGEST_BYTES:
        raise SpecError(
            f"{str(array)!r} takes {array.nbytes} bytes.",
            hint="An array takes less than 2**63 bytes: make a dimension smaller.",
        )


@lru_cache(maxsize=4096)
def parse_array(text: str) -> ArrayTemplate:
    """Parse an array in spec notation.

    Raises:
        SpecError: the text is not an array, or names a dtype that does not exist.
    """
    if len(text) > _LONGEST:
        raise SpecError(f"{show(text)}: an array has at most {_LONGEST} characters.")
    match = _ARRAY.fullmatch(text)
    if match is None:
        raise SpecError(f"{show(text)} is not an array.", hint=_EXAMPLE)
    dtype = parse_template(match["dtype"])
    if not dtype.names:
        parse_dtype(match["dtype"])
    dims = _COMMA.split(match["dims"]) if match["dims"].strip() else []
    layout = _parse_layout(match["layout"], len(dims), text)
    made = tuple(_parse_dimension(d.strip(), text) for d in dims)
    return ArrayTemplate(text, dtype, made, layout)


def _parse_layout(order: str | None, rank: int, notation: str) -> tuple[int, ...] | None:
    if order is None:
        return None
    layout = tuple(int(number) for number in order.split(","))
    if sorted(layout) != list(range(rank)):
        example = ",".join(map(str, reversed(range(rank))))
        raise SpecError(
            f"{show(notation)}: the layout {{{order}}} does not name each of {rank} dimensions "
            "once.",
            hint=f"Row-major is {{{example}}}." if rank else "A scalar has no layout.",
        )
    return layout


def looks_like_array(text: str) -> bool:
    """Return True if the text has the form of an array; dtype and dimensions are not checked."""
    return _ARRAY.fullmatch(text) is not None


def resolve_array(text: str, params: Mapping[str, Value] | None = None) -> ArraySpec:
    """Parse an array and fill in its parameters.

    Raises:
        SpecError: as `parse_array` and `ArrayTemplate.resolve`.
    """
    return parse_array(text).resolve(params or {})


def array_tree(tree: Any, *, in_call: bool = False) -> Any:
    """Replace each array notation in a tree with an `ArraySpec`.

    The arguments of a `$call` (`in_call`) can also contain other values and other text, which never
    looks like an array.

    Raises:
        SpecError: as `resolve_array`, or a value is neither an array nor null.
    """
    if isinstance(tree, list):
        return [array_tree(item, in_call=in_call) for item in tree]
    if isinstance(tree, dict):
        inside = in_call or "$call" in tree or "$ref" in tree
        return {key: array_tree(item, in_call=inside) for key, item in tree.items()}
    if tree is None or (in_call and not (isinstance(tree, str) and looks_like_array(tree))):
        return tree
    if not isinstance(tree, str):
        raise SpecError(f"{show(tree)} is not an array.")
    return resolve_array(tree)


def _parse_dimension(text: str, notation: str) -> Template:
    template = parse_template(text)
    if template.expression is not None or _NUMBER.fullmatch(text):
        return template
    inside = text.replace("{", "").replace("}", "")
    hint = f"Write a whole number without leading zeros, or an expression in braces: {{{inside}}}."
    raise SpecError(f"{show(notation)}: {text!r} is not a dimension.", hint=hint)
