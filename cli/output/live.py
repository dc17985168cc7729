"""Status area of a build on a terminal, as rich text; imported only by `progress.Live`."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.text import Text

from pallasc.cli.output.text import Screen, count, elapsed

_MOST_RUNNING = 4
_COUNTED = {"lowered": "cyan", "shared": "cyan", "compiled": "green", "failed": "red"}
"""Statuses counted after the hits, and their colors."""
_BAR = 40
_SHORTEST_BAR = 5
_MARGIN = 3
"""Columns kept free: one to prevent wrapping, two for the `^C` that a terminal echoes."""


def status_lines(
    done: int,
    total: int,
    counts: Mapping[str, int],
    running: Sequence[tuple[str, float]],
    time_left: str,
    columns: int,
    rows: int,
) -> list[Text]:
    """Return the lines of the status area: progress bar, counts, slowest running variants.

    No line wraps, and one row of the screen stays free. Until a variant starts or finishes, a
    single line reports that the build is getting ready.

    Args:
        done: number of finished variants.
        total: number of variants.
        counts: number of finished variants by status.
        running: running variants with elapsed seconds.
        time_left: estimated remaining time, as text.
        columns: width of the screen.
        rows: height of the screen.
    """
    room = max(1, columns - _MARGIN)
    if not done and not running:
        lines = [Text(f"{f'[0/{total}] ' if total else ''}getting ready")]
    else:
        slowest = sorted(running, key=lambda entry: -entry[1])
        shown = slowest[: max(0, min(_MOST_RUNNING, rows - 3))]
        lines = [_bar(done, total, time_left, room), _counts(counts, len(running))]
        lines = [*lines, *_running(shown)][: max(1, rows - 1)]
    for line in lines:
        line.truncate(room, overflow="ellipsis")
    return [line for line in lines if line]


def _bar(done: int, total: int, time_left: str, room: int) -> Text:
    part = done / total if total else 0.0
    figures = f"{done:,}/{total:,}  {int(100 * part)} %{f'  {time_left}' if time_left else ''}"
    length = min(_BAR, room - len(figures) - 2)
    if length < _SHORTEST_BAR:
        return Text(figures)
    full = int(length * part)
    rest = ("─" * (length - full), "bright_black")
    return Text.assemble(("━" * full, "green"), rest, f"  {figures}")


def _counts(counts: Mapping[str, int], running: int) -> Text:
    """Return the nonzero counts by status, and the number of running variants."""
    parts = [Text(count(counts["hit"], "hit"), "cyan")] if counts["hit"] else []
    parts += [Text(f"{counts[w]:,} {w}", c) for w, c in _COUNTED.items() if counts.get(w)]
    parts += [Text(f"{running:,} running")] if running else []
    return Text(", ").join(parts)


def _running(shown: Sequence[tuple[str, float]]) -> list[Text]:
    """Return one line per variant: its right-aligned elapsed time and its id."""
    times = [elapsed(seconds) for _, seconds in shown]
    widest = max(map(len, times), default=0)
    return [
        Text.assemble((f"  {time:>{widest}}  ", "bright_black"), name)
        for time, (name, _) in zip(times, shown, strict=True)
    ]


def terminal_text(lines: Sequence[Text], screen: Screen) -> str:
    """Render lines as terminal text, with colors if the screen has any."""
    stream = io.StringIO()
    console = Console(
        file=stream,
        force_terminal=True,
        color_system="standard" if screen.colour else None,
        legacy_windows=False,
    )
    console.print(Text("\n").join(lines), end="", soft_wrap=True)
    return stream.getvalue()
