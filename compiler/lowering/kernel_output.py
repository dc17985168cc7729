"""A kernel's output for `pallasc inspect`: while it is traced and lowered, and when it runs.

`debug=True` makes Pallas print the traced kernel and its MLIR module. Paths and lines of source are
in there, so it is not part of an artifact, which is the same everywhere; a manifest carries it,
compressed. What `pl.debug_print` prints at each launch is in the PTX: calls of `vprintf` with
formats in memory (CUDA C++ Programming Guide, "Formatted Output").
"""

from __future__ import annotations

import base64
import contextlib
import io
import re
import sys
import zlib
from collections.abc import Iterator
from typing import TextIO

LONGEST_TEXT = 1 << 20
"""Of a longer text, only the end is kept."""

_FORMAT = re.compile(
    r"^\.global \.align 1 \.b8 printfFormat_(?P<number>\d+)\[\d+\] = \{(?P<bytes>[\d, ]+)\};$",
    re.MULTILINE,
)
_LEFT_OUT = "[first {} characters omitted]\n"


class _Tee(io.TextIOBase):
    """Passes text on and copies it."""

    def __init__(self, to: TextIO) -> None:
        self.copy = io.StringIO()
        self._to = to

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        self._to.write(text)
        return self.copy.write(text)

    def flush(self) -> None:
        self._to.flush()


@contextlib.contextmanager
def printed_text() -> Iterator[io.StringIO]:
    """Collect what is printed meanwhile; it is still printed."""
    tee = _Tee(sys.stdout)
    with contextlib.redirect_stdout(tee):
        yield tee.copy


def pack(text: str) -> str:
    """Return a text as a manifest holds it, "" for ""."""
    if not text:
        return ""
    left_out = len(text) - LONGEST_TEXT
    if left_out > 0:
        text = _LEFT_OUT.format(left_out) + text[left_out:]
    return base64.b64encode(zlib.compress(text.encode("utf-8", "replace"), 9)).decode()


def unpack(packed: object) -> str:
    """Return the text that `pack` packed, "" if it is damaged."""
    if not isinstance(packed, str) or not packed:
        return ""
    inflate = zlib.decompressobj()
    try:
        data = inflate.decompress(base64.b64decode(packed, validate=True), 8 * LONGEST_TEXT)
    except (ValueError, zlib.error):
        return ""
    return data.decode("utf-8", "replace")


def formats(ptx: str) -> list[str]:
    """Return what a kernel prints when it runs, as formats of C, in the order of its source."""
    by_number = {int(match["number"]): match["bytes"] for match in _FORMAT.finditer(ptx)}
    return [_text(by_number[number]) for number in sorted(by_number)]


def _text(numbers: str) -> str:
    data = bytes(int(number) for number in numbers.split(","))
    return data.rstrip(b"\0").decode("utf-8", "replace")
