"""Text with parameters, `"tile_{m}"`, and arrays: `bf16[1024, 4096]`, `bf16[{m}, {n // 2}]`.

Grammar:
    template   := (text | "{{" | "}}" | "{" expression "}")*
    expression := name ("." field)* | integer | expression ("+" | "-" | "*" | "//" | "%") expression
                | "-" expression | "(" expression ")"

`{tiles.m}` is a field of a parameter whose value is a mapping.

A template that is just one pair of braces keeps the type of its value; any other template gives
text.
Arithmetic is limited to whole numbers and compiled from the syntax tree, not by Python.

Grammar of arrays:
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

import ast
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from msgspec import Struct

from pallasc.errors import SpecError
from pallasc.specs.canonical import Value, label_of, plain
from pallasc.specs.spelling import shortened, show, suggestion

_PIECES = re.compile(r"(\{\{|\}\}|\{[^{}]*\}|[{}])")
_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_LONGEST_EXPRESSION = 200
_LIMIT = 2**63
"""Numbers, dimensions, and sizes in bytes must be below this limit."""

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_Compute = Callable[[Mapping[str, Any]], Any]
"""Evaluates an expression, given the value of each path in it."""


class Expression(NamedTuple):
    """The content of one pair of braces.

    Attributes:
        text: the content.
        paths: the parameters and fields in it, such as `tiles.m`.
        compute: evaluates it.
    """

    text: str
    paths: tuple[str, ...]
    compute: _Compute

    def value(self, params: Mapping[str, Value]) -> Value:
        """Evaluate with these parameters; a name or a field keeps the type of its value.

        Raises:
            SpecError: a parameter is unknown, lacks a field, or is not a whole number, or the
                expression divides by zero.
        """
        if self.paths == (self.text,):
            return _looked_up(self.text, params, self.text)
        values = {path: _looked_up(path, params, self.text) for path in self.paths}
        for path, value in values.items():
            if type(value) is not int:
                raise SpecError(
                    f"{{{self.text}}} needs whole numbers, and {path} is {show(value)}.",
                    hint="Arithmetic in braces is over whole numbers only.",
                )
        try:
            result: int = self.compute(values)
        except ZeroDivisionError:
            raise SpecError(f"{{{self.text}}} divides by zero.") from None
        if abs(result) >= _LIMIT:
            raise SpecError(f"{{{self.text}}} does not fit into 64 bits.")
        return result

    def text_of(self, params: Mapping[str, Value]) -> str:
        """Evaluate to text, for insertion into longer text.

        Raises:
            SpecError: as for `value`, or the value is a list or a mapping.
        """
        value = self.value(params)
        if isinstance(value, list | dict):
            raise SpecError(f"{{{self.text}}} is {show(value)}, which cannot be part of text.")
        return plain(value)


class Template(NamedTuple):
    """Text with expressions, checked but not filled in.

    Attributes:
        parts: the text and the expressions, in order.
        names: the parameters in it.
        expression: its only part, if that is an expression.
    """

    parts: tuple[str | Expression, ...]
    names: tuple[str, ...]
    expression: Expression | None

    def fill(self, params: Mapping[str, Value]) -> Value:
        """Return the text with values filled in, or the value itself for a single expression.

        Raises:
            SpecError: an expression cannot be evaluated.
        """
        if self.expression is not None:
            return self.expression.value(params)
        texts = [part if isinstance(part, str) else part.text_of(params) for part in self.parts]
        return "".join(texts)


@lru_cache(maxsize=4096)
def parse_template(text: str) -> Template:
    """Parse text with braces.

    Raises:
        SpecError: braces are unbalanced or hold no expression.
    """
    parts: list[str | Expression] = []
    for piece in _PIECES.split(text):
        if piece in ("{", "}"):
            raise SpecError(
                f"{show(text)}: unbalanced brace.", hint="Write {{ or }} for a plain brace."
            )
        if piece.startswith("{") and piece != "{{":
            parts.append(_parse_expression(piece[1:-1].strip()))
        elif piece:
            parts.append(piece[0] if piece in ("{{", "}}") else piece)
    expressions = [part for part in parts if isinstance(part, Expression)]
    names = dict.fromkeys(path.split(".")[0] for each in expressions for path in each.paths)
    only = expressions[0] if expressions and len(parts) == 1 else None
    return Template(tuple(parts), tuple(names), only)


def is_template(text: str) -> bool:
    """Return True if the text contains a brace."""
    return "{" in text or "}" in text


def _parse_expression(text: str) -> Expression:
    try:
        if len(text) > _LONGEST_EXPRESSION:
            raise ValueError("too long")
        paths: dict[str, None] = {}
        compute = _compiled(ast.parse(text, mode="eval").body, paths)
        return Expression(text, tuple(paths), compute)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SpecError(
            f"{{{shortened(text)}}} is not an expression.",
            hint="Use parameters, whole numbers, + - * // % and parentheses; "
            "write {{ and }} for plain braces.",
        ) from None


def _compiled(node: ast.expr, paths: dict[str, None]) -> _Compute:
    """Return the function that evaluates a node; add its parameters and fields to `paths`."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        number = node.value
        return lambda values: number
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        apply = _OPERATORS[type(node.op)]
        left, right = _compiled(node.left, paths), _compiled(node.right, paths)
        return lambda values: apply(left(values), right(values))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        operand = _compiled(node.operand, paths)
        return lambda values: -operand(values)
    path = ast.unparse(node)
    if not isinstance(node, ast.Name | ast.Attribute) or _PATH.fullmatch(path) is None:
        raise ValueError(f"{type(node).__name__} is not allowed")
    paths[path] = None
    return operator.itemgetter(path)


