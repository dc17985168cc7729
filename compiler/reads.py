"""What the user's code looks at beside modules: files, folders, environment variables.

Recorded in compiling processes, for the module that looked, from the first import on; a manifest
holds their digests, so that a tuning table which nobody declared, or a variable that chooses a
tile size, is not missed. What a function read once, a cache in it may answer with later, so what a
module has read counts for every later variant that reaches the module.

Running a program, talking to the network and reading below `/proc` or `/sys` have no digest: what
did that is lowered again at every build. Not seen at all: questions that Python announces to nobody
(`os.path.exists`, `os.stat`), which distributions are installed, what extension modules read, and
clocks.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from pallasc.compiler.closure import COVERED, is_installed, is_standard, site_folders

FOLDER, INSTALLED = "folder:", "site:"
_LIBRARY = "pallasc.specs.library"
_TRANSPARENT = frozenset({"numpy", *COVERED})
"""Packages that open files for their callers."""

_SEARCHING = frozenset({"_find_and_load", "_fill_cache", "get_code", "lookup", "search"})
"""Functions of `importlib` that look through folders for modules and for installed packages."""

_NO_INPUTS = ("/dev/",)
_NO_DIGEST = ("/proc/", "/sys/")
_ACTS = {
    "subprocess.Popen": "ran another program",
    "os.exec": "ran another program",
    "os.posix_spawn": "ran another program",
    "os.spawn": "ran another program",
    "os.system": "ran another program",
    "socket.connect": "talked to the network",
}
"""Audit events of what has no digest, and what they say of a module."""
_FOR_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@dataclass(slots=True)
class Reads:
    """What was looked at.

    Attributes:
        files: absolute paths of files and, ending in a slash, of listed folders.
        variables: names of environment variables.
        relative: whether a path was relative to the current folder.
        unseen: sentences about what has no digest.
    """

    files: set[str] = field(default_factory=set)
    variables: set[str] = field(default_factory=set)
    relative: bool = False
    unseen: set[str] = field(default_factory=set)


_by_module: dict[str, Reads] = {}
_written: set[str] = set()
_began_with: dict[str, str] = {}


def record_reads() -> None:
    """Record from now on what is read; for compiling processes, once."""
    _began_with.update(os.environ)
    # Both remember what they find out by opening files.
    is_standard("os")
    is_installed(os.__file__)
    sys.addaudithook(_hear)
    os.environ.__class__ = type("_Recording", (type(os.environ),), {"__getitem__": _look_up})


def _look_up(environment: Any, name: Any) -> str:
    module = _reader(sys._getframe(1), frozenset())
    if module and isinstance(name, str):  # `subprocess` asks for bytes too, in vain
        _of(module).variables.add(name)
    return str(super(type(environment), environment).__getitem__(name))


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        path, flags = arguments[0], arguments[2]
        _opened(path, isinstance(flags, int) and bool(flags & _FOR_WRITING))
    elif event in _ACTS:
        module = _reader(sys._getframe(1), frozenset())
        if module:
            _of(module).unseen.add(f"{module} {_ACTS[event]}")
    elif event in ("os.listdir", "os.scandir"):
        _opened("." if arguments[0] is None else arguments[0], False, os.sep)
    elif event in ("ctypes.dlopen", "sqlite3.connect") and os.sep in str(arguments[0]):
        _opened(arguments[0], False)


def _opened(path: Any, writing: bool, end: str = "") -> None:
    if not isinstance(path, str | bytes | os.PathLike):
        return  # a descriptor, which was opened by name before
    module = _reader(sys._getframe(2), _TRANSPARENT)
    if not module:
        return
    name = os.fsdecode(path)
    place = os.path.abspath(name)
    if writing:
        _written.add(place)
    elif place.startswith(_NO_DIGEST):
        if _reader(sys._getframe(2), frozenset()):
            _of(module).unseen.add(f"{module} read {place}")
    elif place not in _written and not place.startswith(_NO_INPUTS):
        read = _of(module)
        read.files.add(place + end)
        read.relative |= not os.path.isabs(name)


def _of(module: str) -> Reads:
    return _by_module.setdefault(module, Reads())


def _reader(frame: FrameType | None, transparent: frozenset[str]) -> str:
    """Return the user's module on whose behalf a frame runs, "" if there is none."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        top = name.partition(".")[0]
        if top in ("importlib", "_frozen_importlib", "_frozen_importlib_external"):
            if frame.f_code.co_name in _SEARCHING:
                return ""
        elif top == "pallasc":
            return name if name.startswith(_LIBRARY) else ""
        elif name and top not in transparent and not is_standard(name):
            return "" if top in COVERED or top == "numpy" else name
        frame = frame.f_back
    return ""


def reads_of(modules: Iterable[str]) -> Reads:
    """Return what modules have looked at so far."""
    found = Reads()
    for read in filter(None, map(_by_module.get, modules)):
        found.files |= read.files
        found.variables |= read.variables
        found.relative |= read.relative
        found.unseen |= read.unseen
    return found


def label_of(path: str, base_dir: str) -> str:
    """Return a name of a path that fits after the spec's folder, or Python's, has moved."""
    kind = FOLDER if path.endswith(os.sep) else "file:"
    real = os.path.realpath(path)
    for place in site_folders():
        if real.startswith(place):
            inside = real.removeprefix(place)
            return f"{INSTALLED}{inside}" if kind == "file:" else f"{INSTALLED}{inside}{os.sep}"
    inside = os.path.relpath(real, os.path.realpath(base_dir))
    return f"{kind}{real if inside.startswith(os.pardir) else inside}"


def path_of(label: str, base_dir: str) -> Path:
    """Return the path that a label names now; it need not exist."""
    kind, _, name = label.partition(":")
    if f"{kind}:" != INSTALLED:
        return Path(base_dir) / name
    places = [Path(folder) / name for folder in site_folders()]
    return next((place for place in places if place.exists()), places[0])


def listing_digest(folder: Path) -> str | None:
    """Return the digest of the names in a folder, bytecode aside; None if there is none."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return None
    kept = [name for name in names if name != "__pycache__" and not name.endswith(".pyc")]
    return hashlib.sha256(os.fsencode("\0".join(kept))).hexdigest()


def values_then(names: Iterable[str]) -> dict[str, str | None]:
    """Return digests of the values that variables had when this process began."""
    return _values(names, _began_with, tools=True)


def values_now(names: Iterable[str]) -> dict[str, str | None]:
    """Return digests of the values that variables would have in a worker started now."""
    from pallasc.compiler.environment import settled

    return _values(names, settled(os.environ), tools=False)


def _values(
    names: Iterable[str], environment: Mapping[str, str], *, tools: bool
) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in sorted(names):
        value = environment.get(name)
        if name == "PATH" and tools and value is not None:
            value = value.partition(os.pathsep)[2]  # the assembler's folder comes first
        found[name] = None if value is None else hashlib.sha256(os.fsencode(value)).hexdigest()
    return found


def current_folder() -> str:
    """Return the digest of the current folder's path."""
    return hashlib.sha256(os.fsencode(os.path.realpath("."))).hexdigest()
