"""Find the spec files in folders.

A folder stands for its YAML files, except tables of tuned kernels, and for its Python files that
declare kernels, that is, call `pallasc.kernel` or `pallasc.declare` outside functions. Such calls
are found by parsing; nothing is executed here. Subfolders are not searched, because `tests/` and
environments are among them; a subfolder with specs is reported as skipped.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from pallasc.errors import SpecError
from pallasc.specs.spelling import nearest
from pallasc.specs.user_files import check_regular

TABLE_SUFFIX = ".tuned.yaml"
"""Suffix of table files; a folder of specs skips them."""

OnSkip = Callable[[str], None]
"""Called with a sentence about folders with specs that are not read."""

_YAML_SUFFIXES = (".yaml", ".yml")
_IS_YAML_SPEC = re.compile(
    rb"^(kernels|programs|schema)[ \t]*:.*^(kernels|programs|schema)[ \t]*:", re.M | re.S
)
_MOST_BYTES = 8 << 20
_DECLARING = ("declare", "kernel", "program")


def spec_files(paths: Iterable[str | Path], *, on_skip: OnSkip = lambda text: None) -> list[str]:
    """Return the spec files in these paths, each once, in the given order.

    Args:
        paths: YAML and Python spec files, and folders.
        on_skip: called if folders in a folder have specs that are not read.

    Raises:
        SpecError: a path does not exist or is not a spec file, or a folder has none.
    """
    files: dict[Path, str] = {}
    for path in paths:
        for file in _files_of(Path(path), on_skip):
            files.setdefault(file.resolve(), str(file))
    return list(files.values())


def _files_of(path: Path, on_skip: OnSkip) -> list[Path]:
    if path.is_dir():
        return _files_in(path, on_skip)
    if not path.exists():
        raise SpecError(f"{path}: there is no such file.", hint=_missing_hint(path))
    if path.name.endswith(TABLE_SUFFIX):
        raise SpecError(
            f"{path}: this is a table of tuned kernels, not a spec file.",
            hint="Name the specs, which find their tables themselves.",
        )
    if path.suffix not in (*_YAML_SUFFIXES, ".py"):
        raise SpecError(f"{path}: not a spec file.", hint="Specs are *.yaml, *.yml or *.py files.")
    check_regular(str(path))
    return [path]


def _missing_hint(path: Path) -> str | None:
    if not path.parent.is_dir():
        return None
    near = nearest(path.name, (child.name for child in path.parent.iterdir()))
    return f"Did you mean {str(path.parent / near)!r}?" if near else None


def _files_in(folder: Path, on_skip: OnSkip) -> list[Path]:
    children = sorted(folder.iterdir())
    files = [child for child in children if child.suffix in _YAML_SUFFIXES or _is_spec(child)]
    files = [file for file in files if not file.name.endswith(TABLE_SUFFIX)]
    below = [
        str(child)
        for child in children
        if child.is_dir() and child.name[0] not in "._" and any(map(_is_spec, child.iterdir()))
    ]
    if not files:
        inside = f" {below[0]} has some: name it." if below else ""
        raise SpecError(
            f"{folder}: no spec files (*.yaml, *.yml, or *.py that declares kernels) in this "
            f"folder.{inside}",
            hint="pallasc init writes an example.",
        )
    if below:
        on_skip(f"specs in {', '.join(below)} are not read: name the folders to read them.")
    return files


def _is_spec(file: Path) -> bool:
    if file.suffix in _YAML_SUFFIXES:
        return _IS_YAML_SPEC.search(_content(file)) is not None
    return file.suffix == ".py" and _declares_kernels(_content(file))


def _content(file: Path) -> bytes:
    """Return a file's bytes; empty if it is not a regular file, is unreadable, or is huge."""
    try:
        if not file.is_file() or file.stat().st_size > _MOST_BYTES:
            return b""
        return file.read_bytes()
    except OSError:
        return b""


def _declares_kernels(content: bytes) -> bool:
    """Return True if a Python file declares kernels when it is imported.

    A file with syntax errors counts if it mentions pallasc, to report its error.
    """
    if b"pallasc" not in content or not any(name.encode() in content for name in _DECLARING):
        return False
    try:
        tree = ast.parse(content)
        names = set(_declaring_names(tree))
        return any(
            isinstance(node, ast.Call) and ast.unparse(node.func) in names
            for node in _outside_of_functions(tree)
        )
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True


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
