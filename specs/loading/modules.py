"""Users' Python files: find those that declare kernels, and load one as a module.

A module gets a name that no package has. Loading it executes user code, so only worker processes do
it.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Literal

from pallasc.errors import Location, SpecError, message_of

_PREFIX = "_pallasc_spec_"
_DECLARING = ("declare", "kernel", "program")


class _UncachedLoader(SourceFileLoader):
    """Always compiles the source: cached bytecode misses an edit within the same second."""

    def path_stats(self, path: Any) -> Any:
        raise OSError("no bytecode cache")


def module_name(path: str | Path) -> str:
    """Return the module name of a loaded file, `_pallasc_spec_<stem>`."""
    return f"{_PREFIX}{Path(path).stem}"


def shown_name(module: str) -> str:
    """Return the name of a module for messages; a spec file is shown by its file name."""
    return f"{module.removeprefix(_PREFIX)}.py" if module.startswith(_PREFIX) else module


def load_module(path: str | Path, *, fresh: bool = False, shown: str | None = None) -> ModuleType:
    """Execute a Python file and return its module; its folder becomes importable.

    Args:
        path: the file.
        fresh: execute it again, even if this process has already done so.
        shown: the path to show in messages, if it differs.

    Raises:
        SpecError: the file does not exist, or executing it raised; the location is the line in it.
    """
    file = Path(path).resolve()
    name = module_name(file)
    loaded = sys.modules.get(name)
    if loaded is not None and loaded.__file__ == str(file) and not fresh:
        return loaded
    if not file.is_file():
        raise SpecError(f"{shown or path}: there is no such file.")
    # As `python FILE` does, so that a kernel can import files in the same folder.
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    return _execute(name, file, shown or str(path))


def _execute(name: str, file: Path, shown: str) -> ModuleType:
    loader = _UncachedLoader(name, str(file))
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    if spec is None:
        raise SpecError(f"{shown}: not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module during execution
    try:
        loader.exec_module(module)
    except SpecError:
        del sys.modules[name]
        raise
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise SpecError(_summary(error), location=_place(error, file, shown)) from error
    return module


def _summary(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else message_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _place(error: BaseException, file: Path, shown: str) -> Location:
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return Location(shown, error.lineno or 0, error.offset or 0)
    return Location(shown, _last_line(error.__traceback__, str(file)))


def _last_line(trace: TracebackType | None, file: str) -> int:
    line = 0
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def python_kind(content: bytes) -> Literal["spec", "unclear"] | None:
    """Return "spec" if a Python file declares kernels, "unclear" if it may do so when it runs.

    A file with syntax errors counts as a spec if it mentions pallasc, to report its error.
    """
    if b"pallasc" not in content or not any(name.encode() in content for name in _DECLARING):
        return None
    try:
        tree = ast.parse(content)
        names = set(_declaring_names(tree))
        if any(_is_call_of(names, node) for node in _outside_of_functions(tree)):
            return "spec"
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "spec"
    return "unclear" if any(_is_call_of(names, node) for node in ast.walk(tree)) else None


def _declaring_names(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted names of the declaring functions in a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "pallasc":
                    own = alias.asname or "pallasc"
                    yield from (f"{own}.{name}" for name in _DECLARING)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "pallasc":
            for alias in node.names:
                if alias.name in _DECLARING:
                    yield alias.asname or alias.name
                elif alias.name == "*":
                    yield from _DECLARING


def _is_call_of(names: set[str], node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in names


def _outside_of_functions(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run when a module is imported, including decorators of functions."""
    yield node
    children: Iterable[ast.AST] = ast.iter_child_nodes(node)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        children = node.decorator_list
    elif isinstance(node, ast.Lambda):
        children = ()
    for child in children:
        yield from _outside_of_functions(child)
