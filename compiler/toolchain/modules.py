"""Find modules without importing them, and classify them as Python's, installed, or the user's."""

from __future__ import annotations

import itertools
import os
import site
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, TypeGuard

from msgspec import Struct

from pallasc.specs.user_files import find_spec

COVERED = frozenset({"jax", "jaxlib", "jax_plugins", "jax_cuda13_plugin", "jax_cuda12_plugin"})
"""Packages that the toolchain's identity covers."""


def module_of(globals: Mapping[str, object]) -> str:
    """Return the module that a namespace belongs to, even if its `__name__` was changed."""
    spec = globals.get("__spec__")
    name = spec.name if type(spec) is ModuleSpec else globals.get("__name__")
    return name if isinstance(name, str) else ""


def namespace_of(module: object) -> Mapping[str, object]:
    """Return a module's namespace without running its `__getattr__`."""
    try:
        namespace = object.__getattribute__(module, "__dict__")
    except AttributeError:
        return {}
    return namespace if type(namespace) is dict else {}


def is_located(spec: Any) -> TypeGuard[ModuleSpec]:
    """Return True if a module's spec names the file that it came from."""
    return type(spec) is ModuleSpec and bool(spec.has_location)


class Place(Struct, frozen=True):
    """The folders in which a compilation finds its files and modules.

    Attributes:
        base_dir: the spec's folder; labels of files are relative to it.
        folders: searched for modules before the usual places.
    """

    base_dir: str
    folders: tuple[str, ...]

    def locate(self, label: str) -> Path | None:
        """Return the file that a label of `sources` names now, without importing anything."""
        kind, _, name = label.partition(":")
        if kind == "file":
            return Path(self.base_dir) / name
        return locate_module(name, self.folders)


def locate_module(name: str, folders: Sequence[str]) -> Path | None:
    """Return the source file of a module, searched for in `folders` and on the path of workers."""
    places = [*folders, *_workers_path()]
    spec = None
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        spec = find_spec(".".join(parts[:length]), places)
        if spec is None:
            return None
        places = list(spec.submodule_search_locations or ())
    return Path(spec.origin) if spec and spec.origin and spec.has_location else None


def _workers_path() -> list[str]:
    """Return `sys.path` as in workers: without the script's folder at the front."""
    if sys.flags.safe_path:  # Python was started with `-P`
        return sys.path
    main = sys.modules.get("__main__")
    script = getattr(main, "__file__", None)
    by_name = getattr(main, "__spec__", None) is not None
    unsafe = os.getcwd() if by_name or not script else str(Path(script).resolve().parent)
    named = map(os.path.abspath, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    return [p for p in sys.path if p and (p != unsafe or p in set(named))]


def hidden(folders: Sequence[str]) -> list[str]:
    """Return the modules of Python that files in `folders` or on `PYTHONPATH` hide."""
    before_pythons = itertools.takewhile(
        lambda place: not is_pythons(os.path.join(place, "_")), _workers_path()
    )
    listed = (name for folder in (*folders, *before_pythons) for name in names_in(folder))
    names = {name.partition(".")[0] for name in listed}
    files = ((n, locate_module(n, folders)) for n in sorted(names & sys.stdlib_module_names))
    return [name for name, file in files if file is not None and not is_pythons(str(file))]


def names_in(folder: str) -> tuple[str, ...]:
    """Return the names in a folder, () if it cannot be read."""
    try:
        return _listed(folder, os.stat(folder).st_mtime_ns)
    except OSError:
        return ()


@lru_cache(maxsize=64)
def _listed(folder: str, changed_ns: int) -> tuple[str, ...]:
    """Return the names in a folder as of its last change."""
    return tuple(os.listdir(folder))


def is_standard(name: str) -> bool:
    """Return True if a module is Python's own, and not one that shadows it."""
    top = name.split(".")[0]
    if top not in sys.stdlib_module_names:
        return top == "__main__"
    has = namespace_of(sys.modules.get(top))
    spec = has.get("__spec__")
    file = spec.origin if is_located(spec) else has.get("__file__")
    return file is None or (isinstance(file, str) and is_pythons(file))


@cache
def site_folders() -> tuple[str, ...]:
    """Return the folders of installed packages, with and without links, with a trailing slash."""
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
    """Return True if a file belongs to Python's own library."""
    return os.path.realpath(file).startswith(_python_folders()) and not is_installed(file)


@cache
def is_installed(file: str) -> bool:
    """Return True if a file belongs to an installed package, even if it links elsewhere."""
    path = os.path.abspath(file)
    return path.startswith(site_folders()) or os.path.realpath(path).startswith(site_folders())
