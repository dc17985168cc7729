"""Cached SHA-256 digests of files, so that an unchanged file of 400 MB is read only once.

A file counts as unchanged if its size, modification time, change time, and inode are the same.
Times have the granularity of the system's clock, a few milliseconds, so a file that changed shortly
before it was hashed could change again unnoticed. The digest of such a file is used, but not
stored.

A path below a zip archive, such as `app.pyz/ops/add.py`, has the digest of the archive.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, to_builtins

from pallasc.cache import files, format
from pallasc.cache.folders import Folders
from pallasc.cache.manifests import Digest, Signatures
from pallasc.errors import CorruptError, ToolError

if TYPE_CHECKING:
    from pallasc.cache.manifests import Trust

YOUNG_NS = 2_000_000_000
"""Two seconds: the coarsest granularity of file times in use (FAT)."""
MAX_FILES = 100_000
PLACE = "stat/digests"
_ATTEMPTS = 4
_NICENESS = 10
"""Of all threads but one, so that a compiling process that is starting gets the processor."""
_MOST_THREADS = 8
"""With more threads, memory and reading are the bottleneck, not hashing."""
_NAME = format.sha256(b"pallasc file digests")

Signature = tuple[int, int, int, int]
"""Size in bytes, modification time and change time in ns, inode."""

Hashed = tuple[int, int, int, int, Digest]
"""The signature of a file, and its SHA-256."""


class _StoredDigests(Struct, forbid_unknown_fields=True):
    files: dict[str, Hashed]
    signed: Signatures = ()


class FileDigests:
    """Digests of files, cached in the store.

    Args:
        store_root: the store's folder; without one, digests are not kept between processes.
        now_ns: the clock that file times are compared with.
        trust: signs stored digests, and determines which are trusted.
    """

    def __init__(
        self,
        store_root: Path | str | None = None,
        *,
        now_ns: Callable[[], int] = time.time_ns,
        trust: Trust | None = None,
    ) -> None:
        self._folders = None
        if store_root is not None:
            self._folders = Folders(Path(store_root).absolute() / format.FOLDER)
        self._now_ns = now_ns
        self._trust = trust
        self._hashed: dict[str, Hashed] = {}
        self._unsaved: dict[str, Hashed] = {}
        self._lock = threading.Lock()
        self.hashed = 0
        """Number of files that were read, for statistics and tests."""

    def digest(self, path: Path | str) -> str:
        """Return the SHA-256 of a file's bytes; symbolic links are followed.

        Raises:
            ToolError: the file cannot be read, or is not a regular file.
        """
        is_absolute = isinstance(path, str) and path.startswith(os.sep)
        place = str(path) if is_absolute else os.path.abspath(path)  # abspath is slow
        try:
            try:
                status = os.stat(place)
            except NotADirectoryError:
                place = file_holding(place)
                status = os.stat(place)
            signature = _signature(status)
            held = self._hashed.get(place) or self._remembered.get(place)
            if held is not None and held[:4] == signature:
                self._hashed[place] = held
                return held[4]
            return self._hash(place)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ToolError(f"{place}: cannot be hashed: {reason}") from error

    def remembers(self, path: Path | str) -> bool:
        """Return True if a file was hashed before; it may have changed since."""
        path = os.path.abspath(path)
        return path in self._hashed or path in self._remembered

    def hash_ahead(self, paths: Iterable[Path | str]) -> None:
        """Hash files that are not cached, in threads; `digest` then returns the results.

        Files that cannot be hashed are left to `digest`, which raises the error.
        """
        known = self._hashed.keys() | self._remembered.keys()
        waiting = sorted({str(path) for path in paths} - known, key=_size)  # largest first
        number = min(len(os.sched_getaffinity(0)), _MOST_THREADS)
        workers = [
            threading.Thread(target=self._hash_all, args=(waiting, niceness), daemon=True)
            for niceness in (0, *[_NICENESS] * (number - 1))
        ]
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        finally:
            waiting.clear()  # an interrupt ends the threads after their current file

    def _hash_all(self, waiting: list[str], niceness: int) -> None:
        os.nice(niceness)  # in Linux, of this thread
        while waiting:
            with contextlib.suppress(OSError, ValueError, IndexError):
                self._hash(waiting.pop())

    def save(self) -> bool:
        """Store new digests; return False if there are none, or they cannot be written."""
        if self._folders is None or not self._unsaved:
            return False
        entries = _load(self._folders, self._trust) | self._unsaved
        if len(entries) > MAX_FILES:
            entries = self._unsaved
        body: dict[str, object] = {"files": entries}
        if self._trust is not None:
            body = self._trust.signed(format.STAT, _NAME, body)
        data, _ = format.encode(format.STAT, _NAME, body)
        try:
            with files.temporary(self._folders, data) as place:
                self._folders.rename(place, PLACE)
        except OSError:
            return False
        self._unsaved = {}
        return True

    @cached_property
    def _remembered(self) -> dict[str, Hashed]:
        return {} if self._folders is None else _load(self._folders, self._trust)

    def _hash(self, place: str) -> str:
        """Hash a file, again if it changes meanwhile; cache the digest unless the file is new."""
        for _ in range(_ATTEMPTS):
            began_ns = self._now_ns()
            before, digest, after = _hash_file(place)
            with self._lock:
                self.hashed += 1
            if before == after:
                self._hashed[place] = (*before, digest)
                if max(before[1], before[2]) + YOUNG_NS < began_ns:
                    self._unsaved[place] = self._hashed[place]
                return digest
        raise OSError(f"it changed {_ATTEMPTS} times while it was read")


def file_holding(place: str) -> str:
    """Return the file that contains a path: the path itself, or the archive above it."""
    try:
        os.stat(place)
    except NotADirectoryError:
        parents = (str(parent) for parent in Path(place).parents)
        return next(filter(os.path.isfile, parents), place)
    except (OSError, ValueError):
        pass
    return place


def _size(place: str) -> int:
    try:
        return os.stat(place).st_size
    except (OSError, ValueError):
        return 0


def _signature(status: os.stat_result) -> Signature:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _hash_file(place: str) -> tuple[Signature, str, Signature]:
    descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb", buffering=0) as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("not a regular file")
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return _signature(status), digest, _signature(os.fstat(descriptor))


def _load(folders: Folders, trust: Trust | None) -> dict[str, Hashed]:
    """Return the remembered digests; none if the file is missing or not signed by a trusted key."""
    try:
        data = files.read_small(folders, PLACE)
        body: _StoredDigests = format.decode(format.STAT, _NAME, data, _StoredDigests)[0]
    except CorruptError:
        return {}
    if trust is not None and trust.strict:
        return body.files if trust.vouches(format.STAT, _NAME, to_builtins(body)) else {}
    return body.files
