"""Values of parameters: scalars, and lists and mappings that go by a short text.

What a variant's id and its record hold of a value is its label, which is a scalar: the value
itself; the `$name` of a mapping; or a list or mapping in one line without spaces, its keys sorted:
`[64,128]`, `{tile_m:64,tile_n:128}`. Where that line is long, the label is `#` and the first eight
digits of the SHA-256 of the value's canonical JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pallasc.specs.canonical import canonical_json, digest, plain
from pallasc.specs.fields import typed
from pallasc.specs.templates import Scalar, Value

NAME = "$name"
"""The key that names a mapping, and is not part of its value."""

_LONGEST_LABEL = 48


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """One value that a parameter can have.

    Attributes:
        label: its name for people.
        content: what templates see.
        key: equal for equal values of equal type and name.
    """

    label: Scalar
    content: Value
    key: str


Point = dict[str, Choice]
"""One value for each parameter."""


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
    """Return what templates see of a point."""
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
