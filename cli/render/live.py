"""Live display of a build: finished variants scroll above a status area that is redrawn.

Only colours and three controls are used: carriage return, "cursor up" and "erase the line", since
tmux keeps what "erase to the end of the screen" removes. The cursor stays visible and no mode is
changed, so that a process which is killed leaves the terminal usable.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pallasc.cli.render.progress import Progress, ResultLine
from pallasc.cli.render.result_text import lines_below, result_line
from pallasc.cli.terminal.interrupts import deferred
from pallasc.cli.terminal.screen import (
    STATUS_COLOURS,
    Line,
    Screen,
    Status,
    status_lines,
    stderr_screen,
    width,
)
from pallasc.compiler.builds.report import Event, Tick, VariantResult
from pallasc.specs.plain_text import printable
from pallasc.specs.spec import Variant

if TYPE_CHECKING:
    from pallasc.cache.store import Store

_INTERVAL_S = 0.1
_QUIET_S = 0.3
"""Delay before the status appears; builds with only hits usually finish earlier."""
_FEW_HITS = 20


def stderr_progress(
    *,
    hits: bool = True,
    quiet: bool = False,
    line: ResultLine = result_line,
    clock: Callable[[], float] = time.monotonic,
) -> Progress:
    """Return the progress for this process's standard error output; arguments as of `Progress`."""
    screen = stderr_screen()
    if quiet or not screen.live:
        return Progress(screen, hits=hits, quiet=quiet, line=line, clock=clock)
    return Live(screen, hits=hits, line=line, clock=clock)


@contextmanager
def store_progress(
    store: Store, *, hits: bool = True, quiet: bool = False, line: ResultLine = result_line
) -> Iterator[Progress]:
    """Give this process's progress, which also shows the warnings of a store."""
    with stderr_progress(hits=hits, quiet=quiet, line=line) as progress:
        store.warn_by(lambda text: progress.say(f"warning: {text}"))
        yield progress


class Live(Progress):
    """Shows the events of a build on a terminal.

    Hits get a line each in small builds; in larger ones they are counted.
    """

    def __init__(
        self,
        screen: Screen,
        *,
        hits: bool = True,
        line: ResultLine = result_line,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(screen, hits=hits, line=line, clock=clock)
        self._began_s = clock()
        self._drawn_s = -math.inf
        self._drawn: list[Line] = []
        self._visible = False
        self._counts = dict.fromkeys(STATUS_COLOURS, 0)
        self._running: list[tuple[Variant, float]] = []
        self._latest: Event | Tick = Tick((), 0, 0)
        self._tick = Tick((), 0, 0)

    def __call__(self, event: Event | Tick) -> None:
        """Note an event, and draw if that was not done a moment ago."""
        self._latest = event
        now_s = self._clock()
        if isinstance(event, Tick):
            self._tick = event
            self._running = [(variant, now_s - seconds) for variant, seconds in event.running]
        elif event.result is None:
            self._running.append((event.variant, now_s))
            self._visible = True
        else:
            self._finish(event.result)
        if now_s - self._drawn_s >= _INTERVAL_S:
            self._visible = self._visible or now_s - self._began_s >= _QUIET_S
            if self._visible or self._held:
                self._draw(now_s)

    def say(self, text: str) -> None:
        """Print text above the status."""
        self._held.append(f"{printable(text)}\n")
        self._draw(self._clock())

    def end(self) -> None:
        """Print what is still held, and remove the status."""
        self._visible = False
        self._draw(self._clock())

    def _finish(self, result: VariantResult) -> None:
        self._counts[result.status] += 1
        if self._running:
            # By identity: equality would compare every field of thousands of variants.
            self._running = [entry for entry in self._running if entry[0] is not result.variant]
        if result.status == "hit" and not (self.hits and self._latest.total <= _FEW_HITS):
            return
        line = self.screen.paint_status(self.line(result, self.screen.line_columns), result.status)
        self._held += [f"{text}\n" for text in (line, *lines_below(result))]

    def _draw(self, now_s: float) -> None:
        """Write what is held, and the status below it, at once so that nothing flickers."""
        columns, rows = self.screen.size()
        lines = status_lines(self._status(now_s), columns, rows) if self._visible else []
        if self._held or lines != self._drawn:
            shown = "\n".join(self._painted(line) for line in lines)
            with deferred():  # or what an interrupt leaves drawn would never be removed
                self.screen.write(_erase(self._drawn, columns) + "".join(self._held) + shown)
                self._held.clear()
                self._drawn = lines
        self._drawn_s = now_s

    def _status(self, now_s: float) -> Status:
        return Status(
            done=self._latest.done,
            total=self._latest.total,
            counts=self._counts,
            running=[(variant, now_s - since_s) for variant, since_s in self._running],
            compiled_s=self._tick.compiled_s,
            jobs=self._tick.jobs,
        )

    def _painted(self, line: Line) -> str:
        return "".join(self.screen.paint(text, colour) for text, colour in line)


def _erase(lines: list[Line], columns: int) -> str:
    """Return what removes lines, where the cursor is at the end of the last of them.

    A terminal that has become narrower since has wrapped them.
    """
    if not lines:
        return ""
    widths = [width("".join(text for text, _ in line)) for line in lines]
    above = sum(max(1, -(-each // columns)) for each in widths) - 1  # the cursor is in the last one
    return "\r\x1b[2K" + "\x1b[1A\x1b[2K" * above
