"""The channel between a build and a worker; it separates replies from a kernel's stray output.

User code runs in the worker and may write to any descriptor, including the channel's. So a worker
sends each message on a line that begins with a token that only the build and the worker know:

    line := LF token SP length SP message LF
    token := 32 hexadecimal digits, chosen at random for each worker
    length := number of bytes of the message, in decimal
    message := one JSON object

Anything else is counted and ignored. If the length is wrong, other output was written into the
message, which is then garbled.

The worker first receives the token on a separate line, and then lines of JSON. These need no token:
user code cannot write to that end.
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


def read_token(descriptor: int) -> bytes:
    """Return the token that a worker receives first; nothing after it is read.

    Raises:
        EOFError: the build has ended.
    """
    text = b""
    # Byte by byte: the bytes that follow belong to the worker's buffered reader.
    while not text.endswith(b"\n"):
        data = os.read(descriptor, 1)
        if not data:
            raise EOFError("the build closed the channel")
        text += data
    return text.rstrip()


class Channel:
    """The worker's end of the channel.

    Args:
        descriptor: the descriptor to write to.
        token: see `read_token`.
    """

    def __init__(self, descriptor: int, token: bytes) -> None:
        self.descriptor, self._token = descriptor, token

    def send(self, message: Mapping[str, object]) -> None:
        """Send a message."""
        data = encode(message)
        left = memoryview(b"\n%s %d %s" % (self._token, len(data) - 1, data))
        while left:
            left = left[os.write(self.descriptor, left) :]


class Messages:
    """Reads messages from the bytes that a worker sends.

    Args:
        token: the worker's token.

    Attributes:
        stray_bytes: number of received bytes that were not part of a message.
    """

    def __init__(self, token: bytes) -> None:
        self.stray_bytes = 0
        self._token = token
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, object] | None]:
        """Process bytes and yield the complete messages, None for a garbled message."""
        self._buffer += data
        if len(self._buffer) > _LONGEST_LINE_BYTES:
            self.stray_bytes += len(self._buffer)
            self._buffer.clear()
        if b"\n" not in data:
            return
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            token, _, rest = bytes(line).partition(b" ")
            if token == self._token:
                yield _message(rest)
            elif line:
                self.stray_bytes += len(line) + 1


def _message(text: bytes) -> dict[str, object] | None:
    length, _, message = text.partition(b" ")
    try:
        return decode(message) if int(length) == len(message) else None
    except (ValueError, RecursionError):
        return None
