"""Read, publish, remove, quarantine, and lock files of the store, always as a whole.

To publish a file, an exclusive temporary file is written on the same file system and synced, and
gets its name in one step. A crash at any moment leaves either the whole file under its name, or
only a temporary file that no reader looks at. Folders are not synced: if the machine crashes, a new
name may be lost, which is a miss.

The name of a temporary file begins with a token for its process, so that it can be removed after
that process has died:

    token = host "-" pid "-" start
    host  = 12 hexadecimal digits: SHA-256 of Linux's boot id and the PID namespace
    start = the process's start time in clock ticks since boot (proc(5), field 22 of `stat`)

A process id alone is not enough: it is reused, and another container or a later boot may have
another process with the same id. If Linux does not report these values, host is "unknown" or start
is 0, and the process never counts as dead.

If several processes need the same thing, `single_flight` lets one make it while the others wait.
This only saves work: the store is correct without it. The lock is a `flock`, which Linux releases
when its holder dies; a child made by `fork` shares it, a child of `spawn` or `subprocess` does not.
After a locking error, as on some network file systems, a process continues without the lock.

Places are as in `cache/folders.py`, which does not follow links.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

from pallasc.cache.folders import Folders, share
from pallasc.cache.format import MAX_RECORD_BYTES, sha256

TEMPORARY, QUARANTINE, LOCKS = "tmp", "quarantine", "locks"
FOREIGN_S = 86_400.0
"""Time for which a file of a process on another machine counts as in use: one day."""
_FILE_MODE = 0o666
_NEW = os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_APPEND = os.O_WRONLY | os.O_APPEND
# Errors of open(2) for a symbolic link and for a socket.
_NO_FILES = {errno.ELOOP, errno.ENXIO}
# Errors of link(2) on file systems that have no hard links, or none between two folders.
_NO_LINKS = {
    errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK,
    errno.EXDEV, errno.EINVAL,
}  # fmt: skip
_TOKEN = re.compile(r"([0-9a-z]{7,12})-([0-9]{1,20})-([0-9]{1,20})", re.ASCII)
_UNKNOWN = "unknown"
_DEAD_STATES = {"Z", "X", "x"}
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.05
_tokens: dict[int, str] = {}

Identity = tuple[int, int, int]
"""Inode, modification time in ns and size: distinguishes a file from its later replacement."""

IN_PACK: Identity = (-1, -1, -1)
"""Identity of a file that was read from a pack."""


class Content(NamedTuple):
    """The bytes of a file, or the reason why it cannot be a file of the store (`fault`)."""

    data: bytes
    identity: Identity | None
    fault: str = ""


def identity(status: os.stat_result) -> Identity:
    """Return the identity of a file."""
    return status.st_ino, status.st_mtime_ns, status.st_size


# ---- reading and writing


def read(folders: Folders, place: str, *, limit_bytes: int | None = None) -> Content | None:
    """Read a whole file; None if there is none. Nothing but a regular file is read.

    Raises:
        OSError: the file exists, or may exist, but cannot be read.
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
        size, data, fault = status.st_size, b"", ""
        if not stat.S_ISREG(status.st_mode):
            fault = "not a regular file"
        elif limit_bytes is not None and size > limit_bytes:
            fault = f"{size:,} bytes is over the limit of {limit_bytes:,}"
        else:
            data = os.read(descriptor, size + 1)  # one byte more, to detect a file that grew
            if len(data) != size:  # Linux gives at most 2 GiB at once
                data += _read_rest(descriptor)
        return Content(data, identity(status), fault)
    finally:
        os.close(descriptor)


def _is_no_file(folders: Folders, place: str) -> bool:
    with contextlib.suppress(OSError):
        return not stat.S_ISREG(folders.status(place).st_mode)
    return False


def read_small(folders: Folders, place: str) -> bytes:
    """Return the bytes of a small file, empty if it is missing, unreadable, or too large."""
    with contextlib.suppress(OSError):
        file = read(folders, place, limit_bytes=MAX_RECORD_BYTES)
        return b"" if file is None else file.data
    return b""


def _read_rest(descriptor: int) -> bytes:
    parts = []
    while part := os.read(descriptor, 1 << 20):
        parts.append(part)
    return b"".join(parts)


