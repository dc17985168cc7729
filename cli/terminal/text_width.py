"""How many columns text takes on a terminal."""

from __future__ import annotations

import unicodedata

ELLIPSIS = "…"


def width(text: str) -> int:
    """Return how many columns a line takes: two for wide letters, none for combining ones."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def cut(text: str, columns: int) -> str:
    """Return the beginning of a line that fits into this many columns."""
    if width(text) <= columns:
        return text
    taken = 0
    for index, character in enumerate(text):
        taken += _columns(character)
        if taken > columns:
            return text[:index]
    return text


def shorten(text: str, columns: int) -> str:
    """Return a line that fits, without its middle: an id ends with its target."""
    if width(text) <= columns:
        return text
    if columns < 1:
        return ""
    tail = (columns - 1) // 2
    return cut(text, columns - 1 - tail) + ELLIPSIS + cut(text[::-1], tail)[::-1]


def _columns(character: str) -> int:
    # Combining marks and invisible controls stay in the column before.
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1
