"""Users' Python: entry points, checked without importing them, and files loaded as modules.

Grammar of entry points, `package.module:function` and `file.py:function`:
    entry    := (module | file) ":" name ("." name)*
    module   := name ("." name)*
    file     := a relative path with `/`, ending in `.py`

A file that declares kernels is loaded as a module with a name that no package has. Loading it
executes user code, so only worker processes do it.
"""

from __future__ import annotations

import ast
import importlib.util
import posixpath
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from pallasc.errors import Location, SpecError, message_of
from pallasc.specs.spelling import nearest, show, suggestion
from pallasc.specs.user_files import read_regular

_ATTRIBUTES = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_MOST_BYTES = 16 * 2**20
"""Largest module that is parsed; names in larger ones are checked when imported."""

_DYNAMIC = frozenset(("globals", "setattr", "exec", "locals", "vars"))
"""Functions that may bind names that parsing does not reveal."""

_FORM = "Write package.module:function, or file.py:function."


class Entry(NamedTuple):
    """An entry point, split at the colon.

    Attributes:
        source: the module, or the path of the file relative to the spec's folder.
        attribute: dotted name in the source.
    """

    source: str
    attribute: str

    @property
    def is_file(self) -> bool:
        """Return True if the source is a file, not a module."""
        return self.source.endswith(".py")

    def __str__(self) -> str:
        return f"{self.source}:{self.attribute}"


def parse_entry(text: str) -> Entry:
    """Split an entry point at the colon and normalize the path of a file.

    Raises:
        SpecError: the text has neither form.
    """
    source, colon, attribute = text.partition(":")
    if not colon or _ATTRIBUTES.fullmatch(attribute) is None:
        raise SpecError(f"{show(text)} is not an entry point.", hint=_FORM)
    if source.endswith(".py"):
        return Entry(normal_path(source), attribute)
    if _ATTRIBUTES.fullmatch(source) is None:
        raise SpecError(f"{show(text)} is not an entry point.", hint=_FORM)
    return Entry(source, attribute)


def check_entry(entry: Entry, base_dir: str) -> None:
    """Check that an entry point exists by reading source files, without importing them.

    Names that appear only at run time (created by `setattr`, or in generated modules) are checked
    when imported. As in workers, the spec's folder is searched first, except for modules of the
    standard library.

    Raises:
        SpecError: the file, module, or name does not exist; the hint has the nearest one.
    """
    find = _existing if entry.is_file else _find_module
    path = find(entry.source, base_dir)
    if path is not None:
        _check_name(entry, path)


def check_data_file(text: str, base_dir: str) -> str:
    """Return the normalized relative path of a data file that exists.

    Raises:
        SpecError: the path is absolute, or the file does not exist.
    """
    relative = normal_path(text)
    _existing(relative, base_dir)
    return relative


def normal_path(text: str) -> str:
    """Normalize a path relative to a spec's folder.

    Raises:
        SpecError: the path is absolute or contains a backslash.
    """
    if posixpath.isabs(text) or "\\" in text:
        raise SpecError(
            f"{show(text)} is not a relative path.", hint="Paths are relative to the spec's folder."
        )
    return posixpath.normpath(text)


def _existing(relative: str, base_dir: str) -> Path:
    path = Path(base_dir, relative)
    if path.is_file():
        return path
    near = nearest(path.name, [p.name for p in _listed(path.parent) if p.is_file()])
    parent = posixpath.dirname(relative)
    raise SpecError(
        f"file {relative!r} does not exist.",
        hint=f"Did you mean {posixpath.join(parent, near)!r}?"
        if near
        else "Paths are relative to the spec's folder.",
    )


def _listed(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _find_module(module: str, base_dir: str) -> Path | None:
    top, *rest = module.split(".")  # parent packages are located, not imported
    # In workers, standard library modules are loaded before the spec's folder is searched.
    own = top in sys.stdlib_module_names
    spec = _find(top, [*sys.path, base_dir] if own else [base_dir, *sys.path])
    if spec is None:
        raise SpecError(
            f"module {top!r} is neither next to the spec nor installed.",
            hint=_module_hint(top, base_dir),
        )
    name = top
    for part in rest:
        if not spec.submodule_search_locations:
            return None
        folders = list(spec.submodule_search_locations)
        child = _find(f"{name}.{part}", folders)
        if child is None:
            import pkgutil

            known = [info.name for info in pkgutil.iter_modules(folders)]
            raise SpecError(
                f"module {name!r} has no submodule {part!r}.",
                hint=suggestion(part, known, otherwise="Submodules"),
            )
        name, spec = f"{name}.{part}", child
    return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None


def _find(name: str, folders: list[str]) -> ModuleSpec | None:
    """Find a module in folders as Python does, including the finders of editable installs."""
    for finder in sys.meta_path:
        if finder is PathFinder:
            # Pass the last component only: PathFinder looks up a namespace's parent in
            # `sys.modules`.
            spec = PathFinder.find_spec(name.rpartition(".")[2], folders)
        else:
            find = getattr(finder, "find_spec", None)
            spec = find(name, folders if "." in name else None) if find else None
        if spec is not None:
            return spec
    return None


def _module_hint(top: str, base_dir: str) -> str:
    files = _listed(Path(base_dir))
    beside = {path.stem for path in files if path.suffix == ".py" or path.is_dir()}
    near = nearest(top, beside | sys.stdlib_module_names)
    otherwise = "Install the package that has it, or name a file: file.py:function."
    return f"Did you mean {near!r}?" if near else otherwise


def _check_name(entry: Entry, path: Path) -> None:
    """Check the first name of an entry point; attributes of it are checked when imported."""
    name = entry.attribute.partition(".")[0]
    names = _names(path)
    if names is None or name in names or name in ("__file__", "__name__", "__doc__"):
        return
    public = [known for known in names if not known.startswith("_")]
    raise SpecError(
        f"{entry.source!r} has no {name!r}.",
        hint=suggestion(name, public, otherwise="It has"),
    )


def _names(path: Path) -> frozenset[str] | None:
    """Return the names in a module, or None if they are known only at run time."""
    try:
        status = path.stat()
    except OSError:
        return None
    return _read_names(path, status.st_ino, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=256)
def _read_names(path: Path, *state: int) -> frozenset[str] | None:
    """`state` identifies the file's content for the cache."""
    try:
        tree = ast.parse(read_regular(str(path), most_bytes=_MOST_BYTES))
        names = frozenset(_bound(tree))
    except (SpecError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return None if {"*", "__getattr__"} & names else names


def _bound(node: ast.AST) -> Iterator[str]:
    """Yield the names bound by a module-level statement, including nested statements."""
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
    return isinstance(call.func, ast.Name) and call.func.id in _DYNAMIC


_PREFIX = "_pallasc_spec_"


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
    import traceback  # only errors need it

    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno or 0 for frame in frames if frame.filename == str(file)]
    return Location(shown, lines[-1] if lines else 0)