def open_new(folders: Folders, place: str, flags: int) -> int:
    """Open a file, creating it and its folder if needed, and return its descriptor.

    Raises:
        OSError: there is something other than a file, or the file system refuses.
    """
    folder, _, name = place.rpartition("/")
    with folders.opened(folder, make=True) as above:
        try:
            descriptor = os.open(name, flags | _NEW, _FILE_MODE, dir_fd=above)
        except OSError as error:
            error.filename = str(folders.path(place))
            raise
        try:
            _check_regular(descriptor, folders, place)
            share(descriptor, above, 0o060)
        except BaseException:
            os.close(descriptor)
            raise
    return descriptor


def _check_regular(descriptor: int, folders: Folders, place: str) -> None:
    """Check that a file opened for writing or locking has no other name outside the store."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        path = str(folders.path(place))
        raise OSError(errno.EINVAL, "not a regular file with a single hard link", path)


def append(folders: Folders, place: str, text: str) -> None:
    """Append a text to a file; create the file if it is missing.

    Raises:
        OSError: the file system refuses.
    """
    descriptor = open_new(folders, place, _APPEND)
    try:
        os.write(descriptor, text.encode("ascii"))
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def temporary(folders: Folders, data: bytes | Callable[[BinaryIO], object]) -> Iterator[str]:
    """Write a new file durably in `tmp`; it is removed unless it was published.

    Args:
        folders: the folders of the store.
        data: the content, or a function that writes it.

    Raises:
        OSError: not every byte could be written.
    """
    place = temporary_place(TEMPORARY)
    descriptor = open_new(folders, place, os.O_WRONLY | os.O_EXCL)
    try:
        try:
            size = _write(descriptor, data)
            # A rename may reach the disk before the data: a crash would then leave a name without
            # data.
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


def _write(descriptor: int, data: bytes | Callable[[BinaryIO], object]) -> int:
    if callable(data):
        with open(descriptor, "wb", closefd=False) as file:
            data(file)
            return file.tell()
    left = memoryview(data)
    while left:
        written = os.write(descriptor, left)
        if written <= 0:
            raise OSError(errno.EIO, "write() wrote 0 bytes")
        left = left[written:]
    return len(data)


def temporary_place(folder: str) -> str:
    """Return a new place in a folder, with a name that begins with this process's token."""
    return f"{folder}/{process_token()}-{os.urandom(8).hex()}"


# ---- publishing and removing


def publish_first(folders: Folders, place: str, to: str) -> bool:
    """Give a file its name unless the name is taken; return False if it is.

    Without hard links, two processes that publish at the same instant may both succeed, and the
    later file stays; each file is complete.

    Raises:
        OSError: the file system refuses.
    """
    try:
        folders.link(place, to)  # rename(2) would replace an existing file
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        with contextlib.suppress(FileNotFoundError):
            folders.status(to)
            return False
        folders.rename(place, to)
    return True


def remove_same(folders: Folders, place: str, seen: Identity) -> bool:
    """Remove a file if it is still the one that was seen; return False if it changed or is gone.

    The file is renamed, then compared. If it has changed, it gets its name back; in between, other
    processes find that it is gone.

    Raises:
        OSError: the file system refuses.
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


def put_away(folders: Folders, place: str, label: str, reason: str, seen: Identity | None) -> None:
    """Move a corrupt file to `quarantine/` with the reason; disk errors are not raised.

    Args:
        folders: the folders of the store.
        place: the file.
        label: the first part of its new name.
        reason: the problem with it.
        seen: its identity when it was read, if known; a file that differs from it has been repaired
            in the meantime and stays.
    """
    aside = f"{QUARANTINE}/{label}-{os.urandom(8).hex()}"
    try:
        folders.rename(place, aside)
    except FileNotFoundError:
        return
    except OSError:
        with contextlib.suppress(OSError):
            folders.unlink(place)
        return
    with contextlib.suppress(OSError):
        if seen is not None and identity(folders.status(aside)) != seen:
            publish_first(folders, aside, place)
            folders.unlink(aside)
            return
        text = json.dumps({"path": place, "reason": reason})
        append(folders, f"{aside}.reason", f"{text}\n")


# ---- processes


def process_token() -> str:
    """Return the token of this process."""
    pid = os.getpid()
    made = _tokens.get(pid)
    if made is None:
        made = f"{host()}-{pid}-{_start(pid) or 0}"
        if not made.startswith(_UNKNOWN) and not made.endswith("-0"):
            _tokens.clear()  # a forked child has another token
            _tokens[pid] = made
    return made


def host() -> str:
    """Return an identifier of this machine since its last boot, and of this container."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return sha256(f"{boot} {os.readlink('/proc/self/ns/pid')}".encode())[:12]
    except (OSError, ValueError):
        return _UNKNOWN


