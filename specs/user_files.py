"""User files and folders: read if they are regular and of bounded size, replaced in one step.

A folder is replaced as a whole, unless somebody has edited it. `MARKER` lists all of its other
files with their SHA-256. A folder with an unlisted or changed file contains somebody's work and is
not replaced. The new folder is complete before it replaces the old one.

This module also finds the folder of the user's settings, and reads boolean environment variables.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from pallasc.errors import SpecError
from pallasc.specs.canonical import digest


def read_regular(file: str, *, most_bytes: int) -> bytes:
    """Return the content of a regular file; other kinds are not opened, since they may block.

    Raises:
        SpecError: the file does not exist, is not a regular file, is larger than `most_bytes`, or
            cannot be read.
    """
    try:
        check_regular(file)
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
        descriptor = os.open(file, flags)
        with open(descriptor, "rb") as stream:
            # The file may have been replaced since the check.
            _check_kind(file, os.fstat(descriptor))
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
        SpecError: it is a directory, a named pipe, a socket, or a device.
        OSError: its status cannot be read.
    """
    _check_kind(file, os.stat(file))


def _check_kind(file: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = "a directory" if stat.S_ISDIR(status.st_mode) else "a pipe, a socket, or a device"
        raise SpecError(f"{file}: this is {kind}, not a file.")


def replace_file(
    path: str | os.PathLike[str],
    data: bytes,
    *,
    make_folder: bool = True,
    hint: str = "Give another path.",
) -> None:
    """Write a file in one step; see `replacing` for arguments and errors."""
    with replacing(path, make_folder=make_folder, hint=hint) as file:
        file.write(data)


@contextmanager
def replacing(
    path: str | os.PathLike[str], *, make_folder: bool = True, hint: str = "Give another path."
) -> Iterator[BinaryIO]:
    """Open a file that is replaced in one step; its mode and symbolic links are kept.

    Args:
        path: the file.
        make_folder: create its parent folder.
        hint: hint of the error.

    Raises:
        SpecError: the file cannot be written; the old content remains.
    """
    place = Path(os.path.realpath(path))
    temporary = place.with_name(f".{place.name}.{os.urandom(8).hex()}")
    try:
        if make_folder:
            place.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())  # otherwise a crash after the rename may leave it empty
            with suppress(FileNotFoundError):
                temporary.chmod(stat.S_IMODE(place.stat().st_mode))
            temporary.replace(place)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise SpecError(f"{path} cannot be written: {error.strerror}.", hint=hint) from error


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
        SpecError: the folder has other content, which is kept, or it cannot be written.
    """
    import shutil  # slow to import

    place = Path(os.path.realpath(folder))
    scratch = place.with_name(f".{place.name}.{os.urandom(8).hex()}")
    try:
        _check_replaceable(folder, place)
        scratch.mkdir(parents=True)
        for name, data in files:
            path = scratch / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        (scratch / MARKER).write_text(json.dumps(_record(scratch), indent=1, sort_keys=True) + "\n")
        _check_replaceable(folder, place)
        _exchange(scratch, place)
    except OSError as error:
        raise SpecError(f"{folder} cannot be written: {error.strerror}.", hint=_HINT) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _record(folder: Path) -> dict[str, object]:
    """Return the content of a folder's marker."""
    paths = [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
    names = {path.relative_to(folder).as_posix(): path for path in paths}
    digests = {name: digest(path.read_bytes()) for name, path in names.items() if name != MARKER}
    return {"schema": _SCHEMA, "files": digests}


def _exchange(made: Path, place: Path) -> None:
    """Move a folder into place; restore the old one on failure."""
    import shutil

    old = made.with_name(f"{made.name}.old")
    with suppress(FileNotFoundError):
        place.rename(old)
    try:
        made.rename(place)
    except OSError:
        if old.exists():
            old.rename(place)
        raise
    shutil.rmtree(old, ignore_errors=True)


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
