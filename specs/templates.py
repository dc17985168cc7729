"""Text with parameters in braces: `"{m}"`, `"tile_{m}"`, `"{m // 2 + 1}"`.

Grammar:
    template   := (text | "{{" | "}}" | "{" expression "}")*
    expression := name ("." field)* | integer | expression ("+" | "-" | "*" | "//" | "%") expression
                | "-" expression | "(" expression ")"

`{tiles.m}` is a field of a parameter whose value is a mapping.

A template that is just one pair of braces keeps the type of its value; any other gives text.
Arithmetic is limited to whole numbers and evaluated over the syntax tree, not by Python.

Ids and records show a parameter's value by its label, which is a scalar: the value itself; the
`$name` of a mapping; or a list or mapping in one line without spaces, keys sorted: `[64,128]`,
`{tile_m:64,tile_n:128}`. If that line is too long, the label is `#` and the first eight digits of
the SHA-256 of the value's canonical JSON.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
_LONGEST_EXPRESSION = 200
LONGEST_TEMPLATE = 10_000
"""Maximum length of text with braces, before and after filling."""
_LARGEST_NUMBER = 2**63

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
}


class Expression(NamedTuple):
    """The content of one pair of braces, its syntax tree, and the parameters in it."""

    text: str
    body: ast.expr
    names: tuple[str, ...]

    def value(self, params: Mapping[str, Value]) -> Value:
        """Evaluate with these parameters; a name or a field keeps the type of its value.

        Raises:
            SpecError: a parameter is unknown, lacks a field, or is not a whole number, or the
                expression divides by zero.
        """
        for name in self.names:
            if name not in params:
                raise SpecError(
                    f"unknown parameter {name!r} in {{{self.text}}}.",
                    hint=suggestion(name, params, otherwise="Parameters")
                    or "Give it values under 'matrix'.",
                )
        if isinstance(self.body, ast.Name | ast.Attribute):
            return _looked_up(self.body, params, self.text)
        return _evaluate(self.body, params, self.text)

    def text_of(self, params: Mapping[str, Value]) -> str:
        """Evaluate to text, for insertion into longer text.

        Raises:
            SpecError: as for `value`, or the value is a list or a mapping.
        """
        value = self.value(params)
        if isinstance(value, list | dict):
            raise SpecError(
                f"{{{self.text}}} is {show(value)}, which cannot be part of text.",
                hint=_fields_hint(self.text, value),
            )
        return plain(value)


class Template(NamedTuple):
    """Text with expressions, checked but not filled in."""

    text: str
    parts: tuple[str | Expression, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the parameters used, in order of appearance."""
        names = [n for part in self.parts if isinstance(part, Expression) for n in part.names]
        return tuple(dict.fromkeys(names))

    def fill(self, params: Mapping[str, Value]) -> Value:
        """Return the text with values filled in, or the value itself for a single expression.

        Raises:
            SpecError: an expression cannot be evaluated.
        """
        if len(self.parts) == 1 and isinstance(self.parts[0], Expression):
            return self.parts[0].value(params)
        texts = [part if isinstance(part, str) else part.text_of(params) for part in self.parts]
        if len(texts) > 1 and sum(map(len, texts)) > LONGEST_TEMPLATE:
            raise SpecError(f"{show(self.text)} gives more than {LONGEST_TEMPLATE} characters.")
        return "".join(texts)


def parse_template(text: str) -> Template:
    """Parse text with braces.

    Raises:
        SpecError: braces are unbalanced or hold no expression, or the text is too long.
    """
    if not is_template(text):
        return Template(text, (text,) if text else ())
    if len(text) > LONGEST_TEMPLATE:
        raise SpecError(
            f"{show(text)}: text with braces has at most {LONGEST_TEMPLATE} characters."
        )
    return _parse_parts(text)


@lru_cache(maxsize=4096)
def _parse_parts(text: str) -> Template:
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
    return Template(text, tuple(parts))


def is_template(text: str) -> bool:
    """Return True if the text contains a brace."""
    return "{" in text or "}" in text


def _parse_expression(text: str) -> Expression:
    try:
        if len(text) > _LONGEST_EXPRESSION:
            raise ValueError("too long")
        body = ast.parse(text, mode="eval").body
        return Expression(text, body, tuple(dict.fromkeys(_names(body))))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SpecError(
            f"{{{shortened(text)}}} is not an expression.",
            hint="Use parameters, whole numbers, + - * // % and parentheses; "
            "write {{ and }} for plain braces.",
        ) from None


def _names(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        inside = node.value
        while isinstance(inside, ast.Attribute):
            inside = inside.value
        if isinstance(inside, ast.Name):
            return [inside.id]
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return []
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return [*_names(node.left), *_names(node.right)]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _names(node.operand)
    raise ValueError(f"{type(node).__name__} is not allowed")


def _looked_up(node: ast.expr, params: Mapping[str, Value], text: str) -> Value:
    if not isinstance(node, ast.Attribute):
        return params[node.id] if isinstance(node, ast.Name) else None
    around = _looked_up(node.value, params, text)
    name = ast.unparse(node.value)
    if not isinstance(around, dict):
        raise SpecError(f"{{{text}}}: {name} is {show(around)}, which has no fields.")
    if node.attr not in around:
        raise SpecError(
            f"{{{text}}}: {name} has no field {node.attr!r}.",
            hint=suggestion(node.attr, around, otherwise="It has"),
        )
    return around[node.attr]


def _fields_hint(text: str, value: object) -> str | None:
    fields = [key for key in value if key.isidentifier()] if isinstance(value, dict) else []
    return f"Take a field of it: {{{text}.{fields[0]}}}." if fields else None


def _evaluate(node: ast.expr, params: Mapping[str, Value], text: str) -> int:
    if isinstance(node, ast.Name | ast.Attribute):
        return _whole(_looked_up(node, params, text), ast.unparse(node), text)
    if isinstance(node, ast.Constant):
        return _whole(node.value, text, text)
    if isinstance(node, ast.UnaryOp):
        return -_evaluate(node.operand, params, text)
    if isinstance(node, ast.BinOp):
        left, right = (_evaluate(side, params, text) for side in (node.left, node.right))
        return _bounded(_apply(type(node.op), left, right, text), text)
    raise SpecError(f"{{{text}}} is not an expression.")


def _apply(operator: type[ast.operator], left: int, right: int, text: str) -> int:
    if right == 0 and operator in (ast.FloorDiv, ast.Mod):
        raise SpecError(f"{{{text}}} divides by zero.")
    return _OPERATORS[operator](left, right)


def _whole(value: object, name: str, text: str) -> int:
    if type(value) is not int:
        raise SpecError(
            f"{{{text}}} needs whole numbers, and {name} is {show(value)}.",
            hint="Arithmetic in braces is over whole numbers only.",
        )
    return _bounded(value, text)


def _bounded(value: int, text: str) -> int:
    if abs(value) >= _LARGEST_NUMBER:
        raise SpecError(f"{{{text}}} does not fit into 64 bits.")
    return value


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
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
