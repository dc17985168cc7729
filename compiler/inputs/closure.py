"""The source files of a compilation: the modules that an entry point reaches.

Installed packages count as a whole. `imports` records which module imports which, `recorders` what
else modules read.

Missing modules count, too: one whose import failed may be installed later, a package without
`__init__.py` may get one, and a new file in the spec's folder may shadow a module of Python or of a
package.
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
"""Modules that were imported or made from a spec; user code may remove them from `sys.modules`."""


def closure(entries: Iterable[str]) -> set[str]:
    """Return the names of the loaded modules that `entries` reach, including themselves."""
    reached: set[str] = set()
    pending = list(entries)
    while pending:
        name = pending.pop()
        module = _module(name)
        if name in reached or module is None:
            continue
        reached.add(name)
        parent = name.rpartition(".")[0]
        # A module may be registered under another name than its own.
        pending += filter(None, (parent, module_of(namespace_of(module))))
        if name.split(".")[0] not in COVERED and not is_standard(name):
            pending += edges.get(name, ())
    return reached


def _module(name: str) -> Any:
    """Return a module, or the object that user code put in its place; None if not loaded."""
    module = sys.modules.get(name)
    return loaded.get(name) if module is None else module


def _file(module: Any) -> str:
    """Return the file that a module was loaded from, "" if it has none or claims another."""
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
        names: names of the modules.
        base_dir: the spec's folder.
        folders: folders searched for modules first; the spec's folder by default.
        by_path: paths, relative to `base_dir`, of the modules that were loaded by path.
    """
    places = tuple(folders or (base_dir,))
    inputs = Sources(folders=places)
    reached = sorted(names)
    for name in reached:
        file = _file(_module(name))
        if is_standard(name) or name.split(".")[0] in COVERED or _is_own(name):
            continue
        if by_path and name in by_path:
            inputs.files[f"file:{by_path[name]}"] = Path(base_dir) / by_path[name]
        elif name.startswith(module_name("")):
            continue  # the entry of another variant
        elif file:
            _add(inputs, name, Path(file), base_dir, places)
        elif owner := _owner(name):
            inputs.packages.add(_package(owner))
        elif not _is_namespace(name):
            inputs.unknown.add(name)
    _add_reads(inputs, reached, base_dir)
    missing = {*_failed_imports(reached), *filter(_is_namespace, reached)}
    inputs.absent = {name for name in missing if locate_module(name, places) is None}
    inputs.hidden = hidden(places)
    return inputs


def _owner(name: str) -> str:
    """Return the installed parent module that created a module without a file, "" if none."""
    while name := name.rpartition(".")[0]:
        file = _file(_module(name))
        if file:
            return name if is_installed(file) else ""
    return ""


def _is_namespace(name: str) -> bool:
    """Tell whether a module is a namespace package, whose folder may get an `__init__.py`."""
    namespace = namespace_of(_module(name))
    return namespace.get("__file__") is None and bool(namespace.get("__path__"))


def _failed_imports(names: Iterable[str]) -> set[str]:
    """Return the modules that the user's own modules failed to import."""
    own = (name for name in names if not is_installed(_file(_module(name))))
    return {missing for name in own for missing in failed_imports.get(name, ())}


def _add_reads(inputs: Sources, names: Iterable[str], base_dir: str) -> None:
    read = reads.reads_of(names)
    inputs.unseen |= read.unseen
    sources = {os.path.realpath(path) for path in inputs.files.values()}
    covered = COVERED | {name.partition(".")[0] for name in inputs.packages}
    for (kind, path), seen in sorted(read.looks.items(), key=lambda item: item[0]):
        # A folder that was opened was walked or passed to fsync, not read.
        label_kind = reads.IS if (kind, seen) == (reads.FILE, "folder") else kind
        label = reads.label_of(label_kind, path, base_dir)
        if reads.package_in(label) in covered or is_pythons(os.path.join(path, "_")):
            continue
        if kind == reads.LINK and reads.contains_inputs(path, base_dir):
            continue  # the spec's folder may be moved
        real = os.path.realpath(path)
        if kind != reads.LINK and real in sources and reads.path_of(label, base_dir) == Path(real):
            continue
        inputs.opened[label] = Path(path)
        if reads.state(kind, path) != seen:
            inputs.altered.add(label)
    inputs.missed = _places(read.missed, base_dir)


def missed_by(entries: Iterable[str], base_dir: str, earlier: Iterable[str]) -> dict[str, str]:
    """Return what a compilation that failed requested and could not see, with places.

    Args:
        entries: the modules that the variant names; they may not be loaded, nor what they import.
        base_dir: the spec's folder.
        earlier: what had been requested before the compilation began.
    """
    names = [*entries]
    own = reads.reads_of({*names, *closure(names)}).missed
    late = {k: place for k, place in reads.missed_so_far().items() if k not in {*earlier}}
    return _places(late | own, base_dir)


def _places(missed: Mapping[str, str], base_dir: str) -> dict[str, str]:
    return {name: _line(place, base_dir) for name, place in missed.items()}


def _line(place: str, base_dir: str) -> str:
    """Return `file:line` with a path that does not reveal where the specs are."""
    file, colon, line = place.rpartition(":")
    return f"{reads.name_of(reads.label_of(reads.FILE, file, base_dir))}{colon}{line}"


def _add(inputs: Sources, name: str, file: Path, base_dir: str, folders: Sequence[str]) -> None:
    if is_installed(str(file)) and not name.startswith(_LIBRARY):
        inputs.packages.add(_package(name))
        return
    located = locate_module(name, folders)
    if located is not None and located.resolve() == file.resolve():
        inputs.files[f"module:{name}"] = file
    else:
        inputs.files[f"file:{os.path.relpath(file.resolve(), base_dir)}"] = file


def _package(name: str) -> str:
    """Return the outermost package of a module that is not a namespace package."""
    parts = name.split(".")
    prefixes = (".".join(parts[:length]) for length in range(1, len(parts) + 1))
    return next(p for p in prefixes if getattr(sys.modules.get(p), "__file__", None) or p == name)


def is_users(name: str) -> bool:
    """Tell whether a loaded module is the user's: not Python's, pallasc's or a package's."""
    installed = is_installed(_file(_module(name)))
    return not (installed or is_standard(name) or name.partition(".")[0] == "pallasc")


def _is_own(name: str) -> bool:
    """Tell whether a module is pallasc's: covered by its identity, or without effect."""
    return name.split(".")[0] == "pallasc" and not name.startswith(_LIBRARY)
