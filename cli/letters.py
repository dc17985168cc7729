"""How much room text takes on a terminal, and text without what a terminal would obey."""

from __future__ import annotations

import re
import unicodedata

ELLIPSIS = "…"

# Control sequences (colours, cursor movement), titles and other strings, and two-letter escapes.
_ESCAPE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)|\x1b[ -/]*[0-Z\\-~]", re.DOTALL
)
_CONTROL = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}


def printable(text: str) -> str:
    """Return text without escape sequences and control characters; lines end in a line feed."""
    if text.isprintable():
        return text
    text = _ESCAPE.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return text.translate(_CONTROL)


def one_line(text: str) -> str:
    """Return printable text as one line."""
    return text if text.isprintable() else printable(text).replace("\n", " ")


def width(text: str) -> int:
    """Return how many columns a line takes: two for wide letters, none for combining ones."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def cut(text: str, columns: int) -> str:
    """Return the beginning of a line that fits into so many columns."""
    if width(text) <= columns:
        return text
    taken = 0
    for index, letter in enumerate(text):
        taken += _columns(letter)
        if taken > columns:
            return text[:index]
    return text


def shorten(text: str, columns: int) -> str:
    """Return a line that fits, its middle left out: the ends of an id are kernel and target."""
    if width(text) <= columns:
        return text
    if columns < 1:
        return ""
    tail = (columns - 1) // 2
    return cut(text, columns - 1 - tail) + ELLIPSIS + cut(text[::-1], tail)[::-1]


def _columns(letter: str) -> int:
    if unicodedata.category(letter) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in ("W", "F") else 1
