"""Find the spec files that paths name: files as they are, folders with both kinds of specs.

A folder stands for the YAML files in it, other than tables of tuned kernels, and for those Python
files that declare kernels: that call `pallasc.kernel` or `pallasc.declare` outside of functions.
They are found by reading; nothing is executed here. Folders inside it are not followed, because
`tests/` and environments lie there, too; one that has specs is named as skipped.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal

from pallasc.errors import SpecError
from pallasc.specs.loading.tune_fields import TABLE_SUFFIX
from pallasc.specs.spelling import nearest
from pallasc.specs.user_files import check_regular

YAML_SUFFIXES = (".yaml", ".yml")
_DECLARING = ("declare", "kernel")
_IS_YAML_SPEC = re.compile(rb"^(kernels|schema)[ \t]*:.*^(kernels|schema)[ \t]*:", re.M | re.S)
_MOST_FOLDERS = 1000
_MOST_BYTES = 8 << 20
_MOST_NAMED = 5

OnSkip = Callable[[str], None]
"""Called with a sentence for each file that looks like a spec and is not read."""


def spec_files(paths: Iterable[str | Path], *, on_skip: OnSkip = lambda text: None) -> list[str]:
    """Return the spec files of some paths, each once, in the order given.

    Args:
        paths: YAML and Python spec files, and folders.
        on_skip: called for what looks like a spec in a folder and is not read.

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
    if path.suffix not in (*YAML_SUFFIXES, ".py"):
        raise SpecError(f"{path}: not a spec file.", hint="Specs are *.yaml, *.yml or *.py files.")
    check_regular(str(path))
    return [path]


def _missing_hint(path: Path) -> str | None:
    if not path.parent.is_dir():
        return None
    near = nearest(path.name, (child.name for child in path.parent.iterdir()))
    return f"Did you mean {str(path.parent / near)!r}?" if near else None


def _files_in(folder: Path, on_skip: OnSkip) -> list[Path]:
    files = []
    for child in sorted(folder.iterdir()):
        kind = _python_kind(child) if child.suffix == ".py" else None
        if (child.suffix in YAML_SUFFIXES and not _is_table(child)) or kind == "spec":
            files.append(child)
        elif kind == "unclear":
            on_skip(
                f"{child} is not read: it calls pallasc.kernel or pallasc.declare inside functions "
                "only. Name the file itself if it declares kernels."
            )
    below = list(_folders_with_specs(folder))
    if not files:
        inside = f" {below[0]} has some: name it." if below else ""
        raise SpecError(
            f"{folder}: no spec files (*.yaml, *.yml, or *.py that declares kernels) in this "
            f"folder.{inside}",
            hint="pallasc init writes an example.",
        )
    if below:
        more = f" and {len(below) - _MOST_NAMED} more" if len(below) > _MOST_NAMED else ""
        names = ", ".join(map(str, below[:_MOST_NAMED]))
        on_skip(f"specs in {names}{more} are not read: folders in {folder} are not followed.")
    return files


def _folders_with_specs(folder: Path) -> Iterator[Path]:
    """Yield the folders below a folder that have specs, hidden ones left out."""
    walk = os.walk(folder)
    for number, (place, folders, names) in enumerate(walk):
        if number >= _MOST_FOLDERS:
            return
        if "pyvenv.cfg" in names:
            folders.clear()
            continue
        folders[:] = sorted(f for f in folders if not f.startswith((".", "__")))
        if number and any(_is_spec(Path(place, name)) for name in names):
            yield Path(place)


def _is_table(file: Path) -> bool:
    return file.name.endswith(TABLE_SUFFIX)


def _is_spec(file: Path) -> bool:
    if file.suffix in YAML_SUFFIXES:
        return not _is_table(file) and _IS_YAML_SPEC.search(_content(file)) is not None
    return file.suffix == ".py" and _python_kind(file) == "spec"


def _python_kind(file: Path) -> Literal["spec", "unclear"] | None:
    """Return whether a Python file declares kernels; "unclear" where it may when it runs.

    A file that cannot be parsed counts as a spec if it names pallasc: its error is reported.
    """
    content = _content(file)
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


def _content(file: Path) -> bytes:
    """Return a file's bytes; nothing where it is not a regular file, cannot be read or is huge."""
    try:
        if not file.is_file() or file.stat().st_size > _MOST_BYTES:
            return b""
        return file.read_bytes()
    except OSError:
        return b""


def _declaring_names(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted names that the declaring functions have in a module."""
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
    """Yield the nodes that run when a module is imported; decorators of functions among them."""
    yield node
    children: Iterable[ast.AST] = ast.iter_child_nodes(node)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        children = node.decorator_list
    elif isinstance(node, ast.Lambda):
        children = ()
    for child in children:
        yield from _outside_of_functions(child)
