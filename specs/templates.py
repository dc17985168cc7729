"""Text with parameters in braces: `"{m}"`, `"tile_{m}"`, `"{m // 2 + 1}"`.

Grammar:
    template   := (text | "{{" | "}}" | "{" expression "}")*
    expression := name | integer | expression ("+" | "-" | "*" | "//" | "%") expression
                | "-" expression | "(" expression ")"

A template that is one brace pair and nothing else keeps the type of its value; any other gives
text. Arithmetic is over whole numbers only and is evaluated over the syntax tree, never by Python.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from pallasc.errors import SpecError
from pallasc.specs.spelling import plain, shortened, show, suggestion

Scalar = str | int | float | bool | None
"""What a parameter can be."""

_PIECES = re.compile(r"(\{\{|\}\}|\{[^{}]*\}|[{}])")
_LONGEST_EXPRESSION = 200
LONGEST_TEMPLATE = 10_000
"""Characters of text with braces, before and after they are filled."""
_LARGEST_NUMBER = 2**63

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
}


@dataclass(frozen=True, slots=True)
class Expression:
    """What stands between one pair of braces."""

    text: str
    names: tuple[str, ...]

    def value(self, params: Mapping[str, Scalar]) -> Scalar:
        """Evaluate over the parameters; a single name gives its value as it is.

        Raises:
            SpecError: a parameter is unknown or not a whole number, or a division by zero.
        """
        for name in self.names:
            if name not in params:
                raise SpecError(
                    f"unknown parameter {name!r} in {{{self.text}}}.",
                    hint=suggestion(name, params, otherwise="Parameters")
                    or "Give it values under 'matrix'.",
                )
        body = _parse(self.text)
        if isinstance(body, ast.Name):
            return params[body.id]
        return _evaluate(body, params, self.text)


@dataclass(frozen=True, slots=True)
class Template:
    """Text with expressions in it, checked but not yet filled."""

    text: str
    parts: tuple[str | Expression, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the parameters it uses, in order of appearance."""
        found = [n for part in self.parts if isinstance(part, Expression) for n in part.names]
        return tuple(dict.fromkeys(found))

    def fill(self, params: Mapping[str, Scalar]) -> Scalar:
        """Return the text with values in place, or the value itself when nothing is around it.

        Raises:
            SpecError: an expression cannot be evaluated.
        """
        if len(self.parts) == 1 and isinstance(self.parts[0], Expression):
            return self.parts[0].value(params)
        texts = [
            part if isinstance(part, str) else plain(part.value(params)) for part in self.parts
        ]
        if len(texts) > 1 and sum(map(len, texts)) > LONGEST_TEMPLATE:
            raise SpecError(f"{show(self.text)} gives more than {LONGEST_TEMPLATE} characters.")
        return "".join(texts)


def parse_template(text: str) -> Template:
    """Read text with braces.

    Raises:
        SpecError: a brace has no partner, what stands between them is no expression, or the text
            is too long.
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
                f"{show(text)}: a brace has no partner.", hint="Write {{ or }} for a plain brace."
            )
        if piece.startswith("{") and piece != "{{":
            parts.append(_parse_expression(piece[1:-1].strip()))
        elif piece:
            parts.append(piece[0] if piece in ("{{", "}}") else piece)
    return Template(text, tuple(_joined(parts)))


def is_template(text: str) -> bool:
    """Return whether text holds a brace, so that it is not what it seems."""
    return "{" in text or "}" in text


def _joined(parts: list[str | Expression]) -> Iterator[str | Expression]:
    for is_text, group in itertools.groupby(parts, lambda part: isinstance(part, str)):
        if is_text:
            yield "".join(part for part in group if isinstance(part, str))
        else:
            yield from group


@lru_cache(maxsize=4096)
def _parse_expression(text: str) -> Expression:
    try:
        body = _parse(text)
        names = _names(body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SpecError(
            f"{{{shortened(text)}}} is not an expression.",
            hint="Use parameters, whole numbers, + - * // % and parentheses; "
            "write {{ and }} for plain braces.",
        ) from None
    return Expression(text, tuple(dict.fromkeys(names)))


@lru_cache(maxsize=4096)
def _parse(text: str) -> ast.expr:
    if len(text) > _LONGEST_EXPRESSION:
        raise ValueError("too long")
    return ast.parse(text, mode="eval").body


def _names(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return []
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return [*_names(node.left), *_names(node.right)]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _names(node.operand)
    raise ValueError(f"{type(node).__name__} is not allowed")


def _evaluate(node: ast.expr, params: Mapping[str, Scalar], text: str) -> int:
    if isinstance(node, ast.Name):
        return _whole(params[node.id], node.id, text)
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
