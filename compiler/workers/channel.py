"""The channel between a build and a worker, which keeps a kernel's stray output out of replies.

The user's code runs in the worker and may write to any descriptor, also to the channel's. So what a
worker sends travels in frames that carry a code which only the two can make:

    frame  := LF number SP code SP message LF
    number := the frame's, in decimal, from 0
    code   := HMAC-SHA256 in hexadecimal over number SP message, with a key of this worker
    message := one JSON object

Anything else is counted and ignored. A short frame follows each message, which a pipe takes as a
whole (Linux writes up to PIPE_BUF bytes atomically): if its number is not the next one, a
message was garbled.

The worker gets the key, 64 hexadecimal digits on a separate line, and then lines of JSON.
They need no code: the user's code cannot write to that end.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
from collections.abc import Iterator, Mapping

KEY_BYTES = 32
_LONGEST_FRAME_BYTES = 256 << 20
_END: Mapping[str, object] = {"end": True}


def encode(message: Mapping[str, object]) -> bytes:
    """Return a message as one line; the order of keys is kept."""
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


def make_key() -> bytes:
    """Return a key for a worker."""
    return secrets.token_bytes(KEY_BYTES)


def key_line(key: bytes) -> bytes:
    """Return the first line that a worker is sent."""
    return key.hex().encode() + b"\n"


def read_key(descriptor: int) -> bytes:
    """Return the key that a worker is sent first; read no further.

    Raises:
        EOFError: the build has ended.
    """
    text = b""
    # Byte by byte: what follows belongs to the buffered reader of the worker.
    while not text.endswith(b"\n"):
        data = os.read(descriptor, 1)
        if not data:
            raise EOFError("the build closed the channel")
        text += data
    return bytes.fromhex(text.decode())


class Channel:
    """The worker's end.

    Args:
        descriptor: where to write.
        key: what `read_key` returned.
    """

    def __init__(self, descriptor: int, key: bytes) -> None:
        self.descriptor = descriptor
        self._key = key
        self._number = 0

    def send(self, message: Mapping[str, object]) -> None:
        """Send a message."""
        for part in (message, _END):
            self._write(_frame(self._number, encode(part).rstrip(b"\n"), self._key))
            self._number += 1

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(self.descriptor, left) :]


class Frames:
    """Reads messages from the bytes that come from a worker.

    Args:
        key: of this worker.

    Attributes:
        stray_bytes: how many bytes have come that were not part of a frame.
    """

    def __init__(self, key: bytes) -> None:
        self.stray_bytes = 0
        self._key = key
        self._number = 0
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, object] | None]:
        """Take bytes and yield the complete messages, None for a garbled message."""
        self._buffer += data
        if len(self._buffer) > _LONGEST_FRAME_BYTES:
            self.stray_bytes += len(self._buffer)
            self._buffer.clear()
        if b"\n" not in data:
            return
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            yield from self._messages(bytes(line))

    def _messages(self, line: bytes) -> Iterator[dict[str, object] | None]:
        frame = _open(line, self._key)
        if frame is None or frame[0] < self._number:
            self.stray_bytes += len(line) and len(line) + 1
            return
        number, message = frame
        if number > self._number:
            yield None
        self._number = number + 1
        if message != _END:
            yield message


def _frame(number: int, payload: bytes, key: bytes) -> bytes:
    signed = b"%d %s" % (number, payload)
    code = hmac.digest(key, signed, "sha256").hex().encode()
    return b"\n%d %s %s\n" % (number, code, payload)


def _open(line: bytes, key: bytes) -> tuple[int, dict[str, object] | None] | None:
    """Return number and message of a frame, None for anything else.

    The message is None if it is malformed: user code can find the key in the worker's memory.
    """
    digits, _, rest = line.partition(b" ")
    code, _, payload = rest.partition(b" ")
    if len(code) != 64 or not digits.isdigit() or len(digits) > 18:
        return None
    expected = hmac.digest(key, b"%s %s" % (digits, payload), "sha256").hex().encode()
    if not hmac.compare_digest(code, expected):
        return None
    try:
        return int(digits), decode(payload)
    except (ValueError, RecursionError):
        return int(digits), None
