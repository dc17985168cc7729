"""Where a bundle's bytes come from: memory, or a file."""

from __future__ import annotations

import os
import stat
import weakref
from pathlib import Path
from typing import Protocol

from pallasc.errors import CorruptError, SpecError

# A pipe in the place of a file must not block.
_READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)


SUFFIX = ".pallasc"


def is_bundle(path: Path) -> bool:
    """Tell whether a path is one of a bundle: by its name, or by how the file begins."""
    from pallasc.specs.bundle.format import MAGIC

    # By name too, so that a truncated or missing bundle is told as one.
    if path.suffix == SUFFIX and not path.is_dir():
        return True
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


class Source(Protocol):
    """Bytes that can be read in part."""

    @property
    def size(self) -> int:
        """How many there are."""

    def read(self, at: int, size: int) -> bytes:
        """Return `size` bytes from a place; both lie within what there is.

        Raises:
            CorruptError: they are no longer there.
            SpecError: the source was closed.
        """

    def close(self) -> None:
        """Let go of them."""


class MemorySource:
    """Bytes in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self._data)

    def read(self, at: int, size: int) -> bytes:
        """Return `size` bytes from a place."""
        return self._data[at : at + size]

    def close(self) -> None:
        """Do nothing: memory is let go of by itself."""


class OpenFile:
    """A file that is read in part; only what is asked for comes from the disk.

    It is not mapped: a process that touches a mapped page after the end of its file is killed, and
    a file can be cut off at any moment. Replace bundles by renaming; those who have the old one
    open keep it. Several threads may read at once, and so may a process and those that it forks.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._name = os.fspath(path)
        try:
            self._descriptor = os.open(path, _READ)
        except OSError as error:
            raise _unreadable(self._name, error.strerror) from error
        self._close = weakref.finalize(self, os.close, self._descriptor)
        try:
            self.size = _size(self._descriptor, self._name)
        except SpecError:
            self._close()
            raise

    def read(self, at: int, size: int) -> bytes:
        """Return `size` bytes from a place.

        Raises:
            CorruptError: the file has been cut off since it was opened.
            SpecError: it was closed, or cannot be read.
        """
        if not self._close.alive:
            raise SpecError(
                f"{self._name} is closed.", hint="Keep the bundle open while it is used."
            )
        data = self._read(at, size)
        while data and len(data) < size:
            more = self._read(at + len(data), size - len(data))
            if not more:
                break
            data += more
        if len(data) < size:
            raise CorruptError("it was cut off while it was open")
        return data

    def close(self) -> None:
        """Let go of the file; doing it again does nothing."""
        self._close()

    def _read(self, at: int, size: int) -> bytes:
        try:
            # pread has no position that threads and forked processes would share.
            return os.pread(self._descriptor, size, at)
        except OSError as error:
            raise _unreadable(self._name, error.strerror) from error


def open_source(file: str | os.PathLike[str] | bytes) -> tuple[Source, str]:
    """Return a source, and what messages call it.

    Raises:
        SpecError: the file cannot be read.
    """
    if isinstance(file, bytes):
        return MemorySource(file), "the bundle"
    return OpenFile(file), os.fspath(file)


def _size(descriptor: int, name: str) -> int:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise _unreadable(name, "it is not a file")
    return status.st_size


def _unreadable(name: str, reason: str | None) -> SpecError:
    return SpecError(f"{name} cannot be read: {reason}.", hint="Give the path of a bundle.")
