"""Files of the store: read one whole, publish one whole.

A file is published by writing an exclusive temporary file on the same file system, syncing it,
giving it its name in one step, and syncing the folder. A crash at any moment leaves either the
whole file under its name, or nothing but a temporary file that no reader looks at.

Places are those of `cache/folders.py`, which sees to it that no link is followed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

from pallasc.cache import process
from pallasc.cache.folders import Folders
from pallasc.cache.openat import share

FILE_MODE = 0o666
"""Before the umask."""
TEMPORARY, QUARANTINE = "tmp", "quarantine"

_NEW = os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
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

# SQLite's integers have a sign; some file systems use all 64 bits of an inode number.
_LARGEST = 2**63 - 1

Identity = tuple[int, int, int]
"""Inode, modification time in ns and size: tells a file from its later replacement."""

IN_PACK: Identity = (-1, -1, -1)
"""Of what was read from a pack: see `cache/packed.py`."""


class Content(NamedTuple):
    """What lay under a name: its bytes, or why it cannot be a file of the store (`fault`)."""

    data: bytes
    identity: Identity | None
    fault: str = ""


def identity(status: os.stat_result) -> Identity:
    """Return what tells this file from a later one of the same name."""
    return status.st_ino & _LARGEST, min(status.st_mtime_ns, _LARGEST), status.st_size


def read(folders: Folders, place: str, *, limit_bytes: int | None = None) -> Content | None:
    """Read a whole file; None if there is none. Nothing but a regular file is read.

    Raises:
        OSError: if it is there, or may be, but cannot be read.
    """
    try:
        descriptor = folders.open_file(place)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in _NO_FILES and _is_no_file(folders, place):
            return Content(b"", None, "not a regular file")
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return Content(b"", identity(status), "not a regular file")
        if limit_bytes is not None and status.st_size > limit_bytes:
            fault = f"{status.st_size:,} bytes is over the limit of {limit_bytes:,}"
            return Content(b"", identity(status), fault)
        return Content(_read_all(descriptor, status.st_size), identity(status))
    finally:
        os.close(descriptor)


def _is_no_file(folders: Folders, place: str) -> bool:
    with contextlib.suppress(OSError):
        return not stat.S_ISREG(folders.status(place).st_mode)
    return False


def _read_all(descriptor: int, size: int) -> bytes:
    """Read to the end; one byte more than `size` is asked for, to see a file that grew."""
    data = os.read(descriptor, size + 1)  # Linux gives at most 2 GiB at once
    if len(data) == size:
        return data
    parts = [data]
    while part := os.read(descriptor, 1 << 20):
        parts.append(part)
    return b"".join(parts)


def open_new(folders: Folders, place: str, flags: int) -> int:
    """Open a file that may be made by this, its folder too, and return its descriptor.

    Raises:
        OSError: something else than a file lies there, or the file system refuses.
    """
    folder, _, name = place.rpartition("/")
    with folders.opened(folder, make=True) as above:
        try:
            descriptor = os.open(name, flags | _NEW, FILE_MODE, dir_fd=above)
        except OSError as error:
            error.filename = str(folders.path(place))
            raise
        try:
            check_regular(descriptor, folders, place)
            share(descriptor, above, 0o060)
        except BaseException:
            os.close(descriptor)
            raise
    return descriptor


def check_regular(descriptor: int, folders: Folders, place: str) -> None:
    """Check that a file opened for writing or locking has no other name outside of the store.

    Raises:
        OSError: it is a pipe, a device or a folder, or a file that has another name too.
    """
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        path = str(folders.path(place))
        raise OSError(errno.EINVAL, "not a regular file with a single hard link", path)


@contextlib.contextmanager
def temporary(folders: Folders, data: bytes | Callable[[BinaryIO], object]) -> Iterator[str]:
    """Write a new file durably in `tmp`; it is removed where it was not published.

    Args:
        folders: of the store.
        data: the content, or a function that writes it.

    Raises:
        OSError: if not every byte could be written.
    """
    place = temporary_place(TEMPORARY)
    descriptor = open_new(folders, place, os.O_WRONLY | os.O_EXCL)
    try:
        try:
            size = (
                _write_all(descriptor, data) if isinstance(data, bytes) else _fill(descriptor, data)
            )
            # A rename may reach the disk before the data: a crash would leave a name without them.
            os.fsync(descriptor)
            if os.fstat(descriptor).st_size != size:
                path = str(folders.path(place))
                raise OSError(errno.EIO, "the file's size differs from what was written", path)
        finally:
            os.close(descriptor)
        yield place
    finally:
        with contextlib.suppress(OSError):
            folders.unlink(place)


def write_new(folders: Folders, place: str, data: bytes) -> None:
    """Write a new file for people to read, so without syncing it.

    Raises:
        OSError: it already exists, or the file system refuses.
    """
    descriptor = open_new(folders, place, os.O_WRONLY | os.O_EXCL)
    try:
        _write_all(descriptor, data)
    finally:
        os.close(descriptor)


def temporary_place(folder: str) -> str:
    """Return a new place in a folder; its name tells which process made it."""
    return f"{folder}/{process.token()}-{os.urandom(8).hex()}"


def _fill(descriptor: int, write: Callable[[BinaryIO], object]) -> int:
    with open(descriptor, "wb", closefd=False) as file:
        write(file)
        return file.tell()


def _write_all(descriptor: int, data: bytes) -> int:
    left = memoryview(data)
    while left:
        written = os.write(descriptor, left)
        if written <= 0:
            raise OSError(errno.EIO, "write() wrote 0 bytes")
        left = left[written:]
    return len(data)


def publish_first(folders: Folders, place: str, to: str) -> bool:
    """Give a file its name unless the name is taken; False if it is.

    Without hard links two processes that publish at the same instant may both succeed, and the
    later file stays; each is whole.

    Raises:
        OSError: if the file system refuses.
    """
    try:
        folders.link(place, to)  # rename(2) would replace what has the name
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if _exists(folders, to):
            return False
        folders.rename(place, to)
    folders.sync(to.rpartition("/")[0])
    return True


def _exists(folders: Folders, place: str) -> bool:
    with contextlib.suppress(FileNotFoundError):
        folders.status(place)
        return True
    return False


def publish_last(folders: Folders, place: str, to: str) -> None:
    """Give a file its name, in the place of what had it. The folder is not synced yet.

    Raises:
        OSError: if the file system refuses.
    """
    folders.rename(place, to)


def remove_same(folders: Folders, place: str, seen: Identity) -> bool:
    """Remove a file if it is still the one that was seen; False if it is another, or gone.

    It loses its name first and is looked at then: whoever uses it meanwhile either has it given
    back, or finds that it is gone.

    Args:
        folders: of the store.
        place: the file.
        seen: what `identity` said when it was seen.

    Raises:
        OSError: if the file system refuses.
    """
    aside = temporary_place(TEMPORARY)
    try:
        folders.rename(place, aside)
    except FileNotFoundError:
        return False
    same = False
    try:
        same = identity(folders.status(aside)) == seen
        if not same:
            publish_first(folders, aside, place)
    finally:
        with contextlib.suppress(OSError):
            folders.unlink(aside)
    return same


def remove_any(folders: Folders, place: str) -> None:
    """Remove a file; a folder in its place moves to `quarantine/`.

    Raises:
        OSError: if the file system refuses.
    """
    try:
        folders.unlink(place)
    except FileNotFoundError:
        return
    except OSError:
        if not stat.S_ISDIR(folders.status(place).st_mode):
            raise
        folders.rename(place, temporary_place(QUARANTINE))


def put_away(
    folders: Folders, place: str, aside: str, reason: str, identity_then: Identity | None
) -> None:
    """Move a corrupt file aside and write down why; never raises for the disk.

    Args:
        folders: of the store.
        place: the file.
        aside: where to, in `quarantine/`.
        reason: what is wrong with it.
        identity_then: what `identity` said when it was read, if that is known; a file that is
            another by now was healed meanwhile and stays.
    """
    try:
        folders.rename(place, aside)
    except FileNotFoundError:
        return
    except OSError:
        with contextlib.suppress(OSError):
            folders.unlink(place)
        return
    with contextlib.suppress(OSError):
        if identity_then is not None and identity(folders.status(aside)) != identity_then:
            # Another process has healed it meanwhile: this is the new file, so give it back.
            publish_first(folders, aside, place)
            folders.unlink(aside)
            return
        text = json.dumps({"path": place, "reason": reason})
        write_new(folders, f"{aside}.reason", f"{text}\n".encode("ascii"))
