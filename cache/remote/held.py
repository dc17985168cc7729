"""Whole packs that are needed twice, in a file that nobody else sees instead of in memory.

Where a server gives no parts of objects, packs are read once for manifests, and again for the
artifacts of those that were accepted. The file has no name, and goes with the process.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from typing import IO

MOST_BYTES = 2**30
"""What is over this is read from the remote again."""


class Held:
    """Packs by their digests; several threads may use it."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._places: dict[str, tuple[int, int]] = {}
        self._end = 0
        self._lock = threading.Lock()

    def __del__(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def has(self, pack: str) -> bool:
        """Tell whether a pack is held."""
        return pack in self._places

    def get(self, pack: str) -> bytes | None:
        """Return a pack, None where it is not held or cannot be read."""
        if pack not in self._places or self._file is None:
            return None
        at, size = self._places[pack]
        with contextlib.suppress(OSError):
            data = os.pread(self._file.fileno(), size, at)
            return data if len(data) == size else None
        return None

    def put(self, pack: str, data: bytes) -> None:
        """Hold a pack, if there is room for it."""
        with self._lock, contextlib.suppress(OSError):
            if pack in self._places or self._end + len(data) > MOST_BYTES:
                return
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="pallasc-")  # noqa: SIM115
            self._file.seek(self._end)
            self._file.write(data)
            self._file.flush()
            self._places[pack] = (self._end, len(data))
            self._end += len(data)
