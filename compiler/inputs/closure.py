"""Which source files a compilation read: the modules that an entry point reaches.

Modules of installed packages stand for their package. Which module imports which is recorded by
`imports`, and what modules look at beside others by `recorders`.

What is not there counts too: a module that the user's code asked for in vain may be installed
later, a package without `__init__.py` may get one, and a file that comes into the spec's folder may
hide a module of Python or of a package.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from pallasc.compiler.inputs import reads
from pallasc.compiler.inputs.sources import Sources as Sources
from pallasc.compiler.toolchain.modules import (
    COVERED,
    hidden,
    is_installed,
    is_located,
    is_pythons,
    is_standard,
    locate_module,
    module_of,
    namespace_of,
)
from pallasc.specs.loading.modules import module_name

_LIBRARY = "pallasc.specs.library"

edges: dict[str, set[str]] = {}
failed_imports: dict[str, set[str]] = {}
loaded: dict[str, ModuleType] = {}
"""Modules that were imported, or made from a spec; they need not be in `sys.modules` any more."""


def closure(entries: Iterable[str]) -> set[str]:
    """Return the names of the loaded modules that the modules `entries` reach, themselves too."""
    found: set[str] = set()
    waiting = list(entries)
    while waiting:
        name = waiting.pop()
        module = _module(name)
        if name in found or module is None:
            continue
        found.add(name)
        parent = name.rpartition(".")[0]
        waiting += [other for other in (parent, module_of(namespace_of(module))) if other]
        if name.split(".")[0] not in COVERED and not is_standard(name):
            waiting += edges.get(name, ())
    return found


def _module(name: str) -> Any:
    """Return a module, which may be anything that was put in its place, None if there is none."""
    module = sys.modules.get(name)
    return loaded.get(name) if module is None else module


def _file(module: Any) -> str:
    """Return the file that a module was loaded from, "" if none or if it names another one."""
    file, spec = namespace_of(module).get("__file__"), namespace_of(module).get("__spec__")
    origin = spec.origin if is_located(spec) else file
    if not isinstance(file, str) or not isinstance(origin, str) or "\0" in file + origin:
        return ""
    if file == origin or (is_installed(file) and is_installed(origin)):
        return file
    return file if os.path.realpath(file) == os.path.realpath(origin) else ""


def sources(
    names: Iterable[str],
    base_dir: str,
    *,
    folders: Sequence[str] | None = None,
    by_path: Mapping[str, str] | None = None,
) -> Sources:
    """Split a closure into source files and installed packages.

    Args:
        names: of the modules.
        base_dir: the spec's folder.
        folders: where modules are looked for first, the spec's folder by default.
        by_path: the modules that were loaded by path, with their paths relative to `base_dir`.
    """
    places = tuple(folders or (base_dir,))
    found = Sources(folders=places)
    reached = sorted(names)
    for name in reached:
        file = _file(_module(name))
        if is_standard(name) or name.split(".")[0] in COVERED or _is_own(name):
            continue
        if by_path and name in by_path:
            found.files[f"file:{by_path[name]}"] = Path(base_dir) / by_path[name]
        elif name.startswith(module_name("")):
            continue  # the entry of another variant
        elif file:
            _add(found, name, Path(file), base_dir, places)
        elif owner := _owner(name):
            found.packages.add(_package(owner))
        elif not _is_namespace(name):
            found.unknown.add(name)
    _add_reads(found, reached, base_dir)
    asked_for = {*_asked_for(reached), *filter(_is_namespace, reached)}
    found.absent = {name for name in asked_for if locate_module(name, places) is None}
    found.hidden = hidden(places)
    return found


def _owner(name: str) -> str:
    """Return the installed module whose code made a module without a file, "" if none did."""
    while name := name.rpartition(".")[0]:
        file = _file(_module(name))
        if file:
            return name if is_installed(file) else ""
    return ""


def _is_namespace(name: str) -> bool:
    """Tell whether a module is a folder without `__init__.py`, which may get one."""
    has = namespace_of(_module(name))
    return has.get("__file__") is None and bool(has.get("__path__"))


def _asked_for(names: Iterable[str]) -> set[str]:
    """Return what the user's own modules among these asked for in vain."""
    own = (name for name in names if not is_installed(_file(_module(name))))
    return {asked for name in own for asked in failed_imports.get(name, ())}


def _add_reads(found: Sources, names: Iterable[str], base_dir: str) -> None:
    read = reads.reads_of(names)
    found.unseen |= read.unseen
    sources = {os.path.realpath(path) for path in found.files.values()}
    covered = COVERED | {name.partition(".")[0] for name in found.packages}
    for (kind, path), seen in sorted(read.looks.items(), key=lambda item: item[0]):
        # A folder that was opened was walked or synchronised, not read.
        as_what = reads.IS if (kind, seen) == (reads.FILE, "folder") else kind
        label = reads.label_of(as_what, path, base_dir)
        if reads.package_in(label) in covered or is_pythons(os.path.join(path, "_")):
            continue
        if kind == reads.LINK and reads.leads_to(path, base_dir):
            continue  # which may lie elsewhere tomorrow
        real = os.path.realpath(path)
        if kind != reads.LINK and real in sources and reads.path_of(label, base_dir) == Path(real):
            continue
        found.opened[label] = Path(path)
        if reads.state(kind, path) != seen:
            found.altered.add(label)
    found.missed = {name: _line(place, base_dir) for name, place in read.missed.items()}


def _line(place: str, base_dir: str) -> str:
    """Return `file:line` with a name for the file that does not tell where the specs lie."""
    file, colon, line = place.rpartition(":")
    return f"{reads.name_of(reads.label_of(reads.FILE, file, base_dir))}{colon}{line}"


def _add(found: Sources, name: str, file: Path, base_dir: str, folders: Sequence[str]) -> None:
    if is_installed(str(file)) and not name.startswith(_LIBRARY):
        found.packages.add(_package(name))
        return
    place = locate_module(name, folders)
    if place is not None and place.resolve() == file.resolve():
        found.files[f"module:{name}"] = file
    else:
        found.files[f"file:{os.path.relpath(file.resolve(), base_dir)}"] = file


def _package(name: str) -> str:
    """Return the outermost package of a module that is not just a namespace."""
    parts = name.split(".")
    prefixes = (".".join(parts[:length]) for length in range(1, len(parts) + 1))
    return next(p for p in prefixes if getattr(sys.modules.get(p), "__file__", None) or p == name)


def is_users(name: str) -> bool:
    """Tell whether a loaded module is not Python's, nor pallasc's, nor an installed package's."""
    installed = is_installed(_file(_module(name)))
    return not (installed or is_standard(name) or name.partition(".")[0] == "pallasc")


def _is_own(name: str) -> bool:
    """Tell whether a module is part of pallasc that its identity covers or that has no effect."""
    return name.split(".")[0] == "pallasc" and not name.startswith(_LIBRARY)
