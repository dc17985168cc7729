"""Which source files a compilation read: the modules that an entry point reaches.

Modules of installed packages stand for their package. Which module imports which is recorded by
`imports`, and what modules look at beside others by `recorders`.

What is not there counts too: a module that the user's code asked for in vain may be installed
later, a package without `__init__.py` may get one, and a file that comes into the spec's folder may
hide a module of Python or of a package.
"""

from __future__ import annotations

import itertools
import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard

from pallasc.compiler.sources import Sources as Sources
from pallasc.specs.modules import module_name

COVERED = frozenset({"jax", "jaxlib", "jax_plugins", "jax_cuda13_plugin", "jax_cuda12_plugin"})
"""Packages that the toolchain's identity covers."""

_LIBRARY = "pallasc.specs.library"

edges: dict[str, set[str]] = {}
asked_in_vain: dict[str, set[str]] = {}
loaded: dict[str, ModuleType] = {}
"""Modules that were imported, or made from a spec; they need not be in `sys.modules` any more."""


def module_of(globals: Mapping[str, Any]) -> str:
    """Return the name of the module that a namespace belongs to, also where it pretends another."""
    spec = globals.get("__spec__")
    name = spec.name if type(spec) is ModuleSpec else globals.get("__name__")
    return name if isinstance(name, str) else ""


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
        waiting += [other for other in (parent, module_of(_vars(module))) if other]
        if name.split(".")[0] not in COVERED and not is_standard(name):
            waiting += edges.get(name, ())
    return found


def _module(name: str) -> Any:
    """Return a module, which may be anything that was put in its place, None if there is none."""
    module = sys.modules.get(name)
    return loaded.get(name) if module is None else module


def _vars(module: Any) -> Mapping[str, Any]:
    """Return what a module has, without running code of its own."""
    try:
        found = object.__getattribute__(module, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


def _is_located(spec: Any) -> TypeGuard[ModuleSpec]:
    return type(spec) is ModuleSpec and bool(spec.has_location)


def _file(module: Any) -> str:
    """Return the file that a module was loaded from, "" if none or if it names another one."""
    file, spec = _vars(module).get("__file__"), _vars(module).get("__spec__")
    origin = spec.origin if _is_located(spec) else file
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
    has = _vars(_module(name))
    return has.get("__file__") is None and bool(has.get("__path__"))


def _asked_for(names: Iterable[str]) -> set[str]:
    """Return what the user's own modules among these asked for in vain."""
    own = (name for name in names if not is_installed(_file(_module(name))))
    return {asked for name in own for asked in asked_in_vain.get(name, ())}


def _add_reads(found: Sources, names: Iterable[str], base_dir: str) -> None:
    from pallasc.compiler import reads

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
    from pallasc.compiler import reads

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


def locate(label: str, base_dir: str, folders: Sequence[str] | None = None) -> Path | None:
    """Return the file that a label of `sources` names now, without importing anything."""
    kind, _, name = label.partition(":")
    if kind == "file":
        return Path(base_dir) / name
    return locate_module(name, folders or (base_dir,))


def locate_module(name: str, folders: Sequence[str]) -> Path | None:
    """Return the source file of a module, looked for in `folders` and where workers look."""
    path: list[str] | None = None
    found = None
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        found = _find(".".join(parts[:length]), path, folders)
        if found is None:
            return None
        path = list(found.submodule_search_locations or ())
    return Path(found.origin) if found and found.origin and found.has_location else None


def _find(name: str, path: list[str] | None, folders: Sequence[str]) -> ModuleSpec | None:
    """Find a module as Python does, with the finders of editable installs, but import nothing."""
    for finder in sys.meta_path:
        if finder is PathFinder:
            places = [*folders, *_workers_path()] if path is None else path
            # By its last part: for a namespace it would look for the parent in `sys.modules`.
            found = PathFinder.find_spec(name.rpartition(".")[2], places)
        else:
            find = getattr(finder, "find_spec", None)
            found = find(name, path) if find else None
        if found is not None:
            return found
    return None


def _workers_path() -> list[str]:
    """Return `sys.path` as workers have it: without the folder of the script in front."""
    if _has_safe_path():
        return sys.path
    main = sys.modules.get("__main__")
    script = getattr(main, "__file__", None)
    by_name = getattr(main, "__spec__", None) is not None
    unsafe = os.getcwd() if by_name or not script else str(Path(script).resolve().parent)
    named = map(os.path.abspath, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    return [p for p in sys.path if p and (p != unsafe or p in set(named))]


def _has_safe_path() -> bool:
    """Tell whether this process was started with `-P`."""
    return sys.flags.safe_path


def hidden(folders: Sequence[str]) -> list[str]:
    """Return the modules of Python that a file in `folders`, or on `PYTHONPATH`, hides."""
    places = [*folders, *itertools.takewhile(_is_before_pythons, _workers_path())]
    names = {name for place in places for name in _names_in(place)}
    found = ((n, locate_module(n, folders)) for n in sorted(names & sys.stdlib_module_names))
    return [name for name, place in found if place is not None and not is_pythons(str(place))]


def _is_before_pythons(place: str) -> bool:
    """Tell whether a folder on the path is not yet one of Python's own library."""
    return not is_pythons(os.path.join(place, "_"))


def _names_in(folder: str) -> frozenset[str]:
    try:
        return _listed(folder, os.stat(folder).st_mtime_ns)
    except OSError:
        return frozenset()


@lru_cache(maxsize=64)
def _listed(folder: str, changed_ns: int) -> frozenset[str]:
    """Return what could be modules in a folder, as it was when it changed last."""
    return frozenset(name.partition(".")[0] for name in os.listdir(folder))


def is_users(name: str) -> bool:
    """Tell whether a loaded module is not Python's, nor pallasc's, nor an installed package's."""
    installed = is_installed(_file(_module(name)))
    return not (installed or is_standard(name) or name.partition(".")[0] == "pallasc")


def _is_own(name: str) -> bool:
    """Tell whether a module is part of pallasc that its identity covers or that has no effect."""
    return name.split(".")[0] == "pallasc" and not name.startswith(_LIBRARY)


def is_standard(name: str) -> bool:
    """Tell whether a module belongs to Python itself; one that shadows such a module does not."""
    top = name.split(".")[0]
    if top not in sys.stdlib_module_names:
        return top == "__main__"
    has = _vars(sys.modules.get(top))
    spec = has.get("__spec__")
    file = spec.origin if _is_located(spec) else has.get("__file__")
    return file is None or (isinstance(file, str) and is_pythons(file))


@cache
def site_folders() -> tuple[str, ...]:
    """Return the folders of installed packages, as they are named and as they lie, with a slash."""
    paths = sysconfig.get_paths()
    folders = [paths["purelib"], paths["platlib"], *site.getsitepackages()]
    folders.append(site.getusersitepackages())
    return tuple({place + os.sep for f in folders for place in (f, os.path.realpath(f))})


@cache
def _python_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple(os.path.realpath(paths[key]) + os.sep for key in ("stdlib", "platstdlib"))


@cache
def is_pythons(file: str) -> bool:
    """Tell whether a file belongs to Python's own library."""
    return os.path.realpath(file).startswith(_python_folders()) and not is_installed(file)


@cache
def is_installed(file: str) -> bool:
    """Tell whether a file is an installed package's, also where it is a link to elsewhere."""
    path = os.path.abspath(file)
    return path.startswith(site_folders()) or os.path.realpath(path).startswith(site_folders())
