"""Record in compiling processes what the user's code reads.

Python's audit events announce opening and listing files, starting programs and connecting. They do
not announce `stat`, `readlink` or reading a variable; those functions are replaced by recording
ones. Only missing variables are recorded: all others are fixed or in the key (`environment`). The
process's own folder (`isolation`) is not recorded.

A variant that uses something without a digest (other programs, the network, contents of `/proc` and
`/sys`) is lowered again in every build. Not recorded at all: clocks and random numbers, system
calls of extension modules, the attributes of an `os.DirEntry`, and the number of cores, the
processor and the host name. `pallasc build --reproduce` finds kernels that depend on these.

A call is attributed to the innermost module on the stack that is neither Python's nor JAX's. Calls
that JAX, pallasc, the import system and a few modules of Python make for themselves are not
attributed. Calls of an installed package while it is imported count with the package's files,
except for relative paths: what is in the current folder is then its own affair.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from pallasc.compiler.inputs import isolation, reads
from pallasc.compiler.inputs.reads import FILE, FOLDER, IS, LINK, of_module
from pallasc.compiler.toolchain.modules import COVERED, is_installed, is_standard, module_of
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

_LIBRARY = "pallasc.specs.library"
_FOR_THEMSELVES = frozenset({
    "inspect", "linecache", "logging", "tempfile", "tokenize", "traceback", "warnings",
})  # fmt: skip
_IMPORT_SYSTEM = ("importlib", "_frozen_importlib", "_frozen_importlib_external")
_SEARCHING = frozenset({"_find_and_load", "_fill_cache", "get_code", "lookup", "search"})
"""Functions of `importlib` that search folders for modules and installed packages."""

_NOTHING: frozenset[str] = frozenset()
_SETS = (
    os.supports_dir_fd, os.supports_effective_ids, os.supports_fd, os.supports_follow_symlinks,
)  # fmt: skip

_active: set[int] = set()
"""Threads that are in `user_module`."""

Options = Mapping[str, object]
Recorder = Callable[[str, FrameType, tuple[Any, ...], Options], None]
"""Records a call: the user's module, the frame, the arguments by position and by name."""


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


# ---- the module that causes a call


def user_module(
    frame: FrameType | None,
    *,
    transparent: frozenset[str] = _NOTHING,
    private: frozenset[str] = _NOTHING,
) -> str:
    """Return the user's module on whose behalf a frame runs, "" if there is none.

    Args:
        frame: the innermost frame.
        transparent: packages that act for their callers, beside Python's own.
        private: modules of Python that act for themselves.
    """
    thread = threading.get_ident()
    if thread in _active:
        return ""  # classifying modules opens files, too
    _active.add(thread)
    try:
        return _user_module(frame, transparent, private)
    finally:
        _active.discard(thread)


def _user_module(
    frame: FrameType | None, transparent: frozenset[str], private: frozenset[str]
) -> str:
    while frame is not None:
        name = module_of(frame.f_globals)
        top = name.partition(".")[0]
        if top in private:
            return ""
        if _is_search(top, frame):
            return ""
        if top == "pallasc":
            return name if name.startswith(_LIBRARY) else ""
        elif name and top not in transparent and not is_standard(name):
            return "" if top in COVERED or top == "numpy" else name
        frame = frame.f_back
    return ""


def _is_search(top: str, frame: FrameType) -> bool:
    return top in _IMPORT_SYSTEM and frame.f_code.co_name in _SEARCHING


def functions_between(frame: FrameType | None) -> set[str]:
    """Return the names of Python's own functions between the user's code and a call."""
    names = set()
    while frame is not None and is_standard(module_of(frame.f_globals)):
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return names


def line_of(module: str, frame: FrameType | None) -> str:
    """Return `file:line` of a module's innermost frame, "" if it is not on the stack."""
    while frame is not None:
        if module_of(frame.f_globals) == module:
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def is_importing(frame: FrameType | None) -> bool:
    """Tell whether an installed package makes the call while it is imported."""
    while frame is not None:
        name = module_of(frame.f_globals)
        top = name.partition(".")[0]
        if _is_search(top, frame):
            return True
        file = frame.f_globals.get("__file__")
        if top == "pallasc" or not (is_standard(name) or is_installed(str(file))):
            return False
        frame = frame.f_back
    return False


def record(
    recorder: Recorder, frame: FrameType, arguments: tuple[Any, ...], options: Options
) -> None:
    """Record a call if the user's code caused it."""
    module = user_module(frame, private=_FOR_THEMSELVES)
    if module:
        try:
            recorder(module, frame, arguments, options)
        except Exception:  # noqa: BLE001 - path objects of the user's may raise anything
            record_untracked(module, "queried something that cannot be recorded")


def record_untracked(module: str, action: str) -> None:
    """Record an action of a module that has no digest."""
    of_module(module).unseen.add(f"{module} {action}")


class RecordingFunction:
    """A function that records its calls.

    An object without `__get__`, as built-in functions are: user code that stores it as a class
    attribute must not get a method.
    """

    def __init__(self, plain: Callable[..., Any], recorder: Recorder) -> None:
        functools.update_wrapper(self, plain)
        self._plain, self._recorder = plain, recorder

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call the function; the call is recorded even if it raises."""
        try:
            return self._plain(*arguments, **options)
        finally:
            record(self._recorder, sys._getframe(1), arguments, options)


def record_calls(module: object, name: str, recorder: Recorder) -> None:
    """Replace a function of a module by one that records its calls, if it exists."""
    plain = getattr(module, name, None)
    if plain is None:
        return
    recording = RecordingFunction(plain, recorder)
    setattr(module, name, recording)
    for functions in _SETS:  # which callers look up to see what it supports
        if plain in functions:
            functions.add(recording)
