"""The lines that show how far a build is: a pure function of its state and of the screen's size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pallasc.cli.terminal.output import count
from pallasc.cli.terminal.text_width import cut, shorten, width
from pallasc.cli.terminal.times import about, elapsed, time_left_s
from pallasc.specs.plain_text import one_line

if TYPE_CHECKING:
    from pallasc.specs.spec import Variant

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
