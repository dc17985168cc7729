"""Isolate compiling processes, and record the imports and reads of user code in them.

Isolation hides differences between users, machines, and builds. Kernels see an empty home, a user
named `pallasc`, no search paths for modules and libraries, and no arguments. Variables that the
process and its child processes need are hidden only from `os.environ`. Kernels run in the folder of
their spec, without a terminal or standard input.

Every executed `import` is recorded for the importing module, even if the imported module was
already loaded, so the modules that an entry reaches do not depend on earlier compilations in the
process. The user's sources are never loaded from bytecode.

Python's audit events report opened files, listed folders, started programs, and connections. They
do not report `stat`, `readlink`, or reading a variable, so recording functions replace these
functions. Only requests for missing variables are recorded: all others are fixed or in the key
(`toolchain/setup`). The process's temporary folder is not recorded.

A variant that uses something without a digest (other programs, the network, files in `/proc` and
`/sys`) is lowered again in every build. Not recorded at all: clocks and random numbers, system
calls of extension modules, the attributes of an `os.DirEntry`, the number of cores, the processor,
and the host name. `pallasc build --reproduce` finds kernels that depend on these.

A call is attributed to the innermost module on the stack that is neither Python's nor JAX's. Calls
that JAX, pallasc, the import system, and a few Python modules make for themselves are not
attributed. An installed package's reads of its own files are covered by the package's digest.
Relative paths that a package tests during its import are not recorded.

The user's modules are loaded again for each variant, and their records are discarded with them. A
module that stays loaded, such as one of JAX's, may cache data that it read during its import, so
those reads count for every later variant that reaches it.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import importlib
import importlib.machinery
import importlib.util
import itertools
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType, ModuleType
from typing import Any

from pallasc.compiler.inputs.sources import FILE, FOLDER, IS, LINK, state
from pallasc.compiler.toolchain import modules
from pallasc.compiler.toolchain.modules import is_installed, is_pythons, is_standard, module_of
from pallasc.compiler.toolchain.setup import is_withheld
from pallasc.errors import SpecError
from pallasc.specs.user_files import shown_name

LIBRARY = "pallasc.specs.library"
"""Kernels that ship with pallasc; they count as the user's sources."""

# ---- isolation

_chdir = os.chdir  # user code may replace it
_USER = "pallasc"
_folder = _home = _process_path = ""
_declared: set[str] = set()


def isolate_process(folder: str, program: str, *, hidden: Iterable[str], path: str) -> None:
    """Isolate this process from now on.

    Args:
        folder: an empty folder, for the home and for temporary files.
        program: name of the process in `sys.argv`.
        hidden: variables to remove from `os.environ` but not from the process.
        path: value of `PATH` in `os.environ`.
    """
    global _folder, _home, _process_path
    _process_path = os.environ.get("PATH", "")
    _folder = os.path.realpath(folder)
    _home = os.path.join(_folder, "home")
    os.mkdir(_home, 0o700)
    os.environ["HOME"] = _home
    # Changing `os.environ` also changes the process environment, so `putenv` must come after
    # `pop`.
    for name in {*hidden} & {*os.environ}:
        os.putenv(name, os.environ.pop(name))
    restore_path(path)
    # `tempfile` is configured directly; child processes read the variable.
    os.environ.pop("TMPDIR", None)
    os.putenv("TMPDIR", folder)
    sys.argv, sys.orig_argv = [program], [sys.executable, program]
    _hide_user()


def restore_path(shown: str) -> None:
    """Restore `PATH`, which has different values in the process and in `os.environ`."""
    os.environ["PATH"] = shown
    os.putenv("PATH", _process_path)


def _hide_user() -> None:
    """Make `pwd` report the same user and home as the environment variables."""
    import pwd

    plain_number, plain_name, user = pwd.getpwuid, pwd.getpwnam, os.getuid()
    account = pwd.struct_passwd((_USER, "x", user, os.getgid(), "", _home, "/bin/sh"))
    pwd.getpwuid = lambda uid, /: account if uid == user else plain_number(uid)
    pwd.getpwnam = lambda name, /: account if name == _USER else plain_name(name)
    os.getlogin = lambda: _USER


def expose_variables(variables: Mapping[str, str | None]) -> None:
    """Set in `os.environ` the variables that a spec declares; None unsets."""
    _declared.update(variables)
    set_variables(variables)


