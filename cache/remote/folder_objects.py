"""A remote store in a folder, `file://`: a disk that machines share, or a folder of a CI cache.

An object is a file that is written beside its place, synced and renamed, so that it is whole or not
there. One writer at a time changes the catalog: a lock file beside it, held through flock, as far
as the file system has locks. Leftovers of killed writers lie in `.tmp` and go after a day.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from pallasc.cache.openat import share
from pallasc.cache.remote.failure import Failure, RemoteError
from pallasc.cache.remote.objects import CHUNK_BYTES, Got, Item, OnBytes, too_large

_TEMPORARY = ".tmp"
_LOCK = ".lock"
_OLD_S = 24 * 3600.0
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}
_FULL = {errno.ENOSPC, errno.EDQUOT}


class FolderObjects:
    """The files below a folder.

    Args:
        folder: absolute; it is made by the first write.
        timeout_s: how long to wait for another writer's lock.
    """

    has_versions = True
    has_listing = True
    has_ranges = True

    def __init__(self, folder: Path, *, timeout_s: float = 10.0) -> None:
        self._folder = folder
        self._timeout_s = timeout_s

    def get(self, name: str, *, limit_bytes: int, on_bytes: OnBytes) -> Got:
        """Return a whole object."""
        with self._errors("read", name):
            descriptor = self._open(name)
            with open(descriptor, "rb") as file:
                size = os.fstat(descriptor).st_size
                if size > limit_bytes:
                    raise too_large(f"file://{self._folder}/{name}", size, limit_bytes)
                data = _read(file, limit_bytes, on_bytes)
        return Got(data, _version(data))

    def get_part(self, name: str, start: int, size: int, *, on_bytes: OnBytes) -> bytes:
        """Return a part of an object."""
        with self._errors("read", name), open(self._open(name), "rb") as file:
            file.seek(start)
            data = _read(file, size, on_bytes)
        if len(data) != size:
            where = f"file://{self._folder}/{name}"
            raise RemoteError(f"read {where}: it is shorter than it should be", Failure.TORN)
        return data

    def put(self, name: str, data: bytes, *, needs: Mapping[str, int] | None = None) -> None:
        """Write an object, in the place of an older one."""
        with self._errors("write", name):
            self._write(name, data)

    def put_if(self, name: str, data: bytes, version: str | None) -> bool:
        """Write an object if it still has this version, None for "does not exist"."""
        with self._errors("write", name), self._locked(name):
            try:
                now: str | None = _version(self._path(name).read_bytes())
            except FileNotFoundError:
                now = None
            if now != version:
                return False
            self._write(name, data)
            return True

    def list(self, prefix: str) -> Iterator[Item]:
        """Give all objects whose name begins with `prefix`."""
        with self._errors("list", prefix):
            for folder, folders, files in os.walk(self._path(prefix)):
                folders[:] = sorted(name for name in folders if name != _TEMPORARY)
                for file in sorted(name for name in files if not name.endswith(_LOCK)):
                    path = Path(folder, file)
                    with contextlib.suppress(FileNotFoundError):
                        status = path.lstat()
                        if stat.S_ISREG(status.st_mode):
                            name = path.relative_to(self._folder).as_posix()
                            yield Item(name, status.st_size, status.st_mtime)

    def delete(self, name: str) -> None:
        """Delete an object; one that does not exist is no error."""
        with self._errors("delete", name), contextlib.suppress(FileNotFoundError):
            self._path(name).unlink()

    def _path(self, name: str) -> Path:
        return self._folder / name

    def _open(self, name: str) -> int:
        descriptor = os.open(
            self._path(name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        )
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")

    def _write(self, name: str, data: bytes) -> None:
        path, aside = self._path(name), self._folder / _TEMPORARY
        _make(path.parent)
        _make(aside)
        temporary = aside / os.urandom(12).hex()
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            _share(temporary, 0o060)
            temporary.replace(path)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        _sync(path.parent)
        self._remove_leftovers(aside)

    def _remove_leftovers(self, aside: Path) -> None:
        """Remove what writers that were killed have left, a day later."""
        with contextlib.suppress(OSError):
            for entry in aside.iterdir():
                if time.time() - entry.lstat().st_mtime > _OLD_S:
                    entry.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        """Hold the lock of an object; go on without it where locks do not work.

        Raises:
            RemoteError: another writer holds it for too long.
        """
        path = self._path(name + _LOCK)
        _make(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            _share(path, 0o060)
            until = time.monotonic() + self._timeout_s
            while not _lock(descriptor):
                if time.monotonic() > until:
                    text = f"write file://{self._folder}/{name}: another writer holds its lock"
                    raise RemoteError(text, Failure.BUSY)
                time.sleep(0.005)
            yield
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _errors(self, verb: str, name: str) -> Iterator[None]:
        """Turn errors of the disk into those of a remote store."""
        action = f"{verb} file://{self._folder}/{name}"
        try:
            yield
        except FileNotFoundError:
            raise RemoteError(f"{action}: it does not exist", Failure.MISSING) from None
        except OSError as error:
            failure, hint = Failure.BROKEN, "Look at that folder, or name another one."
            if error.errno in _REFUSED:
                failure, hint = Failure.REFUSED, "Check whose folder it is, and its modes."
            elif error.errno in _FULL:
                failure, hint = Failure.UNREACHABLE, "Make room: pallasc cache prune --remote."
            text = f"{action}: {error.strerror or error}"
            raise RemoteError(text, failure, hint=hint) from error


def _read(file: BinaryIO, size: int, on_bytes: OnBytes) -> bytes:
    """Return up to so many bytes; a folder of a network may give them slowly."""
    parts: list[bytes] = []
    while size and (part := file.read(min(size, CHUNK_BYTES))):
        on_bytes(part)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _version(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _make(folder: Path) -> None:
    """Make a folder and those above it; what is made in a shared folder is the group's too."""
    if not folder.is_dir():
        _make(folder.parent)
        try:
            folder.mkdir(exist_ok=True)
        except FileExistsError:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
        _share(folder, 0o070)


def _share(path: Path, rights: int) -> None:
    """Give the group of a folder that is group-writable and has the setgid bit its rights."""
    with contextlib.suppress(OSError):
        made = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            above = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                share(made, above, rights)
            finally:
                os.close(above)
        finally:
            os.close(made)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # no locks on this file system: a lost update costs misses only
    return True


def _sync(folder: Path) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