def is_alive(token: str) -> bool | None:
    """Return True if the process of a token is alive; None if that is unknown here."""
    match = _TOKEN.fullmatch(token)
    if match is None or match[1] != host() or match[1] == _UNKNOWN or match[3] == "0":
        return None
    start = _start(int(match[2]))
    return None if start is None else start == int(match[3])


def is_over(name: str, time_ns: int, *, now_ns: int) -> bool:
    """Return True if the process of a file `token-random` has ended.

    Args:
        name: the file's name.
        time_ns: its modification time, which decides if the process is not visible here.
        now_ns: the current time.
    """
    alive = is_alive(name.rpartition("-")[0])
    return time_ns + FOREIGN_S * 1e9 < now_ns if alive is None else not alive


def _start(pid: int) -> int | None:
    """Return the start time of a process; 0 if it is not running, None if it cannot be read."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The name in parentheses may contain anything, so count from its end.
            fields = file.read().rpartition(")")[2].split()
        return 0 if fields[0] in _DEAD_STATES else int(fields[19])
    except (FileNotFoundError, ProcessLookupError):
        return None if _exists(pid) else 0
    except (OSError, ValueError, IndexError):
        return None


def _exists(pid: int) -> bool:
    """Return True if a process exists, even if /proc hides it, as with the option `hidepid`."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


# ---- locks


@contextlib.contextmanager
def single_flight(
    folders: Folders, place: str, *, timeout_s: float, on_error: Callable[[OSError], None]
) -> Iterator[bool]:
    """Hold the lock file at a place; yields True if it is held, False if continuing without it.

    Args:
        folders: the folders of the store.
        place: the lock file; it exists only while a process holds or wants it.
        timeout_s: how long to wait for a holder that is alive but does not finish.
        on_error: called with the reason if locking failed.
    """
    descriptor = None
    try:
        descriptor = _acquire(folders, place, time.monotonic() + timeout_s)
    except OSError as error:
        on_error(error)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            _release(folders, place, descriptor)


def _acquire(folders: Folders, place: str, deadline_s: float) -> int | None:
    """Return a locked descriptor of the current file at `place`, or None at the deadline."""
    while True:
        descriptor = _open_lock(folders, place)
        held = False
        try:
            locked = _wait(descriptor, deadline_s)
            held = locked and _is_current(folders, place, descriptor)
        finally:
            if not held:
                os.close(descriptor)
        if held:
            return descriptor
        if not locked or time.monotonic() > deadline_s:
            return None


def _open_lock(folders: Folders, place: str) -> int:
    try:
        return open_new(folders, place, os.O_RDWR)
    except PermissionError as error:
        # In a shared store, the file may be another user's. For flock, opening it to read is
        # enough.
        try:
            return _open_existing(folders, place)
        except FileNotFoundError:
            raise error from None


def _open_existing(folders: Folders, place: str) -> int:
    descriptor = folders.open_file(place)
    try:
        _check_regular(descriptor, folders, place)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _wait(descriptor: int, deadline_s: float) -> bool:
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return False
        time.sleep(min(pause_s, left_s))  # flock(2) can wait, but not for a limited time
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _is_current(folders: Folders, place: str, descriptor: int) -> bool:
    """Return True if the locked file still has its name: a previous holder may have removed it."""
    try:
        named = folders.status(place)
    except FileNotFoundError:
        return False
    held = os.fstat(descriptor)
    return (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)


def _release(folders: Folders, place: str, descriptor: int) -> None:
    with contextlib.suppress(OSError):
        if _is_current(folders, place, descriptor):
            folders.unlink(place)
    with contextlib.suppress(OSError):
        os.close(descriptor)


def is_free(folders: Folders, place: str, *, remove: bool = False) -> bool:
    """Return True if nobody holds a lock file, for example because its process was killed.

    Args:
        folders: the folders of the store.
        place: the lock file.
        remove: remove it if nobody holds it.

    Raises:
        OSError: the lock file cannot be opened, or locks do not work here.
    """
    try:
        descriptor = _open_existing(folders, place)
    except FileNotFoundError:
        return False
    try:
        if not _wait(descriptor, 0.0):
            return False
        free = _is_current(folders, place, descriptor)
        if free and remove:
            folders.unlink(place)
        return free
    finally:
        os.close(descriptor)
