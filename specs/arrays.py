"""The notation of arrays: `bf16[1024, 4096]`, with parameters `bf16[{m}, {n // 2}]`.

Grammar:
    array     := dtype "[" (dimension ("," dimension)*)? "]"
    dtype     := a name of `pallasc.specs.dtypes` | "{" parameter "}"
    dimension := whole number | "{" expression "}"
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from pallasc.errors import SpecError
from pallasc.specs.dtypes import parse_dtype
from pallasc.specs.parameters import label_of
from pallasc.specs.spelling import plain, show
from pallasc.specs.templates import Expression, Template, Value, is_template, parse_template

_ARRAY = re.compile(r"\s*(?P<dtype>[^\[\]\s]+|\{[^{}]*\})\s*\[(?P<dims>[^\[\]]*)\]\s*")
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
        shape: sizes of the dimensions; a size may be zero, no dimensions make a scalar.
    """

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    @property
    def nbytes(self) -> int:
        """Return the bytes that a dense device buffer takes; types under eight bits are packed."""
        return (math.prod(self.shape) * parse_dtype(self.dtype).bits + 7) // 8


@dataclass(frozen=True, slots=True)
class ArrayTemplate:
    """An array in the notation of specs, its parameters not yet filled in."""

    text: str
    dtype: Template
    dims: tuple[Template, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the parameters it uses, in order of appearance."""
        parts = (self.dtype, *self.dims)
        return tuple(dict.fromkeys(name for part in parts for name in part.names))

    def resolve(self, params: Mapping[str, Value]) -> ArraySpec:
        """Fill the parameters in.

        Raises:
            SpecError: a parameter is unknown, what it gives is no dtype or no dimension, or the
                array is too large.
        """
        shape = tuple(self._dimension(i, dim, params) for i, dim in enumerate(self.dims))
        dtype = self.dtype.fill(params)
        if isinstance(dtype, list | dict):
            raise SpecError(f"{self.text!r}: {show(dtype)} is not a dtype.")
        array = ArraySpec(parse_dtype(plain(dtype)).name, shape)
        check_size(array)
        return array

    def _dimension(self, index: int, dim: Template, params: Mapping[str, Value]) -> int:
        value = dim.fill(params)
        if isinstance(value, str) and not dim.names and value.isdecimal():
            value = int(value)
        if type(value) is not int or not 0 <= value < _LARGEST_DIMENSION:
            raise SpecError(
                f"{self.text!r}: dimension {index} is {show(value)}{self._given(params)}.",
                hint="A dimension is a whole number from 0.",
            )
        return value

    def _given(self, params: Mapping[str, Value]) -> str:
        used = [f"{name}={plain(label_of(params[name]))}" for name in self.names]
        return f" with {', '.join(used)}" if used else ""


def check_size(array: ArraySpec) -> None:
    """Check that the bytes of an array can be counted in 63 bits, as the compiler does.

    Raises:
        SpecError: it is larger.
    """
    if array.nbytes >= _LARGEST_BYTES:
        raise SpecError(
            f"{str(array)!r} takes {array.nbytes} bytes.",
            hint="An array takes less than 2**63 bytes: make a dimension smaller.",
        )


@lru_cache(maxsize=4096)
def parse_array(text: str) -> ArrayTemplate:
    """Read an array in the notation of specs.

    Raises:
        SpecError: the text is no array, or names a dtype that does not exist.
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
    return ArrayTemplate(text, dtype, tuple(_parse_dimension(d.strip(), text) for d in dims))


def looks_like_array(text: str) -> bool:
    """Tell whether text has the form of an array, whatever its dtype and dimensions say."""
    return _ARRAY.fullmatch(text) is not None


def resolve_array(text: str, params: Mapping[str, Value] | None = None) -> ArraySpec:
    """Read an array and fill its parameters in.

    Raises:
        SpecError: as `parse_array` and `ArrayTemplate.resolve`.
    """
    return parse_array(text).resolve(params or {})


def _parse_dimension(text: str, whole: str) -> Template:
    template = parse_template(text)
    if template.parts and len(template.parts) == 1 and isinstance(template.parts[0], Expression):
        return template
    if text.isascii() and text.isdecimal():
        return template
    raise SpecError(
        f"{show(whole)}: {text!r} is not a dimension.",
        hint=f"Put the whole sum into braces, {{{text.replace('{', '').replace('}', '')}}}."
        if is_template(text)
        else _dimension_hint(text),
    )


def _dimension_hint(text: str) -> str:
    if text.isidentifier():
        return f"A parameter stands in braces: {{{text}}}."
    return "A dimension is a whole number from 0, or a parameter in braces."
