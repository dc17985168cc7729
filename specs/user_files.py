"""Reads user files (regular ones of bounded size), replaces them in one step, or executes them.

A folder is replaced as a whole, unless somebody has edited it. A file in it, `MARKER`, lists all
other files with their SHA-256. A folder with an unlisted or changed file contains somebody's work
and is not replaced. The new folder is complete before it replaces the old one.

Entry points name functions in users' Python code. They are checked without importing the code:

    entry    := (module | file) ":" name ("." name)*
    module   := name ("." name)*
    file     := a relative path with `/`, ending in `.py`

A file that declares kernels is loaded as a module with a name that no package has. Loading it
executes user code, so only worker processes do it.

This module also finds the folder of the user's settings, and reads boolean environment variables.
"""

from __future__ import annotations

import importlib.util
import json
import os
import posixpath
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, NamedTuple

from pallasc.errors import Location, SpecError, message_of
from pallasc.specs.canonical import digest
from pallasc.specs.spelling import did_you_mean, nearest, show, suggestion


def read_regular(file: str, *, most_bytes: int) -> bytes:
    """Return the content of a regular file; other kinds are not opened, since they may block.

    Raises:
        SpecError: the file does not exist, is not a regular file, is larger than `most_bytes`, or
            cannot be read.
    """
    try:
        check_regular(file)
        # The file may have been replaced since the check: opening a pipe must not block.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
        with open(os.open(file, flags), "rb") as stream:
            content = stream.read(most_bytes + 1)
    except FileNotFoundError:
        raise SpecError(f"{file}: there is no such file.") from None
    except (OSError, ValueError) as error:
        raise SpecError(f"{file}: {getattr(error, 'strerror', None) or error}.") from None
    if len(content) > most_bytes:
        raise SpecError(f"{file}: the file is larger than {most_bytes} bytes.")
    return content


def check_regular(file: str) -> None:
    """Check that a path is a regular file.

    Raises:
        SpecError: the path is a directory, a named pipe, a socket, or a device.
        OSError: the status of the path cannot be read.
    """
    mode = os.stat(file).st_mode
    if not stat.S_ISREG(mode):
        kind = "a directory" if stat.S_ISDIR(mode) else "a pipe, a socket, or a device"
        raise SpecError(f"{file}: this is {kind}, not a file.")


def replace_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file in one step; see `replacing` for errors."""
    with replacing(path) as file:
        file.write(data)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file that is replaced in one step; its mode and symbolic links are kept.

    The parent folder is created if it does not exist.

    Raises:
        SpecError: the file cannot be written; the old content remains.
    """
    place = Path(os.path.realpath(path))
    temporary = place.with_name(f".{place.name}.{os.urandom(8).hex()}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # otherwise a crash after the rename may leave it empty
        with suppress(FileNotFoundError):
            temporary.chmod(stat.S_IMODE(place.stat().st_mode))
        temporary.replace(place)
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror}."
        raise SpecError(message, hint="Give another path.") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


_OFF, _ON = ("", "0", "false", "no", "off"), ("1", "true", "yes", "on")


def read_switch(environ: Mapping[str, str], name: str, default: bool = False) -> bool:
    """Return the value of a boolean environment variable, `default` if it is not set.

    Raises:
        SpecError: the value is invalid; a misspelled one must not disable a requirement.
    """
    if name not in environ:
        return default
    text = environ[name].strip().lower()
    if text not in (*_OFF, *_ON):
        raise SpecError(f"{name} is {environ[name]!r}.", hint="Set it to 1 or to 0.")
    return text in _ON


def config_folder() -> Path:
    """Return `pallasc` below `$XDG_CONFIG_HOME`, else below `~/.config`.

    A relative `$XDG_CONFIG_HOME` is ignored, as the XDG base directory specification asks.

    Raises:
        RuntimeError: the variable is unset or relative, and this user has no home folder.
    """
    named = os.environ.get("XDG_CONFIG_HOME", "")
    base = Path(named) if os.path.isabs(named) else Path.home() / ".config"
    return base / "pallasc"


MARKER = "made.json"
_SCHEMA = 1
_HINT = "Remove it, or give another folder."


