"""What a compiling process records of the questions that the user's code asks it.

Python announces some of them (audit events): opening, listing, running, connecting. The others it
announces to nobody: what lies at a path, where a link leads, which value a variable has. The
functions that answer them are replaced by ones that record who asked. Of variables
only those are recorded that are not there, since all others are the same everywhere or in the key
(`environment`); what lies in the process's own folder (`isolation`) was made by itself.

What has no digest (other programs, the network, contents below `/proc` and `/sys`) makes that what
was compiled is lowered again at every build. Not seen at all: clocks and random numbers, what
extension modules ask the system themselves, what an `os.DirEntry` says beside its name, and how
many cores, which processor or which host this is. `pallasc build --reproduce` finds kernels that
depend on any of these.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from pallasc.compiler.inputs import isolation, reads
from pallasc.compiler.inputs.attribution import (
    functions_between,
    is_importing,
    line_of,
    reader,
    say,
    watch,
)
from pallasc.compiler.inputs.reads import FILE, FOLDER, IS, LINK, of_module
from pallasc.compiler.toolchain.environment import is_withheld
from pallasc.compiler.toolchain.modules import COVERED, is_installed, is_standard

_OPEN_FOR_OTHERS = frozenset({"numpy", *COVERED})
"""Packages that open files for their callers."""

_WHETHER = frozenset({
    "exists", "is_block_device", "is_char_device", "is_dir", "is_fifo", "is_file", "is_junction",
    "is_mount", "is_socket", "is_symlink", "isdir", "isfile", "isjunction", "islink", "ismount",
    "lexists", "makedirs", "mkdir", "which",
})  # fmt: skip
"""Functions that only want to know what there is, not what is in it."""

_NO_INPUTS = ("/dev/",)
_NO_DIGEST = ("/proc/", "/sys/")
_PROGRAM, _NETWORK = "ran another program", "talked to the network"
_PROCESS = "started another process"
_ACTS = {
    "os.exec": _PROGRAM,
    "os.fork": _PROCESS,
    "os.forkpty": _PROCESS,
    "os.posix_spawn": _PROGRAM,
    "os.spawn": _PROGRAM,
    "os.system": _PROGRAM,
    "socket.connect": _NETWORK,
    "socket.getaddrinfo": _NETWORK,
    "socket.gethostbyaddr": _NETWORK,
    "socket.gethostbyname": _NETWORK,
    "socket.sendto": _NETWORK,
    "subprocess.Popen": _PROGRAM,
}
"""Audit events of what has no digest, and what they say of a module."""
_FOR_WRITING = os.O_WRONLY | os.O_TRUNC | os.O_EXCL
"""Flags with which nothing can be read that was there before."""

_written: set[tuple[str, str]] = set()
"""Who wrote which file: what a module reads of its own making is no input."""


def record_reads() -> None:
    """Record from now on what is asked; for compiling processes, once."""
    # Both remember what they find out by opening files.
    is_standard("os")
    is_installed(os.__file__)
    sys.addaudithook(_hear)
    for environment, kind in ((os.environ, str), (os.environb, bytes)):
        methods = {"__getitem__": _look_up(kind)}
        environment.__class__ = type("_Recording", (type(environment),), methods)
    watch(os, "stat", _stat)
    watch(os, "lstat", functools.partial(_stat, follows=False))
    watch(os, "access", functools.partial(_stat, whether=True))
    watch(os, "readlink", _read_link)


def _look_up(kind: type[str] | type[bytes]) -> Callable[[Any, Any], Any]:
    def look_up(environment: Any, name: Any) -> Any:
        try:
            return super(type(environment), environment).__getitem__(name)
        except KeyError:
            frame = sys._getframe(1)
            module = reader(frame)
            if module and isinstance(name, kind):  # `subprocess` asks for bytes too, in vain
                _missed(module, frame, os.fsdecode(name))
            raise

    return look_up


def _missed(module: str, frame: FrameType, name: str) -> None:
    if is_withheld(name) and not isolation.is_declared(name):
        of_module(module).missed.setdefault(name, line_of(module, frame))


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        path, flags = arguments[0], arguments[2]
        _opened(path, FILE, writing=isinstance(flags, int) and bool(flags & _FOR_WRITING))
    elif event in _ACTS:
        module = reader(sys._getframe(1))
        if module:
            say(module, _ACTS[event])
    elif event in ("os.listdir", "os.scandir"):
        _opened("." if arguments[0] is None else arguments[0], FOLDER)
    elif event in ("ctypes.dlopen", "sqlite3.connect") and os.sep in str(arguments[0]):
        _opened(arguments[0], FILE)
    elif event == "sys.addaudithook":
        # It could never be taken away, would hear what pallasc does, and could forbid it.
        raise RuntimeError("a compiling process takes no further audit hooks")


def _opened(path: Any, kind: str, *, writing: bool = False) -> None:
    frame = sys._getframe(2)
    module = reader(frame, transparent=_OPEN_FOR_OTHERS)
    if not module:
        return
    try:
        if isinstance(path, int) and kind == FOLDER:
            path = os.readlink(f"/proc/self/fd/{path}")
        place = absolute(path)
        if place is None:
            return  # a descriptor, which was opened by name before
        if writing:
            _written.add((module, place))
        elif not place.startswith(_NO_DIGEST) or reader(frame):
            _read(module, place, kind)
    except Exception:  # noqa: BLE001 - the user's own paths may raise anything
        say(module, "opened something that cannot be taken down")


def _read(module: str, place: str, kind: str) -> None:
    if place.startswith(_NO_DIGEST):
        say(module, f"read {place}")
    elif (module, place) not in _written and not place.startswith(_NO_INPUTS):
        _look(module, kind, place)


def _look(module: str, kind: str, place: str) -> None:
    if not isolation.is_own(place):
        of_module(module).look(kind, place)
    elif name := isolation.in_home(place):
        of_module(module).missed.setdefault(name, line_of(module, sys._getframe(2)))


def _stat(
    module: str, frame: FrameType, arguments: tuple[Any, ...], options: Mapping[str, Any],
    *, follows: bool = True, whether: bool = False,
) -> None:  # fmt: skip
    path, folder = _path(arguments, options), options.get("dir_fd")
    place = absolute(path, folder)
    between = functions_between(frame)
    if place in (None, os.devnull) or (module, place) in _written or "realpath" in between:
        return  # where links lead is what matters to `realpath`; it asks for that too
    relative = folder is None and not os.path.isabs(os.fsdecode(path))
    if relative and is_importing(frame):
        return
    follows = follows and options.get("follow_symlinks", True)
    whether = whether or bool(between & _WHETHER) or reads.state(IS, place) != "file"
    if whether or not follows:
        _look(module, IS if follows else LINK, place)
    if not whether:
        _read(module, place, FILE)


def _read_link(
    module: str, frame: FrameType, arguments: tuple[Any, ...], options: Mapping[str, Any]
) -> None:
    place = absolute(_path(arguments, options), options.get("dir_fd"))
    if place is not None and not place.startswith(_NO_DIGEST):
        _look(module, LINK, place)


def _path(arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    return arguments[0] if arguments else options.get("path")


def absolute(path: Any, folder: int | None = None) -> str | None:
    """Return the absolute path of what a path names, None for a descriptor.

    Links stay in it, but for those in front of a `..`.

    Args:
        path: as the user's code gave it.
        folder: descriptor of the folder that it is relative to, where that is not the current one.
    """
    if not isinstance(path, str | bytes | os.PathLike):
        return None
    name = os.fsdecode(path)
    if folder is not None:
        name = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), name)
    up = re.match(r"(?s)((?:.*/)?\.\.)(?:/+|$)(.*)", name)
    if up:
        name = os.path.join(os.path.realpath(up[1]), up[2])
    return os.path.abspath(name)