def set_variables(variables: Mapping[str, str | None]) -> None:
    """Set variables in `os.environ`; None unsets."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def enter(folder: str) -> None:
    """Change to a spec's folder; if it is an archive, to the folder that contains the archive.

    Raises:
        SpecError: the folder cannot be entered.
    """
    try:
        _chdir(os.path.dirname(folder) if os.path.isfile(folder) else folder)
    except OSError as error:
        raise SpecError(f"{folder} cannot be entered: {error.strerror}.") from error


# ---- records


@dataclass(slots=True)
class ModuleRecord:
    """The imports and reads of a module.

    Attributes:
        imports: modules that it imported, whether or not they were already loaded.
        failed: modules that it failed to import.
        looks: the `state` of each path when it was first read, by kind (`FILE`, `FOLDER`, `IS`,
            `LINK`) and absolute path.
        missed: environment variables, and files in the user's home, that are hidden from kernels,
            each with the `file:line` of the first request.
        unseen: descriptions of actions that have no digest.
    """

    imports: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    looks: dict[tuple[str, str], str | None] = field(default_factory=dict)
    missed: dict[str, str] = field(default_factory=dict)
    unseen: set[str] = field(default_factory=set)

    def copy(self) -> ModuleRecord:
        """Return an independent copy."""
        return ModuleRecord(*(getattr(self, each).copy() for each in self.__dataclass_fields__))

    def look(self, kind: str, path: str) -> None:
        """Record a read, with the current state of the path."""
        if (kind, path) not in self.looks:
            self.looks[kind, path] = state(kind, path)


records: dict[str, ModuleRecord] = {}
"""The records of this process, by the module's name."""
loaded: dict[str, ModuleType] = {}
"""Modules that were imported or created; user code may remove them from `sys.modules`."""
after_import: list[Callable[[str], None]] = []
"""Callbacks to call after each recorded import with the name of the importing module."""
_written: set[tuple[str, str]] = set()
"""Pairs of a module and a file that it wrote; a module's own output is not an input."""


def record_of(module: str) -> ModuleRecord:
    """Return the mutable record of a module."""
    return records.setdefault(module, ModuleRecord())


def missed_so_far() -> dict[str, str]:
    """Return the hidden inputs that any module requested, with the places of the requests."""
    return {name: line for each in records.copy().values() for name, line in each.missed.items()}


def forget_written() -> None:
    """Forget which files were written."""
    _written.clear()


# ---- imports

_UNRECORDED = (
    "jax.", "jaxlib.", "numpy.", "importlib.", "pallasc.compiler.", "pallasc.specs.user_files",
)  # fmt: skip


