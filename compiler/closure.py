"""Which source files a compilation read: the modules that an entry point reaches.

Every `import` executed in a compiling process is recorded as an edge from the importing module to
the imported one, also where the module was loaded before, so that the closure of one entry is the
same whatever the process compiled before. Modules of installed packages stand for their package.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.machinery
import importlib.util
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pallasc.specs.modules import module_name

_UNRECORDED = ("jax.", "jaxlib.", "numpy.", "importlib.", "pallasc.compiler.")
_COVERED = frozenset({"jax", "jaxlib", "jax_plugins", "jax_cuda13_plugin", "jax_cuda12_plugin"})
"""Packages that the toolchain's identity covers."""

_edges: dict[str, set[str]] = {}


def record_imports() -> None:
    """Record from now on which module imports which; for compiling processes."""
    plain_import = builtins.__import__
    plain_import_module = importlib.import_module

    def record(importer: str, name: str) -> None:
        if importer and not importer.startswith(_UNRECORDED):
            _edges.setdefault(importer, set()).add(name)

    def recording_import(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        result = plain_import(name, globals, locals, fromlist, level)
        importer = (globals or {}).get("__name__", "")
        full = name if not level else _absolute(name, globals, level)
        record(importer, full)
        for item in fromlist or ():
            record(importer, f"{full}.{item}")
        return result

    def recording_import_module(name: str, package: str | None = None) -> Any:
        result = plain_import_module(name, package)
        record(sys._getframe(1).f_globals.get("__name__", ""), result.__name__)
        return result

    builtins.__import__ = recording_import
    importlib.import_module = recording_import_module


def read_sources_afresh() -> None:
    """Never load bytecode of files outside the installed packages from now on.

    Bytecode counts as fresh while size and modification time, in whole seconds, are those of the
    source: an edit right after an import would not be seen.
    """
    external: Any = importlib.machinery.SourceFileLoader.get_code.__globals__
    plain = external["cache_from_source"]

    def cache_from_source(path: Any, *arguments: Any, **options: Any) -> Any:
        if not _is_installed(str(path)) and not _is_pythons(str(path)):
            raise NotImplementedError("no bytecode for this file")
        return plain(path, *arguments, **options)

    external["cache_from_source"] = cache_from_source


def _absolute(name: str, globals: Any, level: int) -> str:
    package = globals.get("__package__") or globals.get("__name__", "").rpartition(".")[0]
    try:
        return importlib.util.resolve_name("." * level + name, package)
    except ImportError:
        return name


def closure(entries: Iterable[str]) -> set[str]:
    """Return the names of the loaded modules that the modules `entries` reach, themselves too."""
    found: set[str] = set()
    waiting = list(entries)
    while waiting:
        name = waiting.pop()
        if name in found or name not in sys.modules:
            continue
        found.add(name)
        parent = name.rpartition(".")[0]
        waiting += [parent] if parent else []
        if name.split(".")[0] not in _COVERED and not is_standard(name):
            waiting += _edges.get(name, ())
    return found


@dataclass(slots=True)
class Sources:
    """What a closure consists of.

    Attributes:
        files: source files by label: `file:<path relative to base_dir>` for a file of the spec's
            folder that was loaded by path, else `module:<name>`; `locate` finds it again.
        packages: top-level names of installed packages.
        unknown: modules that have no file, and so no digest.
    """

    files: dict[str, Path] = field(default_factory=dict)
    packages: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)

    def changed_since(self, start_ns: int) -> list[str]:
        """Return the labels of files that were changed after a time, or are gone."""
        return [label for label, path in self.files.items() if _touched_ns(path) >= start_ns]


def _touched_ns(path: Path) -> int:
    """Return when a file was last changed, infinitely late if that cannot be said."""
    try:
        status = path.stat()
    except OSError:
        return sys.maxsize
    return max(status.st_mtime_ns, status.st_ctime_ns)


def sources(names: Iterable[str], base_dir: str) -> Sources:
    """Split a closure into source files and installed packages."""
    found = Sources()
    files, packages = found.files, found.packages
    by_path = _loaded_by_path(base_dir)
    for name in sorted(names):
        top = name.split(".")[0]
        if is_standard(name) or top in _COVERED or _is_own(name):
            continue
        file = getattr(sys.modules[name], "__file__", None)
        if name in by_path:
            files[f"file:{by_path[name]}"] = Path(base_dir) / by_path[name]
        elif file is not None and _is_installed(file):
            packages.add(top)
        elif file is not None:
            files[f"module:{name}"] = Path(file)
        elif not getattr(sys.modules[name], "__path__", None):
            found.unknown.add(name)
    return found


def _loaded_by_path(base_dir: str) -> dict[str, str]:
    """Return the modules that were loaded from files, with their paths relative to `base_dir`."""
    base = Path(base_dir).resolve()
    result = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.startswith(module_name("")) and file and Path(file).is_relative_to(base):
            result[name] = Path(file).relative_to(base).as_posix()
    return result


def locate(label: str, base_dir: str) -> Path | None:
    """Return the file that a label of `sources` names now, without importing anything."""
    kind, _, name = label.partition(":")
    if kind == "file":
        return Path(base_dir) / name
    return locate_module(name, (base_dir,))


def locate_module(name: str, folders: Sequence[str]) -> Path | None:
    """Return the source file of a module, looked for in `folders` and where Python looks."""
    top, *rest = name.split(".")
    found = importlib.machinery.PathFinder.find_spec(top, list(folders)) if folders else None
    try:
        found = found or importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    for depth in range(len(rest)):
        if found is None or not found.submodule_search_locations:
            return None
        path = list(found.submodule_search_locations)
        found = importlib.machinery.PathFinder.find_spec(".".join([top, *rest[: depth + 1]]), path)
    return Path(found.origin) if found and found.origin and found.has_location else None


def _is_own(name: str) -> bool:
    """Tell whether a module is part of pallasc that its identity covers or that has no effect."""
    return name.split(".")[0] == "pallasc" and not name.startswith("pallasc.specs.library")


def is_standard(name: str) -> bool:
    """Tell whether a module belongs to Python itself."""
    return name.split(".")[0] in sys.stdlib_module_names or name == "__main__"


@cache
def _site_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple({str(Path(paths[key]).resolve()) + "/" for key in ("purelib", "platlib")})


@cache
def _python_folder() -> str:
    return str(Path(sysconfig.get_paths()["stdlib"]).resolve()) + "/"


def _is_pythons(file: str) -> bool:
    return str(Path(file).resolve()).startswith(_python_folder())


def _is_installed(file: str) -> bool:
    return str(Path(file).resolve()).startswith(_site_folders())