def _looked_up(path: str, params: Mapping[str, Value], text: str) -> Value:
    """Return the value of a parameter, or of a field in it."""
    if path in params:
        return params[path]
    name, *fields = path.split(".")
    if name not in params:
        raise SpecError(
            f"unknown parameter {name!r} in {{{text}}}.",
            hint=suggestion(name, params, otherwise="Parameters")
            or "Give it values under 'matrix'.",
        )
    value = params[name]
    for field in fields:
        if not isinstance(value, dict):
            raise SpecError(f"{{{text}}}: {name} is {show(value)}, which has no fields.")
        if field not in value:
            raise SpecError(
                f"{{{text}}}: {name} has no field {field!r}.",
                hint=suggestion(field, value, otherwise="It has"),
            )
        name, value = f"{name}.{field}", value[field]
    return value


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


_NAMES = (
    "i1 i2 i4 i8 i16 i32 i64 u1 u2 u4 u8 u16 u32 u64 f16 bf16 f32 f64 "
    "f8e4m3fn f8e5m2 f8e4m3b11fnuz f8e4m3fnuz f8e5m2fnuz f8e4m3 f8e3m4 f8e8m0fnu f6e2m3fn f6e3m2fn "
    "f4e2m1fn c64 c128"
)
_KINDS = {"i": "int", "u": "uint", "f": "float", "bf": "bfloat", "c": "complex"}
DTYPES: dict[str, DType] = {
    "bool": DType("bool", "bool_", 8),
    **{
        name: DType(name, f"{_KINDS[kind]}{bits}{'_' if rest else ''}{rest}", int(bits))
        for name, kind, bits, rest in re.findall(r"(([a-z]+)(\d+)(\w*))", _NAMES)
    },
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
        likely = [name for name in (*DTYPES, *ALIASES) if "64" in text or not name.endswith("64")]
        raise SpecError(f"unknown dtype {text!r}.", hint=suggestion(text, likely))
    return dtype


_ARRAY = re.compile(
    r"\s*(?P<dtype>[^\[\]\s]+|\{[^{}]*\})\s*\[(?P<dims>[^\[\]]*)\]"
    r"(?:\{(?P<layout>\s*\d+\s*(?:,\s*\d+\s*)*)\})?\s*"
)
_NUMBER = re.compile("0|[1-9][0-9]*")
_COMMA = re.compile(r",(?![^{}]*\})")
_EXAMPLE = 'Write it like "bf16[1024, {n}]", or "f32[]" for a scalar.'
_LONGEST = 1000


class ArraySpec(Struct, frozen=True):
    """The dtype and shape of one array argument; `str()` is the canonical notation.

    Attributes:
        dtype: canonical name of the element type.
        shape: sizes of the dimensions; zero is allowed, and a scalar has no dimensions.
        layout: dimensions from minor to major, or None for row-major.

    Raises:
        SpecError: the size in bytes does not fit in 63 bits, the compiler's limit.
    """

    dtype: str
    shape: tuple[int, ...]
    layout: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.nbytes >= _LIMIT:
            raise SpecError(
                f"{str(self)!r} takes {self.nbytes} bytes.",
                hint="An array takes less than 2**63 bytes: make a dimension smaller.",
            )

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
    """An array in spec notation, not filled in; `names` are its parameters in textual order."""

    text: str
    dtype: Template | DType
    dims: tuple[Template | int, ...]
    layout: tuple[int, ...] | None
    names: tuple[str, ...]

    def resolve(self, params: Mapping[str, Value]) -> ArraySpec:
        """Fill in the parameters.

        Raises:
            SpecError: a parameter is unknown, its value is not a dtype or a dimension, or the
                array is too large.
        """
        sizes: list[Any] = [dim if isinstance(dim, int) else dim.fill(params) for dim in self.dims]
        for index, size in enumerate(sizes):
            if type(size) is not int or not 0 <= size < _LIMIT:
                raise SpecError(
                    f"{self.text!r}: dimension {index} is {show(size)}{self._given(params)}.",
                    hint="A dimension must be a whole number, 0 or more.",
                )
        shape = tuple(sizes)
        dtype = self.dtype
        if isinstance(dtype, Template):
            dtype = parse_dtype(plain(label_of(dtype.fill(params))))
        layout = None if self.layout is None else settled_layout(self.layout, shape)
        if layout is not None and dtype.bits < 8:
            raise SpecError(
                f"{self.text!r}: a type of {dtype.bits} bits has no layout but row-major.",
                hint="Leave the layout out.",
            )
        return ArraySpec(dtype.name, shape, layout)

    def _given(self, params: Mapping[str, Value]) -> str:
        used = [f"{name}={plain(label_of(params[name]))}" for name in self.names]
        return f" with {', '.join(used)}" if used else ""


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
    dtype: Template | DType = parse_template(match["dtype"])
    if isinstance(dtype, Template) and not dtype.names:
        dtype = parse_dtype(match["dtype"])
    dims = _COMMA.split(match["dims"]) if match["dims"].strip() else []
    layout = _parse_layout(match["layout"], len(dims), text)
    made = tuple(_parse_dimension(d.strip(), text) for d in dims)
    parts = [part for part in (dtype, *made) if isinstance(part, Template)]
    names = dict.fromkeys(name for part in parts for name in part.names)
    return ArrayTemplate(text, dtype, made, layout, tuple(names))


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


def _parse_dimension(text: str, notation: str) -> Template | int:
    if _NUMBER.fullmatch(text):
        return int(text)
    template = parse_template(text)
    if template.expression is not None:
        return template
    inside = text.replace("{", "").replace("}", "")
    hint = f"Write a whole number without leading zeros, or an expression in braces: {{{inside}}}."
    raise SpecError(f"{show(notation)}: {text!r} is not a dimension.", hint=hint)
