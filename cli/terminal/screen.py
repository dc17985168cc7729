"""The terminal: its width, colors, times in words, and the live status line."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TextIO

import click

from pallasc.cli.terminal.output import count, is_ci
from pallasc.specs.plain_text import one_line

if TYPE_CHECKING:
    from pallasc.specs.spec import Variant


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


FIRST_SILENCE_S = 10.0
"""How long a build without a terminal may print nothing while something is compiled."""
LONGEST_SILENCE_S = 60.0


def duration(seconds: float) -> str:
    """Return `1.2 s`, `14 s`, `3 min 20 s` or `2 h 05 min`."""
    return f"{seconds:.1f} s" if seconds < 9.95 else elapsed(round(seconds))


def elapsed(seconds: float) -> str:
    """Return a duration in whole seconds, as for something that still runs."""
    rounded = int(seconds)
    if rounded < 120:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60:02} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60:02} min"


def about(seconds: float) -> str:
    """Return a rough estimate: `about 25 s`, `about 3 min`."""
    if seconds <= 5:
        return "a few seconds"
    if seconds <= 55:
        return f"about {-(-seconds // 5) * 5:.0f} s"
    if seconds < 5400:
        return f"about {max(1, round(seconds / 60))} min"
    return f"about {round(seconds / 3600)} h"


def time_left_s(
    *, left: int, compiled_s: Sequence[float], running_s: Sequence[float], jobs: int
) -> float | None:
    """Estimate how long the rest of a build takes from what its compilations have taken so far.

    Args:
        left: how many variants are not finished, those that run included.
        compiled_s: what each finished compilation took.
        running_s: what each running one has taken so far.
        jobs: how many run at a time.

    Returns:
        Seconds, or None where nothing can be said: nothing is compiled yet, or all that is left
        has run longer than expected.
    """
    if not compiled_s or left < 1:
        return None
    mean_s = sum(compiled_s) / len(compiled_s)
    work_s = left * mean_s - sum(min(each, mean_s) for each in running_s)
    # No build ends before the compilation that began last.
    newest_s = max((mean_s - each for each in running_s), default=0.0)
    expected_s = max(work_s / max(1, min(jobs, left)), newest_s)
    return expected_s if expected_s > 0 else None


class Heartbeat:
    """Tells when to report that something is still going on: less and less often.

    Args:
        began_s: when it began, or last reported something.
        first_s: how long it may be silent at first; the silence doubles each time, up to a minute.
    """

    def __init__(self, began_s: float, *, first_s: float = FIRST_SILENCE_S) -> None:
        self._silence_s = first_s
        self._next_s = began_s + first_s

    def put_off(self, now_s: float) -> None:
        """Wait for as long again, since something else was reported now."""
        self._next_s = now_s + self._silence_s

    def is_due(self, now_s: float) -> bool:
        """Tell whether to report now; if so, the next report is due later."""
        if now_s < self._next_s:
            return False
        self._silence_s = min(2 * self._silence_s, LONGEST_SILENCE_S)
        self._next_s = now_s + self._silence_s
        return True


Span = tuple[str, str | None]
"""Text and its colour."""

Line = list[Span]

_MOST_RUNNING = 4
_COUNTED = {"lowered": "cyan", "shared": "cyan", "compiled": "green", "failed": "red"}
"""Statuses that are counted after the hits, and their colours."""
_BAR = 40
_SHORTEST_BAR = 5
_MARGIN = 3
"""Columns that stay free: one so that nothing wraps, two for the `^C` that a terminal echoes."""


class Status(NamedTuple):
    """How far a build is.

    Attributes:
        done: how many of `total` are finished.
        counts: finished variants by status.
        running: variants and the seconds each has taken so far.
        compiled_s: what each finished compilation took.
        jobs: how many run at a time.
    """

    done: int
    total: int
    counts: Mapping[str, int]
    running: Sequence[tuple[Variant, float]] = ()
    compiled_s: Sequence[float] = ()
    jobs: int = 1


def status_lines(status: Status, columns: int, rows: int) -> list[Line]:
    """Return the lines for a screen of this size: bar, counts, the slowest that run.

    No line is wrapped, and one row of the screen stays free. Until something runs or is finished,
    one line says that it is being prepared.
    """
    room = max(1, columns - _MARGIN)
    if not status.done and not status.running:
        head = f"[0/{status.total}] " if status.total else ""
        return [_cut_line([(f"{head}getting ready", None)], room)]
    slowest = sorted(status.running, key=lambda entry: -entry[1])
    shown = slowest[: max(0, min(_MOST_RUNNING, rows - 3))]
    lines = [_bar(status, room), _counts(status), *_running(shown, room)]
    return [_cut_line(line, room) for line in lines[: max(1, rows - 1)] if line]


def _bar(status: Status, room: int) -> Line:
    part = status.done / status.total if status.total else 0.0
    figures = f"{status.done:,}/{status.total:,}  {int(100 * part)} %{_time_left(status)}"
    length = min(_BAR, room - width(figures) - 2)
    if length < _SHORTEST_BAR:
        return [(figures, None)]
    full = int(length * part)
    return [("━" * full, "green"), ("─" * (length - full), "bright_black"), (f"  {figures}", None)]


def _time_left(status: Status) -> str:
    left_s = time_left_s(
        left=status.total - status.done,
        compiled_s=status.compiled_s,
        running_s=[seconds for _, seconds in status.running],
        jobs=status.jobs,
    )
    return "" if left_s is None else f"  {about(left_s)} left"


def _counts(status: Status) -> Line:
    """Return how many there are of each status, and how many run; what there is none of, not."""
    counts = status.counts
    spans: Line = [(count(counts["hit"], "hit"), "cyan")] if counts["hit"] else []
    for word, colour in _COUNTED.items():
        if counts.get(word):
            spans += [(", ", None)] if spans else []
            spans += [(f"{counts[word]:,} {word}", colour)]
    if status.running:
        spans += [(f"{', ' if spans else ''}{len(status.running):,} running", None)]
    return spans


def _running(shown: Sequence[tuple[Variant, float]], room: int) -> list[Line]:
    """Return a line for each variant: how long it has run, aligned to the right, and its id."""
    times = [elapsed(seconds) for _, seconds in shown]
    widest = max(map(len, times), default=0)
    return [
        [
            (f"  {time:>{widest}}  ", "bright_black"),
            (shorten(one_line(variant.id), room - widest - 4), None),
        ]
        for time, (variant, _) in zip(times, shown, strict=True)
    ]


def _cut_line(line: Line, room: int) -> Line:
    """Return the spans of a line, cut to the room that there is."""
    fitting = []
    for text, colour in line:
        fitting.append((cut(text, room), colour))
        room -= width(fitting[-1][0])
    return fitting


STATUS_COLOURS = {
    "hit": "cyan",
    "lowered": "cyan",
    "shared": "cyan",
    "compiled": "green",
    "failed": "red",
    "missing": "yellow",
    "skipped": "yellow",
}

_ASCII = str.maketrans({"━": "=", "─": "-", "…": "~", "→": "->"})


class Screen(NamedTuple):
    """A stream and what it can show.

    Attributes:
        stream: where text goes.
        live: whether lines at the bottom can be redrawn.
        colour: whether words are coloured.
        ascii: whether it cannot show our bar and ellipsis.
    """

    stream: TextIO
    live: bool = False
    colour: bool = False
    ascii: bool = False

    def write(self, text: str) -> None:
        """Write text at once."""
        self.stream.write(text.translate(_ASCII) if self.ascii else text)
        self.stream.flush()

    def size(self) -> tuple[int, int]:
        """Return columns and rows as they are now; 80 and 24 where that is not known."""
        try:
            columns, rows = os.get_terminal_size(self.stream.fileno())
        except (OSError, ValueError):
            columns = rows = 0
        if columns and rows:  # a pseudo-terminal has 0 of both until somebody sets its size
            return columns, rows
        import shutil

        return shutil.get_terminal_size()  # from COLUMNS and LINES, if they are set

    @property
    def line_columns(self) -> int | None:
        """Columns that a line may take without being wrapped; None where lines stay whole."""
        # Some terminals wrap as soon as the last column is filled.
        return self.size()[0] - 1 if self.live else None

    def paint(self, text: str, colour: str | None) -> str:
        """Return text in a colour, where there are any."""
        return click.style(text, fg=colour) if self.colour and colour else text

    def paint_status(self, line: str, status: str) -> str:
        """Return a line that begins with a status, and the status in its colour."""
        end = len(status)
        return self.paint(line[:end], STATUS_COLOURS[status]) + line[end:]


def wants_colour(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Tell whether to colour: on a terminal, unless NO_COLOR is set (https://no-color.org)."""
    allowed = not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"
    return stream.isatty() and allowed


def can_redraw(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Tell whether lines can be redrawn: on a terminal that somebody looks at.

    Several CI services give their jobs a terminal, and log all that is written to it.
    """
    if environment.get("TERM") == "dumb" or is_ci(environment):
        return False
    return stream.isatty()


def stderr_screen() -> Screen:
    """Return what this process's standard error output can show."""
    stream = sys.stderr
    return Screen(
        stream,
        live=can_redraw(stream, os.environ),
        colour=wants_colour(stream, os.environ),
        ascii=_is_narrow(stream.encoding or "ascii"),  # a StringIO has no encoding
    )


def _is_narrow(encoding: str) -> bool:
    try:
        "━─…".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return True
    return False
