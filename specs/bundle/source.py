"""Where a bundle's bytes come from: memory, or a mapped file."""

from __future__ import annotations

import mmap
import os
import stat
from typing import Protocol

from pallasc.errors import CorruptError, SpecError

# A pipe in the place of a file must not block.
_READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)


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


class MappedFile:
    """A mapped file; only what is read comes from the disk.

    A process that touches a mapped page behind the end of its file is killed. So the file is asked
    for its size before each reading: one that was cut off meanwhile is an error like any other.
    Replace bundles by renaming; those who have the old one open keep it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._name = os.fspath(path)
        self._map: mmap.mmap | None = None
        try:
            descriptor = os.open(path, _READ)
            try:
                self.size = _size(descriptor, self._name)
                if self.size:
                    self._map = mmap.mmap(descriptor, self.size, access=mmap.ACCESS_READ)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _unreadable(self._name, error.strerror) from error

    def read(self, at: int, size: int) -> bytes:
        """Return `size` bytes from a place.

        Raises:
            CorruptError: the file has been cut off since it was opened.
            SpecError: it was closed.
        """
        if not size:
            return b""
        if self._map is None:
            raise SpecError(
                f"{self._name} is closed.", hint="Keep the bundle open while it is used."
            )
        if self._map.size() < at + size:
            raise CorruptError("it was cut off while it was open")
        return self._map[at : at + size]

    def close(self) -> None:
        """Unmap the file; doing it again does nothing."""
        if self._map is not None:
            self._map.close()
            self._map = None


def open_source(file: str | os.PathLike[str] | bytes) -> tuple[Source, str]:
    """Return a source, and what messages call it.

    Raises:
        SpecError: the file cannot be read.
    """
    if isinstance(file, bytes):
        return MemorySource(file), "the bundle"
    return MappedFile(file), os.fspath(file)


def _size(descriptor: int, name: str) -> int:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise _unreadable(name, "it is no file")
    return status.st_size


def _unreadable(name: str, reason: str | None) -> SpecError:
    return SpecError(f"{name} cannot be read: {reason}.", hint="Give the path of a bundle.")
