"""Frames of a pack while the answer that has them arrives.

An answer of several MB may take long, or stop in its middle. A frame in it is verified when its
last byte is there: from then on it can be used, and was worth the time that it took.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence

from pallasc.cache.packs.format import Frame


class Arriving:
    """The frames that are here so far, of all attempts to read them.

    Args:
        frames: in the order of their offsets; one that overlaps another is left out.
        on_right: is called with each frame that has the digest it should have.
    """

    def __init__(self, frames: Sequence[Frame], on_right: Callable[[Frame], None]) -> None:
        self._frames = frames
        self._on_right = on_right
        self._right: dict[Frame, bytes] = {}
        self._lock = threading.Lock()

    def right(self) -> list[tuple[Frame, bytes]]:
        """Return frames that are here, and their bytes; another thread may be adding to them."""
        with self._lock:
            return list(self._right.items())

    def begin(self, start: int) -> Callable[[bytes], None]:
        """Return what is called with the bytes of one answer in their order.

        Args:
            start: where in the pack the answer begins.
        """
        frames = iter(self._frames)
        frame = next(frames, None)
        held, at = bytearray(), start

        def arrived(data: bytes) -> None:
            nonlocal frame, at
            view = memoryview(data)
            while frame is not None and view:
                end = frame.offset + frame.size if at >= frame.offset else frame.offset
                part, view = view[: end - at], view[end - at :]
                inside = at >= frame.offset
                at += len(part)
                if inside:
                    held.extend(part)
                if inside and at == end:
                    self._add(frame, bytes(held))
                    held.clear()
                    frame = next((each for each in frames if each.offset >= at), None)

        return arrived

    def _add(self, frame: Frame, data: bytes) -> None:
        if hashlib.sha256(data).hexdigest() == frame.digest:
            with self._lock:
                self._right[frame] = data
            self._on_right(frame)