def replace_folder(folder: Path, files: Iterable[tuple[str, bytes]]) -> None:
    """Write a folder in one step.

    Args:
        folder: its path; an existing folder must be empty, or written by this function and
            unchanged.
        files: relative path and content of each file, written as they are yielded.

    Raises:
        SpecError: the folder has other content, which is kept, or it cannot be written; if its old
            content is elsewhere then, the hint has the path.
    """
    import shutil  # slow to import

    place = Path(os.path.realpath(folder))
    made = place.with_name(f".{place.name}.{os.urandom(8).hex()}")
    old = made.with_name(f"{made.name}.old")
    try:
        _check_replaceable(folder, place)
        made.mkdir(parents=True)
        for name, data in files:
            path = made / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        (made / MARKER).write_text(json.dumps(_record(made), indent=1, sort_keys=True) + "\n")
        _check_replaceable(folder, place)
        with suppress(FileNotFoundError):
            place.rename(old)
        made.rename(place)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        kept = f"Move its old content back from {old}, or give another folder."
        hint = kept if old.exists() else _HINT
        raise SpecError(f"{folder} cannot be written: {error.strerror}.", hint=hint) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _record(folder: Path) -> dict[str, object]:
    """Return the content of a folder's marker."""
    paths = [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
    names = {path.relative_to(folder).as_posix(): path for path in paths}
    digests = {name: digest(path.read_bytes()) for name, path in names.items() if name != MARKER}
    return {"schema": _SCHEMA, "files": digests}


def _check_replaceable(folder: Path, place: Path) -> None:
    if not place.exists() or not any(place.iterdir()):
        return
    try:
        record = json.loads((place / MARKER).read_bytes())
    except (OSError, ValueError, RecursionError):
        record = None
    if record != _record(place):
        message = f"{folder} holds files that pallasc did not write, or that were changed since."
        raise SpecError(message, hint=_HINT)


_ATTRIBUTES = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_MOST_BYTES = 16 * 2**20
"""Largest module that is parsed; names in larger ones are checked when imported."""

_DYNAMIC = frozenset(("globals", "setattr", "exec", "locals", "vars"))
"""Functions that may bind names that parsing does not reveal."""

_STAR = re.compile(rb"^\s*from\s.*\simport\s*\*", re.MULTILINE)
_RELATIVE = "Paths are relative to the spec's folder."
_FORM = "Write package.module:function, or file.py:function."


class Entry(NamedTuple):
    """An entry point, split at the colon.

    Attributes:
        source: the module, or the path of the file relative to the spec's folder.
        attribute: dotted name in the source.
    """

    source: str
    attribute: str

    @property
    def is_file(self) -> bool:
        """Return True if the source is a file, not a module."""
        return self.source.endswith(".py")

    def __str__(self) -> str:
        return f"{self.source}:{self.attribute}"


def parse_entry(text: str) -> Entry:
    """Split an entry point at the colon and normalize the path of a file.

    Raises:
        SpecError: the text has neither form.
    """
    source, colon, attribute = text.partition(":")
    is_file = source.endswith(".py")
    names = [attribute] if is_file else [source, attribute]
    if not colon or not all(map(_ATTRIBUTES.fullmatch, names)):
        raise SpecError(f"{show(text)} is not an entry point.", hint=_FORM)
    return Entry(normal_path(source) if is_file else source, attribute)


def check_entry(text: str, base_dir: str) -> str:
    """Return the normal form of an entry point that exists; its source is read, not imported.

    Names that appear only at run time (created by `setattr`, or in generated modules) are checked
    when imported. As in workers, the spec's folder is searched first, except for modules of the
    standard library.

    Raises:
        SpecError: the text is not an entry point, or the file, module, or name does not exist; the
            hint has the nearest one.
    """
    entry = parse_entry(text)
    find = _existing if entry.is_file else _find_module
    path = find(entry.source, base_dir)
    if path is not None:
        _check_name(entry, path)
    return str(entry)


def check_data_file(text: str, base_dir: str) -> str:
    """Return the normalized relative path of a data file that exists.

    Raises:
        SpecError: the path is absolute, or the file does not exist.
    """
    relative = normal_path(text)
    _existing(relative, base_dir)
    return relative


def normal_path(text: str) -> str:
    """Normalize a path relative to a spec's folder.

    Raises:
        SpecError: the path is absolute or contains a backslash.
    """
    if posixpath.isabs(text) or "\\" in text:
        raise SpecError(f"{show(text)} is not a relative path.", hint=_RELATIVE)
    return posixpath.normpath(text)


def _existing(relative: str, base_dir: str) -> Path:
    path = Path(base_dir, relative)
    if path.is_file():
        return path
    near = nearest(path.name, [p.name for p in _listed(path.parent) if p.is_file()])
    own = posixpath.join(posixpath.dirname(relative), near or "")
    hint = f"Did you mean {own!r}?" if near else _RELATIVE
    raise SpecError(f"file {relative!r} does not exist.", hint=hint)


def _listed(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _find_module(module: str, base_dir: str) -> Path | None:
    """Return the source file of a module, None if it has none that can be read."""
    top = module.partition(".")[0]
    # In workers, standard library modules are loaded before the spec's folder is searched.
    own = top in sys.stdlib_module_names
    folders = [*sys.path, base_dir] if own else [base_dir, *sys.path]
    name, spec = "", None
    for part in module.split("."):
        if spec is not None and not folders:  # not a package
            return None
        parent, name = name, f"{name}.{part}".removeprefix(".")
        spec = find_spec(name, folders)
        if spec is None and not parent:
            message = f"module {top!r} is neither next to the spec nor installed."
            raise SpecError(message, hint=_module_hint(top, base_dir))
        if spec is None:
            import pkgutil

            known = [info.name for info in pkgutil.iter_modules(folders)]
            hint = suggestion(part, known, otherwise="Submodules")
            raise SpecError(f"module {parent!r} has no submodule {part!r}.", hint=hint)
        folders = list(spec.submodule_search_locations or ())
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


def find_spec(name: str, folders: Sequence[str]) -> ModuleSpec | None:
    """Find a module in folders as Python does, without importing its parent packages.

    The finders of editable installs are asked, too.
    """
    for finder in sys.meta_path:
        own = finder is PathFinder
        find = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = None
        # To find a module in an archive, Python compiles it, which may fail.
        with suppress(ImportError, SyntaxError):
            # Pass only the last part of the name: for a dotted name, PathFinder would look for the
            # parent in `sys.modules`.
            where = list(folders) if own or "." in name else None
            spec = find(name.rpartition(".")[2] if own else name, where) if find else None
        if spec is not None:
            return spec
    return None


def _module_hint(top: str, base_dir: str) -> str:
    files = _listed(Path(base_dir))
    beside = {path.stem for path in files if path.suffix == ".py" or path.is_dir()}
    hint = did_you_mean(top, beside | sys.stdlib_module_names)
    return hint or "Install the package that has it, or name a file: file.py:function."


def _check_name(entry: Entry, path: Path) -> None:
    """Check the first name of an entry point; its attributes are checked when it is imported."""
    name = entry.attribute.partition(".")[0]
    try:
        names = _names_in(read_regular(str(path), most_bytes=_MOST_BYTES))
    except SpecError:
        return
    if names is None or name in names or name in ("__file__", "__name__", "__doc__"):
        return
    public = [known for known in names if not known.startswith("_")]
    raise SpecError(
        f"{entry.source!r} has no {name!r}.", hint=suggestion(name, public, otherwise="It has")
    )


@lru_cache(maxsize=64)
def _names_in(source: bytes) -> frozenset[str] | None:
    """Return the names in a module, or None if they are known only at run time."""
    import symtable

    try:
        symbols = symtable.symtable(source, "source", "exec").get_symbols()  # type: ignore[arg-type]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    names = {each.get_name() for each in symbols if each.is_assigned() or each.is_imported()}
    used = {each.get_name() for each in symbols if each.is_referenced()}
    is_dynamic = "__getattr__" in names or used & _DYNAMIC or _STAR.search(source)
    return None if is_dynamic else frozenset(names)


_PREFIX = "_pallasc_spec_"


def module_name(path: str | Path) -> str:
    """Return the module name of a loaded file, `_pallasc_spec_<stem>`."""
    return f"{_PREFIX}{Path(path).stem}"


def shown_name(module: str) -> str:
    """Return the name of a module for messages; a spec file is shown by its file name."""
    return f"{module.removeprefix(_PREFIX)}.py" if module.startswith(_PREFIX) else module


def load_module(path: str | Path, *, fresh: bool = False, shown: str | None = None) -> ModuleType:
    """Execute a Python file and return its module; its folder becomes importable.

    Args:
        path: the file.
        fresh: execute it again, even if this process has already done so.
        shown: the path to show in messages, if it differs.

    Raises:
        SpecError: the file does not exist, or executing it raised; the location is the line in it.
    """
    file = Path(path).resolve()
    name = module_name(file)
    loaded = sys.modules.get(name)
    if loaded is not None and loaded.__file__ == str(file) and not fresh:
        return loaded
    if not file.is_file():
        raise SpecError(f"{shown or path}: there is no such file.")
    # As `python FILE` does, so that a kernel can import files in the same folder.
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    return _execute(name, file, shown or str(path))


def _execute(name: str, file: Path, shown: str) -> ModuleType:
    spec: Any = importlib.util.spec_from_file_location(name, file)  # never None: a `.py` file
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module during execution
    try:
        # Cached bytecode would miss an edit within the same second.
        exec(compile(file.read_bytes(), file, "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        if isinstance(error, SpecError):
            raise
        missing = isinstance(error, ModuleNotFoundError)
        hint = f"It is neither next to {file.name} nor installed." if missing else None
        raise SpecError(_summary(error), location=_place(error, file, shown), hint=hint) from error
    return module


def _summary(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else message_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _place(error: BaseException, file: Path, shown: str) -> Location:
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return Location(shown, error.lineno or 0, error.offset or 0)
    import traceback  # only errors need it

    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno or 0 for frame in frames if frame.filename == str(file)]
    return Location(shown, lines[-1] if lines else 0)
