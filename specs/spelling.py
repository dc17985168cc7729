"""Text of messages: suggestions, values, quantities, and untrusted text made safe to print.

Names, messages, and output come from specs, stores, bundles, kernels, and exceptions. Terminals
execute escape sequences, characters that change the direction of text mislead readers, and CI
services execute lines that look like commands:

* GitHub: `::name …::` at the start of a line, `##[name]` anywhere in it
  (https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands)
* Azure Pipelines: `##vso[…]`; TeamCity: `##teamcity[…]`
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence

from pallasc.specs.canonical import plain

_LISTED = 12
_LONGEST = 200
"""Longest word that is compared; a comparison costs the product of the lengths."""

_MOST_COMPARED = 20_000
_NEAR = 0.65
"""Minimum ratio of `difflib`: one wrong letter in three is near, two in five are not."""
_SHORTEST_ABBREVIATION = 3


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word closest to `word`, or None if none is close."""
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
    """Return True if a word contains the letters of `short` in order: `regs`, `registers`."""
    letters = iter(word)
    return (
        len(short) >= _SHORTEST_ABBREVIATION
        and word.startswith(short[:_SHORTEST_ABBREVIATION])
        and all(letter in letters for letter in short)
    )


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """Return the hint with the known word closest to `word`, or None if none is close."""
    near = nearest(word, known)
    return None if near is None else f"Did you mean {near!r}?"


def suggestion(word: str, known: Iterable[str], *, otherwise: str = "Known") -> str | None:
    """Return the hint for an unknown word: the nearest known one, else a list of them.

    Args:
        word: the user's text.
        known: the valid words.
        otherwise: introduces the list if no word is near.
    """
    words = sorted(set(known))
    hint = did_you_mean(word, words)
    if hint or not words:
        return hint
    more = ", …" if len(words) > _LISTED else ""
    return f"{otherwise}: {', '.join(map(shortened, words[:_LISTED]))}{more}."


def values_text(
    values: Iterable[object], asked: object = None, *, text: Callable[[object], str] = plain
) -> str:
    """Return values for a message, `64, 128, 256 and 5 more`: sorted, numbers by size.

    Args:
        values: the available values; equal values of one type are listed once.
        asked: the user's value, which is not available; of many numbers, the nearest are listed.
        text: formats a value.
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
    """Cut text that is longer than 80 characters."""
    return text if len(text) <= 80 else f"{text[:79]}…"


_UNITS = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0))
_TIMES = (("", 1.0), ("m", 1e-3), ("µ", 1e-6), ("n", 1e-9))


def amount(number: float, units: Sequence[tuple[str, float]] = _UNITS) -> str:
    """Return a number with four significant digits and an SI prefix: `34.36 G`."""
    letter, unit = next((each for each in units if number >= each[1]), units[-1])
    return f"{number / unit:.4g} {letter}"


def short_time(seconds: float) -> str:
    """Return the time of a kernel with four significant digits: `12.5 µs`."""
    return f"{amount(seconds, _TIMES)}s"


def listed(lines: Sequence[str], most: int) -> list[str]:
    """Return the first `most` lines, and a line with the number of the others."""
    more = len(lines) - most
    return [*lines[:most], *([f"and {more:,} more"] if more > 0 else [])]


def show(value: object) -> str:
    """Return a short form of a value for messages, in YAML's words."""
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


# Control sequences (colors, cursor movement), titles and other strings, two-letter escapes.
_ESCAPE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)|\x1b[ -/]*[0-Z\\-~]", re.DOTALL
)
_COMMAND = re.compile(r"^([^\S\n]*)::", re.MULTILINE)
_MARKER = re.compile(r"##(?=\[|vso\[|teamcity\[)", re.IGNORECASE)
_BIDIRECTIONAL = (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_TAGS = range(0xE0000, 0xE0080)
"""Invisible copies of ASCII."""
UNDECODED = {0xDC00 + byte: f"\\x{byte:02x}" for byte in range(0x80, 0x100)}
"""Bytes in file names that are not UTF-8: Python's surrogates, and the text to show."""
_CHANGED: dict[int, str | None] = {
    **{code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"},
    **dict.fromkeys((*_BIDIRECTIONAL, *_TAGS)),
    **dict.fromkeys((0x2028, 0x2029), "\n"),
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),
    **UNDECODED,
}


def printable(text: str) -> str:
    r"""Remove everything that a terminal or a CI service would execute.

    Escape sequences, control characters, and direction marks are removed. Bytes of file names that
    are not UTF-8 become `\xe9`; other surrogates are replaced. Lines end in a line feed. Commands
    of CI services get a space: `: :error` and `## [`.
    """
    if not text.isprintable():
        text = _ESCAPE.sub("", text).replace("\r\n", "\n").replace("\r", "\n").translate(_CHANGED)
    if "::" in text:
        text = _COMMAND.sub(r"\1: :", text)
    return _MARKER.sub("## ", text) if "##" in text else text


def one_line(text: str) -> str:
    """Return printable text as one line."""
    shown = printable(text)
    return shown if "\n" not in shown else printable(shown.replace("\n", " "))
