"""Text with parameters in braces: `"{m}"`, `"tile_{m}"`, `"{m // 2 + 1}"`.

Grammar:
    template   := (text | "{{" | "}}" | "{" expression "}")*
    expression := name ("." field)* | integer | expression ("+" | "-" | "*" | "//" | "%") expression
                | "-" expression | "(" expression ")"

`{tiles.m}` is a field of a parameter whose value is a mapping.

A template that is just one pair of braces keeps the type of its value; any other gives text.
Arithmetic is limited to whole numbers and compiled from the syntax tree, not by Python.

Ids and records show a parameter's value by its label, which is a scalar: the value itself; the
`$name` of a mapping; or a list or mapping in one line without spaces, keys sorted: `[64,128]`,
`{tile_m:64,tile_n:128}`. If that line is too long, the label is `#` and the first eight digits of
the SHA-256 of the value's canonical JSON.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from pallasc.errors import SpecError
from pallasc.specs.canonical import Scalar as Scalar
from pallasc.specs.canonical import canonical_json, digest, plain
from pallasc.specs.spelling import shortened, show, suggestion

if TYPE_CHECKING:
    Value = Scalar | list["Value"] | dict[str, "Value"]
    """JSON-like data: a possible value of a parameter."""
else:
    Value = Any  # for msgspec, which reads annotations and has no recursive types

NAME = "$name"
"""The key that names a mapping; not part of the mapping's value."""

_LONGEST_LABEL = 48

_PIECES = re.compile(r"(\{\{|\}\}|\{[^{}]*\}|[{}])")
_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_LONGEST_EXPRESSION = 200
_LARGEST_NUMBER = 2**63

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
        if abs(result) >= _LARGEST_NUMBER:
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


class Choice(NamedTuple):
    """One possible value of a parameter.

    Attributes:
        label: name for people.
        content: the value that templates see.
        key: equal for equal values of equal type and name.
    """

    label: Scalar
    content: Value
    key: str


Point = dict[str, Choice]
"""One choice for each parameter."""


def choice_of(value: Value) -> Choice:
    """Return the choice for a value."""
    content = value
    if isinstance(value, dict) and NAME in value:
        content = {key: item for key, item in value.items() if key != NAME}
    return Choice(label_of(value), content, typed(value))


def label_of(value: Value) -> Scalar:
    """Return the label of a value."""
    if not isinstance(value, list | dict):
        return value
    if isinstance(value, dict) and NAME in value:
        return str(value[NAME])
    line = _line(value)
    return line if len(line) <= _LONGEST_LABEL else f"#{digest(canonical_json(value))[:8]}"


def contents(point: Point) -> dict[str, Value]:
    """Return the values of a point as templates see them."""
    return {name: choice.content for name, choice in point.items()}


def labels(point: Point) -> tuple[tuple[str, Scalar], ...]:
    """Return the labels of a point's values, in the order of its parameters."""
    return tuple((name, choice.label) for name, choice in point.items())


def point_text(labelled: Mapping[str, Scalar]) -> str:
    """Return a point as messages show it: `m=8, tiles=small`."""
    return ", ".join(f"{name}={plain(value)}" for name, value in labelled.items())


def _line(value: Value) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_line, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{_line(value[key])}' for key in sorted(value))}}}"
    return plain(value)


def typed(value: object) -> str:
    """Return text that is equal for equal values of equal type: 1, 1.0, true, and '1' differ."""
    if isinstance(value, dict):
        return f"{{{','.join(sorted(f'{k!r}:{typed(v)}' for k, v in value.items()))}}}"
    if isinstance(value, list):
        return f"[{','.join(map(typed, value))}]"
    return f"{type(value).__name__}:{value!r}"
