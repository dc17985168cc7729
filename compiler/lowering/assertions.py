"""Explain an assertion without a message: its line, and the values of its names."""

from __future__ import annotations

import ast
import contextlib
import traceback
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

_LONGEST_TEXT = 60


def failed_line(error: BaseException) -> str:
    """Return the source line that raised an error, with the values of its names."""
    trace = error.__traceback__
    if trace is None:
        return "no message"
    while trace.tb_next is not None:
        trace = trace.tb_next
    line = traceback.extract_tb(trace)[-1].line
    if not line:
        return "no message"
    values = [*dict.fromkeys(_values(line, trace.tb_frame.f_locals))]
    return f"{line}, where {', '.join(values)}" if values else line


def _values(line: str, variables: Mapping[str, object]) -> Iterator[str]:
    """Yield `name = value` for each local variable of an assertion, or attribute of such."""
    try:
        (statement,) = ast.parse(line).body
    except (SyntaxError, ValueError):  # a part of a longer statement, or of several
        return
    if not isinstance(statement, ast.Assert):
        return
    below = {id(node.value) for node in ast.walk(statement) if isinstance(node, ast.Attribute)}
    for node in ast.walk(statement.test):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            value = _attribute(variables.get(node.value.id), node.attr)
        elif isinstance(node, ast.Name) and id(node) not in below:
            value = variables.get(node.id)
        else:
            continue
        text = _shown(value)
        if text:
            yield f"{ast.unparse(node)} = {text}"


def _attribute(value: Any, name: str) -> Any:
    with contextlib.suppress(Exception):  # properties may raise anything
        return getattr(value, name)
    return None


def _shown(value: Any) -> str:
    """Return a value's text, "" where it tells nothing: None, functions, addresses."""
    if value is None or callable(value) or isinstance(value, ModuleType):
        return ""
    text = ""
    with contextlib.suppress(Exception):
        text = repr(value)
    return "" if " at 0x" in text or "\n" in text or len(text) > _LONGEST_TEXT else text
