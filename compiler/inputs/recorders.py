"""Record in compiling processes what the user's code reads.

Python's audit events announce opening and listing files, starting programs and connecting. They do
not announce `stat`, `readlink` or reading a variable; those functions are replaced by recording
ones. Only missing variables are recorded: all others are fixed or in the key (`environment`). The
process's own folder (`isolation`) is not recorded.

A variant that uses something without a digest (other programs, the network, contents of `/proc` and
`/sys`) is lowered again in every build. Not recorded at all: clocks and random numbers, system
calls of extension modules, the attributes of an `os.DirEntry`, and the number of cores, the
processor and the host name. `pallasc build --reproduce` finds kernels that depend on these.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from pallasc.compiler.inputs import isolation, reads
from pallasc.compiler.inputs.attribution import (
    Options,
    functions_between,
    is_importing,
    line_of,
    record_calls,
    record_untracked,
    user_module,
)
from pallasc.compiler.inputs.reads import FILE, FOLDER, IS, LINK, of_module
from pallasc.compiler.toolchain.modules import COVERED, is_installed, is_standard
from pallasc.compiler.toolchain.setup import is_withheld

_OPEN_FOR_OTHERS = frozenset({"numpy", *COVERED})
"""Packages that open files on behalf of their callers."""

_TESTS = frozenset({
    "exists", "is_block_device", "is_char_device", "is_dir", "is_fifo", "is_file", "is_junction",
    "is_mount", "is_socket", "is_symlink", "isdir", "isfile", "isjunction", "islink", "ismount",
    "lexists", "makedirs", "mkdir", "which",
})  # fmt: skip
"""Functions that test a path without reading it."""

_NO_INPUTS = ("/dev/",)
_NO_DIGEST = ("/proc/", "/sys/")
_PROGRAM, _NETWORK = "ran another program", "talked to the network"
_PROCESS = "started another process"
_UNTRACKED = {
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
"""Audit events of actions without a digest, and their descriptions."""
_FOR_WRITING = os.O_WRONLY | os.O_TRUNC | os.O_EXCL
"""Flags that keep earlier contents from being read."""

_written: set[tuple[str, str]] = set()
"""Modules and the files they wrote: reading them back is not an input."""


def forget_written() -> None:
    """Forget which files were written."""
    _written.clear()


def record_reads() -> None:
    """Record reads from now on; called once in a compiling process."""
    # Both open files at the first call and cache the answer; that must not be recorded.
    is_standard("os")
    is_installed(os.__file__)
    sys.addaudithook(_on_audit_event)
    for environment, kind in ((os.environ, str), (os.environb, bytes)):
        # `os.environ.get` and `os.getenv` call `__getitem__`, which is looked up on the class.
        methods = {"__getitem__": _look_up(kind)}
        environment.__class__ = type("_Recording", (type(environment),), methods)
    record_calls(os, "stat", _stat)
    record_calls(os, "lstat", functools.partial(_stat, follows=False))
    record_calls(os, "access", functools.partial(_stat, tests=True))
    record_calls(os, "readlink", _read_link)


def _look_up(kind: type[str] | type[bytes]) -> Callable[[Any, Any], Any]:
    def look_up(environment: Any, name: Any) -> Any:
        try:
            return super(type(environment), environment).__getitem__(name)
        except KeyError:
            frame = sys._getframe(1)
            module = user_module(frame)
            if module and isinstance(name, kind):  # `subprocess` tries bytes keys, too
                _record_missing(module, frame, os.fsdecode(name))
            raise

    return look_up


def _record_missing(module: str, frame: FrameType, name: str) -> None:
    if is_withheld(name) and not isolation.is_declared(name):
        of_module(module).missed.setdefault(name, line_of(module, frame))


def _on_audit_event(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        path, flags = arguments[0], arguments[2]
        _opened(path, FILE, writing=isinstance(flags, int) and bool(flags & _FOR_WRITING))
    elif event in _UNTRACKED:
        module = user_module(sys._getframe(1))
        if module:
            record_untracked(module, _UNTRACKED[event])
    elif event in ("os.listdir", "os.scandir"):
        _opened("." if arguments[0] is None else arguments[0], FOLDER)
    elif event in ("ctypes.dlopen", "sqlite3.connect") and os.sep in str(arguments[0]):
        _opened(arguments[0], FILE)
    elif event == "sys.addaudithook":
        # Hooks cannot be removed, see what pallasc does, and can forbid it by raising.
        raise RuntimeError("audit hooks cannot be added in a compiling process")


def _opened(path: Any, kind: str, *, writing: bool = False) -> None:
    frame = sys._getframe(2)
    module = user_module(frame, transparent=_OPEN_FOR_OTHERS)
    if not module:
        return
    try:
        if isinstance(path, int) and kind == FOLDER:
            path = os.readlink(f"/proc/self/fd/{path}")
        place = absolute(path)
        if place is None:
            return  # a descriptor: opening it was recorded
        if writing:
            _written.add((module, place))
        elif not place.startswith(_NO_DIGEST) or user_module(frame):
            _read(module, place, kind)
    except Exception:  # noqa: BLE001 - path objects of the user's may raise anything
        record_untracked(module, "opened something that cannot be recorded")


def _read(module: str, place: str, kind: str) -> None:
    if place.startswith(_NO_DIGEST):
        record_untracked(module, f"read {place}")
    elif (module, place) not in _written and not place.startswith(_NO_INPUTS):
        _look(module, kind, place)


def _look(module: str, kind: str, place: str) -> None:
    if not isolation.is_own(place):
        of_module(module).look(kind, place)
    elif name := isolation.in_home(place):
        of_module(module).missed.setdefault(name, line_of(module, sys._getframe(2)))


def _stat(
    module: str, frame: FrameType, arguments: tuple[Any, ...], options: Options,
    *, follows: bool = True, tests: bool = False,
) -> None:  # fmt: skip
    path, folder = _path(arguments, options), options.get("dir_fd")
    place = absolute(path, folder)
    between = functions_between(frame)
    if place in (None, os.devnull) or (module, place) in _written or "realpath" in between:
        return  # `realpath` depends on the targets of links only, which `readlink` records
    relative = folder is None and not os.path.isabs(os.fsdecode(path))
    if relative and is_importing(frame):
        return
    follows = follows and bool(options.get("follow_symlinks", True))
    tests = tests or bool(between & _TESTS) or reads.state(IS, place) != "file"
    if tests or not follows:
        _look(module, IS if follows else LINK, place)
    if not tests:
        _read(module, place, FILE)


def _read_link(module: str, frame: FrameType, arguments: tuple[Any, ...], options: Options) -> None:
    place = absolute(_path(arguments, options), options.get("dir_fd"))
    if place is not None and not place.startswith(_NO_DIGEST):
        _look(module, LINK, place)


def _path(arguments: tuple[Any, ...], options: Options) -> Any:
    return arguments[0] if arguments else options.get("path")


def absolute(path: object, folder: object = None) -> str | None:
    """Return an absolute path with links kept, None for a file descriptor.

    Links before a `..` are resolved, as the kernel does: `link/..` is the parent of the target.

    Args:
        path: path as passed by the user's code.
        folder: descriptor of the folder that it is relative to; None for the current folder.
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