def record_imports() -> None:
    """Start recording imports and reads; called once in a compiling process.

    From then on, the user's sources are not loaded from bytecode.
    """
    plain_import, plain_import_module = builtins.__import__, importlib.import_module
    plain_find_spec, plain_make = importlib.util.find_spec, importlib.util.module_from_spec

    def recording_import(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        # A call such as `__import__("helper")` passes no globals.
        importer = module_of(globals if isinstance(globals, dict) else sys._getframe(1).f_globals)
        with _recording_failure(importer):
            result = plain_import(name, globals, locals, fromlist, level)
        try:
            package = level and (globals.get("__package__") or importer.rpartition(".")[0])
            full = importlib.util.resolve_name("." * level + name, package or None)
            _record_from(importer, full, list(fromlist or ()))
        except Exception:  # noqa: BLE001 - an object in place of a module may raise anything
            _record_untracked(importer, "imported something that cannot be recorded")
        return result

    def recording_import_module(name: str, package: str | None = None) -> Any:
        importer = module_of(sys._getframe(1).f_globals)
        full = importlib.util.resolve_name(name, package)
        with _recording_failure(importer):
            result = plain_import_module(name, package)
        _record_import(importer, [full])
        return result

    def recording_find_spec(name: str, package: str | None = None) -> Any:
        result = plain_find_spec(name, package)
        if result is None:
            importer = module_of(sys._getframe(1).f_globals)
            record_of(importer).failed.add(importlib.util.resolve_name(name, package))
        return result

    def recording_module_from_spec(spec: Any) -> Any:
        result = loaded[spec.name] = plain_make(spec)
        _record_import(module_of(sys._getframe(1).f_globals), [spec.name])
        return result

    builtins.__import__ = recording_import
    importlib.import_module = recording_import_module
    importlib.util.module_from_spec = recording_module_from_spec
    importlib.util.find_spec = recording_find_spec
    _record_reads()
    _ignore_bytecode()


def _record_from(importer: str, full: str, items: list[str]) -> None:
    """Record `from full import items`; items may be submodules, and missing items are failures."""
    if "*" in items:
        items += getattr(sys.modules.get(full), "__all__", ())
    _record_import(importer, [full, *(f"{full}.{item}" for item in items)])
    module = sys.modules.get(full)
    if module is not None and not importer.startswith(_UNRECORDED):
        missing = {f"{full}.{i}" for i in items if i != "*" and not hasattr(module, i)}
        if missing:
            record_of(importer).failed.update(missing)


def _record_import(importer: str, names: list[str]) -> None:
    if is_standard(importer) and not is_standard(names[0]):
        importer = _on_behalf_of()
    if not importer or importer.startswith(_UNRECORDED):
        return
    record_of(importer).imports.update(names)
    for name in names:
        while name:  # the module, then its parent packages
            module = sys.modules.get(name)
            if module is not None:
                loaded[name] = module
            name = name.rpartition(".")[0]
    for call in after_import:
        call(importer)


def _on_behalf_of() -> str:
    """Return the module that made Python's library import, for example through `pkgutil`."""
    names = (name for _, name in _callers(sys._getframe(2)))
    return next((n for n in names if n and n != __name__ and not is_standard(n)), "")


@contextlib.contextmanager
def _recording_failure(importer: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name:
            record_of(importer).failed.add(error.name)
        raise


def _ignore_bytecode() -> None:
    """Stop loading bytecode for files outside the installed packages.

    Python treats bytecode as current if the size and the modification time in whole seconds match
    the source, so an edit within a second of an import would be missed.
    """
    # `get_code` catches the NotImplementedError of `cache_from_source` and compiles the source.
    external: Any = importlib.machinery.SourceFileLoader.get_code.__globals__
    plain = external["cache_from_source"]

    def cache_from_source(path: Any, *arguments: Any, **options: Any) -> Any:
        if not is_installed(str(path)) and not is_pythons(str(path)):
            raise NotImplementedError
        return plain(path, *arguments, **options)

    external["cache_from_source"] = cache_from_source


# ---- reads

_OPEN_FOR_OTHERS = frozenset({"numpy", *modules.COVERED})
"""Packages that open files on behalf of their callers."""
_FOR_THEMSELVES = frozenset({
    "inspect", "linecache", "logging", "tempfile", "tokenize", "traceback", "warnings",
})  # fmt: skip
"""Modules of Python whose calls are not attributed to their callers."""
_TESTS = frozenset({
    "exists", "is_block_device", "is_char_device", "is_dir", "is_fifo", "is_file", "is_junction",
    "is_mount", "is_socket", "is_symlink", "isdir", "isfile", "isjunction", "islink", "ismount",
    "lexists", "makedirs", "mkdir", "which",
})  # fmt: skip
"""Functions that test a path without reading it."""
_NO_INPUTS = ("/dev/",)
_NO_DIGEST = ("/proc/", "/sys/")
_UNTRACKED = {
    **dict.fromkeys(("os.fork", "os.forkpty"), "started another process"),
    **dict.fromkeys(
        ("os.exec", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen"),
        "ran another program",
    ),
    **dict.fromkeys(
        ("socket.connect", "socket.getaddrinfo", "socket.gethostbyaddr", "socket.gethostbyname",
         "socket.sendto"),
        "talked to the network",
    ),
}  # fmt: skip
"""Audit events of actions without a digest, with their descriptions."""
_FOR_WRITING = os.O_WRONLY | os.O_TRUNC | os.O_EXCL
"""Flags of `open` that prevent reading the file's earlier content."""
_SETS = (
    os.supports_dir_fd, os.supports_effective_ids, os.supports_fd, os.supports_follow_symlinks,
)  # fmt: skip

Options = Mapping[str, object]
Recorder = Callable[[str, FrameType, tuple[Any, ...], Options], None]
"""Records a call: the user's module, the frame, the arguments by position and by name."""


def _record_reads() -> None:
    # These calls open files once and cache the result; that must not be recorded.
    is_standard("os")
    is_installed(os.__file__)
    sys.addaudithook(_on_audit_event)
    for environment, kind in ((os.environ, str), (os.environb, bytes)):
        # `os.environ.get` and `os.getenv` call `__getitem__`, which Python looks up on the class.
        methods = {"__getitem__": _look_up(kind)}
        environment.__class__ = type("_Recording", (type(environment),), methods)
    functions: dict[Callable[..., Any], Any] = {
        os.open: functools.update_wrapper(functools.partial(_opening, os.open), os.open)
    }
    recorded: dict[str, Recorder] = {
        "stat": _stat,
        "lstat": functools.partial(_stat, follows=False),
        "access": functools.partial(_stat, tests=True),
        "readlink": _read_link,
    }
    for name, recorder in recorded.items():
        plain = getattr(os, name)
        functions[plain] = RecordingFunction(plain, recorder)
    for plain, recording in functions.items():
        setattr(os, plain.__name__, recording)
        for supporting in _SETS:  # such as `os.supports_dir_fd`
            if plain in supporting:
                supporting.add(recording)


def _opening(
    plain: Callable[..., int], path: Any, flags: Any, mode: Any = 0o777, *, dir_fd: Any = None
) -> int:
    """Open a file. The audit event omits `dir_fd`, so the hook reads it from this frame."""
    return plain(path, flags, mode, dir_fd=dir_fd)


class RecordingFunction:
    """A function that records its calls.

    Like built-in functions, it has no `__get__`, so it does not become a method when user code
    stores it as a class attribute.
    """

    def __init__(self, plain: Callable[..., Any], recorder: Recorder) -> None:
        functools.update_wrapper(self, plain)
        self._plain, self._recorder = plain, recorder

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call the function; the call is recorded even if it raises."""
        try:
            return self._plain(*arguments, **options)
        finally:
            frame = sys._getframe(1)
            module = _user_module(frame, private=_FOR_THEMSELVES)
            if module:
                try:
                    self._recorder(module, frame, arguments, options)
                except Exception:  # noqa: BLE001 - the user's path objects may raise anything
                    _record_untracked(module, "queried something that cannot be recorded")


def _look_up(kind: type[str] | type[bytes]) -> Callable[[Any, Any], Any]:
    def look_up(environment: Any, name: Any) -> Any:
        try:
            return super(type(environment), environment).__getitem__(name)
        except KeyError:
            module = _user_module(sys._getframe(1))
            if module and isinstance(name, kind):  # `subprocess` tries bytes keys, too
                text = os.fsdecode(name)
                if is_withheld(text) and text not in _declared:
                    _record_missed(module, text)
            raise

    return look_up


def _on_audit_event(event: str, arguments: tuple[Any, ...]) -> None:
    # `sys._getframe` raises an audit event, too.
    if event == "open":
        frame: Any = sys._getframe(1)
        path, flags, folder = arguments[0], arguments[2], None
        if frame.f_code is _opening.__code__:
            folder, frame = frame.f_locals["dir_fd"], frame.f_back
        writing = isinstance(flags, int) and bool(flags & _FOR_WRITING)
        _opened(frame, path, FILE, folder=folder, writing=writing)
    elif event in _UNTRACKED:
        module = _user_module(sys._getframe(1))
        if module:
            _record_untracked(module, _UNTRACKED[event])
    elif event in ("os.listdir", "os.scandir"):
        listed = "." if arguments[0] is None else arguments[0]
        _opened(sys._getframe(1), listed, FOLDER)
    elif event in ("ctypes.dlopen", "sqlite3.connect") and os.sep in str(arguments[0]):
        _opened(sys._getframe(1), arguments[0], FILE)
    elif event == "sys.addaudithook":
        # A hook could not be removed, and could observe or block pallasc's own calls.
        raise RuntimeError("audit hooks cannot be added in a compiling process")


def _opened(
    frame: FrameType, path: Any, kind: str, *, folder: Any = None, writing: bool = False
) -> None:
    module = _user_module(frame, transparent=_OPEN_FOR_OTHERS)
    if not module:
        return
    try:
        if isinstance(path, int) and kind == FOLDER:
            path = os.readlink(f"/proc/self/fd/{path}")
        place = absolute(path, folder)
        if place is None:
            return  # a descriptor: opening it was recorded
        if writing:
            _written.add((module, place))
        elif not place.startswith(_NO_DIGEST) or _user_module(frame):
            _read(module, place, kind)
    except Exception:  # noqa: BLE001 - the user's path objects may raise anything
        _record_untracked(module, "opened something that cannot be recorded")


def _stat(
    module: str, frame: FrameType, arguments: tuple[Any, ...], options: Options,
    *, follows: bool = True, tests: bool = False,
) -> None:  # fmt: skip
    path, folder = _path(arguments, options), options.get("dir_fd")
    place = absolute(path, folder)
    between = _functions_between(frame)
    if place in (None, os.devnull) or (module, place) in _written or "realpath" in between:
        return  # `realpath` depends only on link targets, and `readlink` records them
    relative = folder is None and not os.path.isabs(os.fsdecode(path))
    if relative and _is_importing(frame):
        return
    follows = follows and bool(options.get("follow_symlinks", True))
    tests = tests or bool(between & _TESTS) or state(IS, place) != "file"
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

    Links before a `..` are resolved, as Linux does: `link/..` is the parent of the link's target.

    Args:
        path: path as passed by the user's code.
        folder: descriptor of the folder that `path` is relative to; None for the current folder.
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


def _read(module: str, place: str, kind: str) -> None:
    if place.startswith(_NO_DIGEST):
        _record_untracked(module, f"read {place}")
    elif (module, place) not in _written and not place.startswith(_NO_INPUTS):
        _look(module, kind, place)


def _look(module: str, kind: str, place: str) -> None:
    inside = os.path.join(_home, "")
    if not _folder or not f"{place}{os.sep}".startswith(f"{_folder}{os.sep}"):
        record_of(module).look(kind, place)
    elif place.startswith(inside):
        _record_missed(module, os.path.join("~", place.removeprefix(inside)))


def _record_missed(module: str, name: str) -> None:
    """Record a request for a hidden input, with `file:line` of the module's innermost frame."""
    frames = (frame for frame, caller in _callers(sys._getframe(1)) if caller == module)
    frame = next(frames, None)
    line = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""
    record_of(module).missed.setdefault(name, line)


def _record_untracked(module: str, action: str) -> None:
    record_of(module).unseen.add(f"{shown_name(module)} {action}")


# ---- the module that causes a call

_IMPORT_SYSTEM = ("importlib", "_frozen_importlib", "_frozen_importlib_external")
_SEARCHING = frozenset({"_find_and_load", "_fill_cache", "get_code", "lookup", "search"})
"""Functions of `importlib` that search folders for modules and installed packages."""
_NOTHING: frozenset[str] = frozenset()
_active: set[int] = set()
"""Threads that are in `_user_module`."""


def _callers(frame: FrameType | None) -> Iterator[tuple[FrameType, str]]:
    while frame is not None:
        yield frame, module_of(frame.f_globals)
        frame = frame.f_back


def _user_module(
    frame: FrameType | None,
    *,
    transparent: frozenset[str] = _NOTHING,
    private: frozenset[str] = _NOTHING,
) -> str:
    """Return the user's module on whose behalf a frame runs, "" if there is none.

    Args:
        frame: the innermost frame.
        transparent: packages whose calls are attributed to their callers, as Python's own are.
        private: modules of Python's library whose calls are not attributed.
    """
    thread = threading.get_ident()
    if thread in _active:
        return ""  # classifying modules opens files, too
    _active.add(thread)
    try:
        for caller, name in _callers(frame):
            top = name.partition(".")[0]
            if top in private or _is_search(top, caller):
                return ""
            if top == "pallasc":
                return name if name.startswith(LIBRARY) else ""
            if name and top not in transparent and not is_standard(name):
                return "" if top in _OPEN_FOR_OTHERS else name
        return ""
    finally:
        _active.discard(thread)


def _is_search(top: str, frame: FrameType) -> bool:
    return top in _IMPORT_SYSTEM and frame.f_code.co_name in _SEARCHING


def _functions_between(frame: FrameType | None) -> set[str]:
    """Return the names of Python's own functions between the user's code and a call."""
    pythons = itertools.takewhile(lambda each: is_standard(each[1]), _callers(frame))
    return {caller.f_code.co_name for caller, _ in pythons}


def _is_importing(frame: FrameType | None) -> bool:
    """Return True if an installed package makes the call during its own import."""
    for caller, name in _callers(frame):
        top = name.partition(".")[0]
        if _is_search(top, caller):
            return True
        file = caller.f_globals.get("__file__")
        if top == "pallasc" or not (is_standard(name) or is_installed(str(file))):
            return False
    return False
