"""Output of a compilation, and of the kernels that it compiles.

The compiler, which is C++, writes to file descriptors (`captured_output`). With `debug=True`,
Pallas prints the traced kernel and its MLIR module, for `pallasc inspect` (`printed_text`). This
text contains paths and source lines, so it is stored, compressed, in a manifest and not in an
artifact, which is the same everywhere. Text that `pl.debug_print` prints at each launch is in the
PTX, as calls of `vprintf` with formats in memory (CUDA C++ Programming Guide, "Formatted Output").
"""

from __future__ import annotations

import base64
import contextlib
import io
import os
import re
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import TextIO

LONGEST_TEXT = 1 << 20
"""Maximum length of a text; only the end of a longer text is kept."""

_FORMAT = re.compile(
    r"^\.global \.align 1 \.b8 printfFormat_(?P<number>\d+)\[\d+\] = \{(?P<bytes>[\d, ]+)\};$",
    re.MULTILINE,
)
ENTRY = re.compile(r"^\s*(?:\.visible\s+)?\.entry\s+([\w$]+)", re.MULTILINE)
"""Matches the name of a kernel in PTX."""
_LEFT_OUT = "[first {} characters omitted]\n"


@contextlib.contextmanager
def captured_output() -> Iterator[Callable[[], str]]:
    """Collect output to file descriptors 1 and 2, including output of C++ code.

    Yields a function that returns the text so far.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryFile() as file:
        saved = [os.dup(1), os.dup(2)]
        try:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            yield lambda: os.pread(file.fileno(), 1 << 24, 0).decode("utf-8", "replace")
        finally:
            for target, descriptor in enumerate(saved, start=1):
                os.dup2(descriptor, target)
                os.close(descriptor)


class _Tee(io.StringIO):
    """Passes text on and keeps a copy."""

    def __init__(self, to: TextIO) -> None:
        super().__init__()
        self._to = to

    def write(self, text: str, /) -> int:
        self._to.write(text)
        return super().write(text)


@contextlib.contextmanager
def printed_text() -> Iterator[io.StringIO]:
    """Collect printed text while the context lasts; it is still printed."""
    with contextlib.redirect_stdout(_Tee(sys.stdout)) as text:
        yield text


def pack(text: str) -> str:
    """Compress a text for a manifest; "" stays ""."""
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
    """Return the C format strings that a kernel prints when it runs, in source order."""
    by_number = {int(match["number"]): match["bytes"] for match in _FORMAT.finditer(ptx)}
    texts = [bytes(map(int, by_number[number].split(","))) for number in sorted(by_number)]
    return [text.rstrip(b"\0").decode("utf-8", "replace") for text in texts]


def by_kernel(texts: Iterable[str]) -> dict[str, list[str]]:
    """Return PTX texts by the names of their kernels; several kernels may have the same name."""
    found: dict[str, list[str]] = {}
    for text in texts:
        for name in ENTRY.findall(text):
            found.setdefault(name, []).append(text)
    return found
