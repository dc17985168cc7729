"""Words in messages: what a misspelt one may have been, how values are shown."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

from pallasc.specs.canonical import plain

_LISTED = 12
_LONGEST = 200
"""Characters of words that are compared, which takes the product of their lengths."""

_MOST_COMPARED = 20_000
_NEAR = 0.65
"""The least ratio of `difflib`: one wrong letter of three is near, two of five are not."""
_SHORTEST_ABBREVIATION = 3


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is closest to `word`, or None when nothing is close."""
    import difflib

    candidates = itertools.islice(known, _MOST_COMPARED)
    if len(word) > _LONGEST:
        return None
    short = [candidate for candidate in candidates if len(candidate) <= _LONGEST]
    words = {candidate.lower(): candidate for candidate in sorted(short, reverse=True)}
    lower = word.lower()
    matches = difflib.get_close_matches(lower, words, n=1, cutoff=_NEAR)
    matches = matches or [name for name in words if _abbreviates(lower, name)]
    return words[matches[0]] if matches else None


def _abbreviates(short: str, word: str) -> bool:
    """Tell whether the letters of `short` stand in a word in this order: `regs`, `registers`."""
    letters = iter(word)
    return (
        len(short) >= _SHORTEST_ABBREVIATION
        and word.startswith(short[:_SHORTEST_ABBREVIATION])
        and all(letter in letters for letter in short)
    )


def suggestion(word: str, known: Iterable[str], *, otherwise: str = "Known") -> str | None:
    """Return the hint for an unknown word: the nearest one, else the list of known ones.

    Args:
        word: what the user wrote.
        known: what could have been meant.
        otherwise: the word before the list when nothing is near.
    """
    words = sorted(set(known))
    near = nearest(word, words)
    if near is not None:
        return f"Did you mean {near!r}?"
    if not words:
        return None
    more = ", …" if len(words) > _LISTED else ""
    return f"{otherwise}: {', '.join(map(shortened, words[:_LISTED]))}{more}."


def values_text(
    values: Iterable[object], asked: object = None, *, text: Callable[[object], str] = plain
) -> str:
    """Return `64, 128, 256` for a message: sorted, numbers by size, the rest of many counted.

    Args:
        values: what there is; equal ones of one type are listed once.
        asked: what is not among them; of many numbers, those nearest to it are listed.
        text: how one of them is written.
    """
    different = list({(type(value), value): value for value in values}.values())
    numbers = [value for value in different if isinstance(value, int | float)]
    if len(numbers) < len(different):
        shown = sorted(map(text, different))[:_LISTED]
    else:
        if isinstance(asked, int | float):
            numbers = sorted(numbers, key=lambda value: abs(value - asked))
        shown = list(map(text, sorted(numbers[:_LISTED])))
    more = len(different) - len(shown)
    return f"{', '.join(map(shortened, shown))}{f' and {more:,} more' if more else ''}"


def one_of(words: Sequence[str]) -> str:
    """Return `'a'`, `'a' or 'b'`, `'a', 'b' or 'c'`."""
    *others, last = map(repr, words)
    return f"{', '.join(others)} or {last}" if others else last


def shortened(text: str) -> str:
    """Return text, its end cut off where it is long."""
    return text if len(text) <= 80 else f"{text[:79]}…"


def show(value: object) -> str:
    """Return a value as a message shows it: in the words of YAML, short."""
    if isinstance(value, str):
        text = repr(value)
        return text if len(text) <= 80 else f"{text[:77]}…{text[0]}"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return plain(value)


def an(word: str) -> str:
    """Return a noun with its article: `an int`, `a float`."""
    return f"{'an' if word[:1].lower() in tuple('aeiou') else 'a'} {word}"
