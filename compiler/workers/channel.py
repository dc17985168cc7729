"""The channel between a build and a worker, in which a kernel's stray words are told from answers.

The user's code runs in the worker, beside the descriptor of the channel, and may write to any
descriptor. So what a worker says travels in frames that carry a code only the two can make:

    frame  := LF number SP code SP message LF
    number := the frame's, in decimal, from 0
    code   := HMAC-SHA256 in hexadecimal over number SP message, with a key of this worker
    message := one JSON object

What else comes is counted and left out. A short frame, which a pipe takes as a whole, follows each
message: where its number is ahead of what was read, a message was garbled.

To the worker go lines of JSON, behind the key, 64 hexadecimal digits on a line of their own. They
need no code: the user's code cannot write to that end.
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
    """Return a key for one worker."""
    return secrets.token_bytes(KEY_BYTES)


def key_line(key: bytes) -> bytes:
    """Return what a worker is sent first."""
    return key.hex().encode() + b"\n"


def read_key(descriptor: int) -> bytes:
    """Return the key from the beginning of what a worker is sent, and read no more than that.

    Raises:
        EOFError: the build has gone.
    """
    text = b""
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
    """Makes messages of the bytes that come from a worker.

    Args:
        key: of this worker.

    Attributes:
        stray_bytes: how many bytes have come that were no part of a frame.
    """

    def __init__(self, key: bytes) -> None:
        self.stray_bytes = 0
        self._key = key
        self._number = 0
        self._heard = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, object] | None]:
        """Take bytes and yield the messages that are complete, None for one that was garbled."""
        self._heard += data
        if len(self._heard) > _LONGEST_FRAME_BYTES:
            self.stray_bytes += len(self._heard)
            self._heard.clear()
        if b"\n" not in data:
            return
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            yield from self._messages(bytes(line))

    def _messages(self, line: bytes) -> Iterator[dict[str, object] | None]:
        found = _open(line, self._key)
        if found is None or found[0] < self._number:
            self.stray_bytes += len(line) and len(line) + 1
            return
        number, message = found
        if number > self._number:
            yield None
        self._number = number + 1
        if message != _END:
            yield message


def _frame(number: int, payload: bytes, key: bytes) -> bytes:
    signed = b"%d %s" % (number, payload)
    code = hmac.digest(key, signed, "sha256").hex().encode()
    return b"\n%d %s %s\n" % (number, code, payload)


def _open(line: bytes, key: bytes) -> tuple[int, dict[str, object]] | None:
    """Return number and message of a frame, None of anything else."""
    digits, _, rest = line.partition(b" ")
    code, _, payload = rest.partition(b" ")
    if len(code) != 64 or not digits.isdigit() or len(digits) > 18:
        return None
    right = hmac.digest(key, b"%s %s" % (digits, payload), "sha256").hex().encode()
    if not hmac.compare_digest(code, right):
        return None
    return int(digits), decode(payload)
