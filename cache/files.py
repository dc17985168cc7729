"""Files of the store: read one whole, publish one whole.

A file is published by writing an exclusive temporary file on the same file system, syncing it,
giving it its name in one step, and syncing the folder. A crash at any moment leaves either the
whole file under its name, or nothing but a temporary file that no reader looks at.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pallasc.cache import process

FILE_MODE = 0o666
FOLDER_MODE = 0o777
"""Both before the umask."""
_SHARED = stat.S_ISGID | stat.S_IWGRP
"""A folder with both bits is shared by its group, and so is all that is made in it."""

# A pipe in the place of a file must not block, nor a symbolic link lead somewhere else.
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
# What open(2) answers for a symbolic link and for a socket.
_NO_FILES = {errno.ELOOP, errno.ENXIO}
# What link(2) answers on file systems that have no hard links, or none between two folders.
_NO_LINKS = {
    errno.EPERM,
    errno.EACCES,
    errno.ENOTSUP,
    errno.EOPNOTSUPP,
    errno.ENOSYS,
    errno.EMLINK,
    errno.EXDEV,
    errno.EINVAL,
}
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF, errno.EACCES}

# SQLite's integers have a sign; some file systems use all 64 bits of an inode number.
_LARGEST = 2**63 - 1

Identity = tuple[int, int, int]
"""Inode, modification time in ns and size: tells a file from its later replacement."""


@dataclass(frozen=True, slots=True)
class Found:
    """What lay under a name: its bytes, or why it cannot be a file of the store (`fault`)."""

    data: bytes
    identity: Identity | None
    fault: str = ""


def identity(status: os.stat_result) -> Identity:
    """Return what tells this file from a later one of the same name."""
    return status.st_ino & _LARGEST, min(status.st_mtime_ns, _LARGEST), status.st_size


def read(path: str, *, limit_bytes: int | None = None) -> Found | None:
    """Read a whole file; None if there is none.

    Raises:
        OSError: if it is there, or may be, but cannot be read.
    """
    try:
        descriptor = os.open(path, _READ)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in _NO_FILES and _is_no_file(path):
            return Found(b"", None, "not a regular file")
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return Found(b"", identity(status), "not a regular file")
        if limit_bytes is not None and status.st_size > limit_bytes:
            return Found(b"", identity(status), f"{status.st_size} bytes are too many")
        return Found(_read_all(descriptor, status.st_size), identity(status))
    finally:
        os.close(descriptor)


def _is_no_file(path: str) -> bool:
    with contextlib.suppress(OSError):
        return not stat.S_ISREG(os.lstat(path).st_mode)
    return False


def _read_all(descriptor: int, size: int) -> bytes:
    """Read to the end; one byte more than `size` is asked for, to see a file that grew."""
    data = os.read(descriptor, size + 1)
    if len(data) == size:
        return data
    parts = [data]
    while part := os.read(descriptor, 1 << 20):
        parts.append(part)
    return b"".join(parts)


def make_folder(path: Path) -> None:
    """Make a folder and those above it, each synced into its parent.

    Raises:
        OSError: if one cannot be made, or a file is in the way.
    """
    if path.is_dir():
        return
    make_folder(path.parent)
    try:
        os.mkdir(path, FOLDER_MODE)
        _share(path, path.parent, 0o070)
    except FileExistsError:
        if not path.is_dir():
            raise
    sync_folder(path.parent)


def open_new(path: Path, flags: int) -> int:
    """Open a file that may be made by this, and return its descriptor.

    Raises:
        OSError: if the file system refuses.
    """
    descriptor = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
    _share(descriptor, path.parent, 0o060)
    return descriptor


def _share(made: Path | int, folder: Path, rights: int) -> None:
    """Give the group of a shared folder its rights in what is new there, whatever the umask."""
    with contextlib.suppress(OSError):  # the file of another user, who has seen to it
        if os.stat(folder).st_mode & _SHARED == _SHARED:
            mode = stat.S_IMODE(os.stat(made).st_mode)
            if mode & rights != rights:
                os.chmod(made, mode | rights)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable, where the file system can.

    Raises:
        OSError: if the disk fails.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def temporary(folder: Path, data: bytes) -> Iterator[Path]:
    """Write a new durable file into `folder`; what is still there afterwards is removed.

    Raises:
        OSError: if not every byte could be written.
    """
    path, descriptor = _create(folder)
    try:
        try:
            _write_all(descriptor, data)
            os.fsync(descriptor)
            if os.fstat(descriptor).st_size != len(data):
                raise OSError(errno.EIO, "the file is not as long as what was written", str(path))
        finally:
            os.close(descriptor)
        yield path
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def temporary_name(folder: Path) -> Path:
    """Return a new name in a folder, which tells of which process it is."""
    return folder / f"{process.token()}-{os.urandom(8).hex()}"


def _create(folder: Path) -> tuple[Path, int]:
    path = temporary_name(folder)
    try:
        return path, open_new(path, os.O_WRONLY | os.O_EXCL)
    except FileNotFoundError:
        make_folder(folder)
        return path, open_new(path, os.O_WRONLY | os.O_EXCL)


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        written = os.write(descriptor, left)
        if written <= 0:
            raise OSError(errno.EIO, "a write wrote nothing")
        left = left[written:]


def publish_first(temporary_path: Path, path: Path) -> bool:
    """Give a file its name unless the name is taken; False if it is.

    Without hard links two processes that publish at the same instant may both succeed, and the
    later file stays; each is whole.

    Raises:
        OSError: if the file system refuses.
    """
    make_folder(path.parent)
    try:
        os.link(temporary_path, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(path):
            return False
        os.rename(temporary_path, path)
    sync_folder(path.parent)
    return True


def publish_last(temporary_path: Path, path: Path) -> None:
    """Give a file its name, in the place of what had it. The folder is not synced yet.

    Raises:
        OSError: if the file system refuses.
    """
    make_folder(path.parent)
    os.replace(temporary_path, path)


def remove_same(path: Path, known: Identity, folder: Path) -> bool:
    """Remove a file if it is still the one that was seen; False if it is another, or gone.

    It loses its name first and is looked at then, so that whoever uses it meanwhile either has it
    given back, or finds that it is gone.

    Args:
        path: the file.
        known: what `identity` said when it was seen.
        folder: a folder for temporary files on the same file system.

    Raises:
        OSError: if the file system refuses.
    """
    aside = temporary_name(folder)
    make_folder(folder)
    try:
        os.rename(path, aside)
    except FileNotFoundError:
        return False
    same = False
    try:
        same = identity(os.lstat(aside)) == known
        if not same:
            publish_first(aside, path)
    finally:
        with contextlib.suppress(OSError):
            aside.unlink()
    return same


def remove_any(path: Path, folder: Path) -> None:
    """Remove a file; a folder in its place moves to `quarantine/`.

    Raises:
        OSError: if the file system refuses.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError:
        if not path.is_dir():
            raise
        aside = temporary_name(folder / "quarantine")
        make_folder(aside.parent)
        path.rename(aside)
