"""How far a run is, on the standard error output: a line for each key, and one that is redrawn."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pallasc.cli.terminal.output import count
from pallasc.cli.terminal.screen import Screen, stderr_screen
from pallasc.cli.terminal.text_width import cut
from pallasc.specs.plain_text import one_line, printable
from pallasc.specs.tuning import use_text

if TYPE_CHECKING:
    from pallasc.runtime.tuning.job import Match
    from pallasc.specs.loading.tune_results import Contest, PointResults
    from pallasc.specs.templates import Scalar

_INTERVAL_S = 0.1
_ERASE = "\r\x1b[2K"


class Progress:
    """Shows a run; where lines cannot be redrawn, only what is finished.

    Args:
        screen: where.
        quiet: show failures only.
    """

    def __init__(self, screen: Screen, *, quiet: bool) -> None:
        self._screen = screen
        self._quiet = quiet
        self._place = ""
        self._drawn = ""
        self._drawn_s = 0.0

    def say(self, text: str) -> None:
        """Print text above the line that is redrawn."""
        self._erase()
        self._screen.write(f"{printable(text)}\n")

    def began(self, match: Match, number: int, total: int) -> None:
        """Show which contest begins."""
        self._place = f"[{number}/{total}] {match.text}"
        self._draw(f"{self._place}: starting {count(len(match.entries), 'point')}")

    def measured(self, match: Match, contest: Contest) -> None:
        """Show how many points are left."""
        if time.monotonic() - self._drawn_s >= _INTERVAL_S:
            out = sum(bool(p.failed or p.dropped) for p in contest.points.values())
            left = count(len(match.entries) - out, "point")
            self._draw(f"{self._place}: round {len(contest.rounds)}, {left} left")

    def failed(self, match: Match, name: str, why: str) -> None:
        """Print a point that is lost."""
        self.say(f"{self._screen.paint('failed', 'red')}  {one_line(name)}: {one_line(why)}")

    def done(self, match: Match, contest: Contest) -> None:
        """Print the winner of a contest."""
        if not self._quiet:
            self.say(contest_line(match, contest))

    def end(self) -> None:
        """Remove the line that is redrawn."""
        self._erase()

    def _draw(self, text: str) -> None:
        if self._quiet or not self._screen.live:
            return
        self._erase()
        self._drawn = cut(one_line(text), self._screen.size()[0] - 1)
        self._drawn_s = time.monotonic()
        self._screen.write(self._drawn)

    def _erase(self) -> None:
        if self._drawn:
            self._screen.write(_ERASE)
            self._drawn = ""


@contextmanager
def stderr_progress(*, quiet: bool) -> Iterator[Progress]:
    """Give the progress of this process's standard error output."""
    progress = Progress(stderr_screen(), quiet=quiet)
    try:
        yield progress
    finally:
        progress.end()


def contest_line(match: Match, contest: Contest) -> str:
    """Return the line of a contest that is done: the winner, its time, and why."""
    rounds = count(len(contest.rounds), "round")
    failed = sum(bool(point.failed) for point in contest.points.values())
    lost = f", {failed} failed" if failed else ""
    of = f"{count(len(match.entries), 'point')}{lost}, {rounds}"
    if contest.winner is None:
        return f"{match.text}: {contest.done} ({of})"
    point = contest.points[contest.winner]
    use = use_text(_use(match, point))
    return f"{match.text}: {use or point.id}, {point.median_us:,.2f} µs, {contest.done} ({of})"


def _use(match: Match, point: PointResults) -> dict[str, Scalar]:
    tuning = match.entries[point.id].tuning
    return {name: point.params[name] for name in tuning.over} if tuning is not None else {}
