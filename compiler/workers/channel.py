"""The channel between a build and a worker: one JSON object per line, in both directions.

User code runs in the worker and may write to any descriptor, including the channel's. Then a line
is not a message, and the current task fails.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping

_LONGEST_LINE_BYTES = 256 << 20


def encode(message: Mapping[str, object]) -> bytes:
    """Return a message as one line; the order of keys is preserved."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, object]:
    """Return the message on a line.

    Raises:
        ValueError: it is not a JSON object.
    """
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError(f"a message is a JSON object, not a {type(message).__name__}")
    return message


class Channel:
    """The worker's end of the channel.

    Args:
        descriptor: the descriptor to write to.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def send(self, message: Mapping[str, object]) -> None:
        """Send a message."""
        left = memoryview(encode(message))
        while left:
            left = left[os.write(self.descriptor, left) :]


class Messages:
    """Reads messages from the bytes that a worker sends."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, object] | None]:
        """Process bytes and yield the complete messages, None for anything else."""
        self._buffer += data
        if len(self._buffer) > _LONGEST_LINE_BYTES:
            self._buffer.clear()
            yield None
        if b"\n" not in data:
            return
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            try:
                yield decode(bytes(line))
            except (ValueError, RecursionError):
                yield None
