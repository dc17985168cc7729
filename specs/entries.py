"""Entry points: `package.module:function` and `file.py:function`, checked without importing.

Grammar:
    entry    := (module | file) ":" name ("." name)*
    module   := name ("." name)*
    file     := a relative path with `/`, ending in `.py`
"""

from __future__ import annotations

import ast
import pkgutil
import posixpath
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from pallasc.errors import SpecError
from pallasc.specs.regular import read_regular
from pallasc.specs.spelling import nearest, show, suggestion

_ATTRIBUTES = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_MOST_BYTES = 16 * 2**20
"""Size of a module that is looked into; names in larger ones are left to the import."""

_FORM = "Write package.module:function, or file.py:function."


@dataclass(frozen=True, slots=True)
class Entry:
    """The two halves of an entry point.

    Attributes:
        source: the module, or the path of the file relative to the spec's folder.
        attribute: what to take from it, dotted.
    """

    source: str
    attribute: str

    @property
    def is_file(self) -> bool:
        """Return whether the source is a file and not a module."""
        return self.source.endswith(".py")

    def __str__(self) -> str:
        return f"{self.source}:{self.attribute}"


def parse_entry(text: str) -> Entry:
    """Split an entry point into its halves and normalise the path of a file.

    Raises:
        SpecError: it is not in one of the two forms.
    """
    source, colon, attribute = text.partition(":")
    if not colon or _ATTRIBUTES.fullmatch(attribute) is None:
        raise SpecError(f"{show(text)} is not an entry point.", hint=_FORM)
    if source.endswith(".py"):
        return Entry(_normal_path(source), attribute)
    if _ATTRIBUTES.fullmatch(source) is None:
        raise SpecError(f"{show(text)} is not an entry point.", hint=_FORM)
    return Entry(source, attribute)


def check_entry(entry: Entry, base_dir: str) -> None:
    """Look for what an entry point names, reading files but importing nothing.

    What only shows when the module runs (names made by `setattr`, modules made at run time) is
    left to the import.

    A module is looked for in the spec's folder first, as workers do, unless it is one of Python's.

    Raises:
        SpecError: the file, the module or the name does not exist; the hint has the nearest one.
    """
    path = _check_file(entry, base_dir) if entry.is_file else _find_module(entry.source, base_dir)
    if path is not None:
        _check_name(entry, path)


def check_data_file(text: str, base_dir: str) -> str:
    """Return the normalised relative path of a data file that exists.

    Raises:
        SpecError: it is absolute, or there is no such file.
    """
    relative = _normal_path(text)
    _existing(relative, base_dir)
    return relative


def _normal_path(text: str) -> str:
    if posixpath.isabs(text) or "\\" in text:
        raise SpecError(
            f"{show(text)} is not a relative path.", hint="Paths are relative to the spec's folder."
        )
    return posixpath.normpath(text)


def _check_file(entry: Entry, base_dir: str) -> Path:
    return _existing(entry.source, base_dir)


def _existing(relative: str, base_dir: str) -> Path:
    path = Path(base_dir, relative)
    if path.is_file():
        return path
    found = nearest(path.name, [p.name for p in _listed(path.parent) if p.is_file()])
    parent = posixpath.dirname(relative)
    raise SpecError(
        f"file {relative!r} does not exist.",
        hint=f"Did you mean {posixpath.join(parent, found)!r}?"
        if found
        else "Paths are relative to the spec's folder.",
    )


def _listed(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _find_module(module: str, base_dir: str) -> Path | None:
    top, *rest = module.split(".")
    # Workers have Python's own modules loaded before they look into the spec's folder.
    own = top in sys.stdlib_module_names
    found = _find(top, [*sys.path, base_dir] if own else [base_dir, *sys.path])
    if found is None:
        raise SpecError(
            f"module {top!r} is neither beside the spec nor installed.",
            hint=_module_hint(top, base_dir),
        )
    name = top
    for part in rest:
        if not found.submodule_search_locations:
            return None
        folders = list(found.submodule_search_locations)
        child = _find(f"{name}.{part}", folders)
        if child is None:
            known = [info.name for info in pkgutil.iter_modules(folders)]
            raise SpecError(
                f"module {name!r} has no submodule {part!r}.",
                hint=suggestion(part, known, otherwise="Submodules"),
            )
        name, found = f"{name}.{part}", child
    return Path(found.origin) if found.origin and found.origin.endswith(".py") else None


def _find(name: str, folders: list[str]) -> ModuleSpec | None:
    """Find a module in folders as Python does, with the finders of editable installs."""
    for finder in sys.meta_path:
        if finder is PathFinder:
            # By its last part: for a namespace it would look for the parent in `sys.modules`.
            found = PathFinder.find_spec(name.rpartition(".")[2], folders)
        else:
            find = getattr(finder, "find_spec", None)
            found = find(name, folders if "." in name else None) if find else None
        if found is not None:
            return found
    return None


def _module_hint(top: str, base_dir: str) -> str:
    listed = _listed(Path(base_dir))
    beside = {path.stem for path in listed if path.suffix == ".py" or path.is_dir()}
    installed = {info.name for info in pkgutil.iter_modules()}
    found = nearest(top, beside) or nearest(top, installed | sys.stdlib_module_names)
    if found is not None:
        return f"Did you mean {found!r}?"
    return "Install the package that has it, or name a file: file.py:function."


def _check_name(entry: Entry, path: Path) -> None:
    name = entry.attribute.partition(".")[0]
    names = _top_level_names(path)
    if names is None or name in names or name in ("__file__", "__name__", "__doc__"):
        return
    public = [known for known in names if not known.startswith("_")]
    raise SpecError(
        f"{entry.source!r} has no {name!r}.", hint=suggestion(name, public, otherwise="It has")
    )


@lru_cache(maxsize=256)
def _top_level_names(path: Path) -> frozenset[str] | None:
    try:
        names = frozenset(_bound(ast.parse(read_regular(str(path), most_bytes=_MOST_BYTES))))
    except (SpecError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return None if {"*", "__getattr__"} & names else names


def _bound(node: ast.AST) -> Iterator[str]:
    """Yield the names that a statement of a module's own level binds, and those inside it."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
        return
    if isinstance(node, ast.ImportFrom) and node.module == "__future__":
        return
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.Call) and _is_dynamic(node):
        yield "*"
    for part in ast.iter_child_nodes(node):
        yield from _bound(part)


def _is_dynamic(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id in ("globals", "setattr", "exec")
