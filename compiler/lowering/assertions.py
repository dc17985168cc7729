"""Say what an assertion without words was about: its line, and the values of its names."""

from __future__ import annotations

import ast
import contextlib
import traceback
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

_MOST_LETTERS = 60


def failed_line(error: BaseException) -> str:
    """Return the source line that raised an error without words, with what its names stood for."""
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


def _values(line: str, known: Mapping[str, Any]) -> Iterator[str]:
    """Yield `name = value` for each local variable of an assertion, or attribute of one."""
    try:
        (statement,) = ast.parse(line).body
    except (SyntaxError, ValueError):  # a part of a longer statement, or of several
        return
    if not isinstance(statement, ast.Assert):
        return
    below = {id(node.value) for node in ast.walk(statement) if isinstance(node, ast.Attribute)}
    for node in ast.walk(statement.test):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found = _attribute(known.get(node.value.id), node.attr)
        elif isinstance(node, ast.Name) and id(node) not in below:
            found = known.get(node.id)
        else:
            continue
        text = _shown(found)
        if text:
            yield f"{ast.unparse(node)} = {text}"


def _attribute(value: Any, name: str) -> Any:
    with contextlib.suppress(Exception):  # properties may raise anything
        return getattr(value, name)
    return None


def _shown(value: Any) -> str:
    """Return a value's text, or nothing where that says nothing: no value, functions, addresses."""
    if value is None or callable(value) or isinstance(value, ModuleType):
        return ""
    text = ""
    with contextlib.suppress(Exception):
        text = repr(value)
    return "" if " at 0x" in text or "\n" in text or len(text) > _MOST_LETTERS else text
