"""A worker's standard output or error: its end, of bounded size."""

from __future__ import annotations

import fcntl
import os
import tempfile
from typing import IO

LONGEST_BYTES = 64 << 20
_TAIL_BYTES = 256 << 10
_LEFT_OUT = b"[%d MB of output are left out]\n"


class Log:
    """An unnamed file to which a worker appends.

    Args:
        longest_bytes: `cut` shortens a longer file.
    """

    def __init__(self, longest_bytes: int = LONGEST_BYTES) -> None:
        self.file: IO[bytes] = tempfile.TemporaryFile(prefix="pallasc-worker-")  # noqa: SIM115
        self._longest_bytes = longest_bytes
        self._start = 0
        # The worker writes to the new end after a cut, not to its old offset.
        fcntl.fcntl(self.file, fcntl.F_SETFL, os.O_APPEND)

    @property
    def size(self) -> int:
        """The length of the file in bytes."""
        return os.fstat(self.file.fileno()).st_size

    def mark(self) -> None:
        """Forget what was written until now."""
        self._start = self.size

    def tail(self, longest_bytes: int) -> str:
        """Return the end of what was written since the mark."""
        end = self.size
        start = max(self._start, end - longest_bytes)
        return os.pread(self.file.fileno(), max(0, end - start), start).decode("utf-8", "replace")

    def cut(self) -> None:
        """Drop all but the end of a long file; what is written meanwhile may be lost."""
        size = self.size
        if size <= self._longest_bytes:
            return
        end = os.pread(self.file.fileno(), _TAIL_BYTES, size - _TAIL_BYTES)
        os.ftruncate(self.file.fileno(), 0)
        self._start = 0
        os.write(self.file.fileno(), _LEFT_OUT % ((size - _TAIL_BYTES) // 1_000_000) + end)

    def close(self) -> None:
        """Close the file, which removes it."""
        self.file.close()
