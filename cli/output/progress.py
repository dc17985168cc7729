"""Build progress on stderr, one line per finished variant.

On a terminal, `Live` prints finished variants above a status area that it redraws. It uses only
colors and three control sequences: carriage return, "cursor up" and "erase line". It avoids "erase
to end of screen" because tmux keeps the erased lines. The cursor stays visible and no terminal mode
changes, so a killed process leaves the terminal usable. Only `Live` imports rich.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from pallasc.cli.output.build_text import counter, lines_below, result_line
from pallasc.cli.output.outcome import Outcome, built
from pallasc.cli.output.text import (
    STATUS_COLOURS,
    Screen,
    about,
    count,
    elapsed,
    error_text,
    stderr_screen,
)
from pallasc.compiler.builds.report import Event, Tick, VariantResult
from pallasc.specs.spelling import one_line, printable

if TYPE_CHECKING:
    from rich.text import Text

    from pallasc.errors import SpecError
    from pallasc.specs.spec import Variant

FIRST_SILENCE_S = 10.0
"""Time after which a build without a terminal first reports that it is still compiling."""
LONGEST_SILENCE_S = 60.0
_HELD_LINES = 512
"""Number of hit lines written at a time: about 64 kB."""
_HELD_S = 1.0
_MOST_NAMED = 3

_INTERVAL_S = 0.1
_QUIET_S = 0.3
"""Delay before the status appears; builds with only hits usually finish earlier."""
_FEW_HITS = 20
_MOST_RUNNING = 4
_BAR = 40
_SHORTEST_BAR = 5
_MARGIN = 3
"""Columns kept free: one to prevent wrapping, two for the `^C` that a terminal echoes."""

ResultLine = Callable[[Outcome], str]
"""Formats the line of a result, like `result_line`."""


class Heartbeat:
    """Decides when to report that something is still running, at increasing intervals.

    Args:
        first_s: first interval in seconds; it doubles after each report, up to a minute.
        clock: returns the time in seconds.
    """

    def __init__(
        self, first_s: float = FIRST_SILENCE_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._silence_s = first_s
        self._clock = clock
        self.put_off()

    def put_off(self) -> None:
        """Restart the current interval, because something else was reported."""
        self._next_s = self._clock() + self._silence_s

    def is_due(self) -> bool:
        """Return True if a report is due, and start the next interval."""
        if self._clock() < self._next_s:
            return False
        self._silence_s = min(2 * self._silence_s, LONGEST_SILENCE_S)
        self.put_off()
        return True


class Progress:
    """Prints the events of a build, one line each; lines of hits are written in batches.

    As a context manager, it prints buffered lines even if an exception ends the build.

    Args:
        screen: output screen.
        hits: print a line for each variant found in the store.
        quiet: print only failures.
        line: formats the line of a result.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        screen: Screen,
        *,
        hits: bool = True,
        quiet: bool = False,
        line: ResultLine | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.screen = screen
        self.hits = hits and not quiet
        self.quiet = quiet
        self.line = line or result_line
        self._clock = clock
        self._held: list[str] = []
        self._written_s = clock()
        self._heartbeat = Heartbeat(clock=clock)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def __call__(self, event: Event | Tick) -> None:
        """Print the line of an event, if it has one."""
        # A build may have thousands of hits, but few other events.
        if event.__class__ is Event and event.kind == "hit":
            if self.hits and event.result is not None:
                self._hold_hit(event, event.result)
        elif isinstance(event, Tick):
            self._beat(event)
        elif event.result is not None:
            self._heartbeat.put_off()
            if not self.quiet or event.result.error is not None:
                self._put(self._finished_text(event, event.result))
        else:
            self.end()  # the next output may take a while

    def say(self, text: str) -> None:
        """Print lines of text after any buffered lines."""
        self._put(printable(text))

    def mention(self, text: str) -> None:
        """Print informational lines, unless quiet."""
        if not self.quiet:
            self.say(text)

    def end(self) -> None:
        """Print buffered lines."""
        if self._held:
            text = "".join(self._held)
            self._held.clear()
            self.screen.write(text)
            self._written_s = self._clock()

    def _finished_text(self, event: Event, result: VariantResult) -> str:
        outcome = built(result)
        line = self.screen.paint_status(self.line(outcome), outcome.status)
        return "\n".join([f"{counter(event.done, event.total)} {line}", *lines_below(outcome)])

    def _put(self, text: str) -> None:
        """Print text that is already printable and may contain colors."""
        self._held.append(f"{text}\n")
        self.end()

    def _hold_hit(self, event: Event, result: VariantResult) -> None:
        """Buffer a hit's line: a build without changes prints thousands of them."""
        line = self.screen.paint_status(self.line(built(result)), "hit")
        self._held.append(f"{counter(event.done, event.total)} {line}\n")
        if len(self._held) >= _HELD_LINES or self._clock() - self._written_s > _HELD_S:
            self.end()

    def _beat(self, tick: Tick) -> None:
        """Print the running variants if nothing has finished for some time."""
        self.end()
        if self._heartbeat.is_due():
            self.mention(heartbeat(tick))


def heartbeat(tick: Tick) -> str:
    """Return `[ 12/200] compiling 2: matmul@b200 14 s, add@b200 3 s; about 3 min left`.

    The slowest variants are named, and the others counted.
    """
    what = "waiting" if tick.done else "getting ready"
    if tick.running:
        slowest = sorted(tick.running, key=lambda entry: -entry[1])
        named = [(one_line(variant.id), seconds) for variant, seconds in slowest]
        what = f"compiling {len(tick.running)}: {running_text(named)}"
    left = time_left(tick, [seconds for _, seconds in tick.running])
    return f"{counter(tick.done, tick.total)} {what}{f'; {left}' if left else ''}"


def running_text(running: Sequence[tuple[str, float]]) -> str:
    """Return the first few running variants with their times, and the number of the others."""
    names = [f"{name} {elapsed(seconds)}" for name, seconds in running[:_MOST_NAMED]]
    more = len(running) - len(names)
    return ", ".join([*names, *([f"{more:,} more"] if more else [])])


def time_left(tick: Tick, running_s: Sequence[float]) -> str:
    """Return `about 3 min left`, or "" if no estimate is possible."""
    left = tick.total - tick.done
    left_s = time_left_s(left=left, compiled_s=tick.compiled_s, running_s=running_s, jobs=tick.jobs)
    return "" if left_s is None else f"{about(left_s)} left"


def time_left_s(
    *, left: int, compiled_s: Sequence[float], running_s: Sequence[float], jobs: int
) -> float | None:
    """Estimate the remaining time of a build from the compile times so far.

    Args:
        left: number of unfinished variants, including running ones.
        compiled_s: compile time of each finished compilation.
        running_s: elapsed time of each running compilation.
        jobs: number of parallel compilations.

    Returns:
        Seconds, or None if no estimate is possible: nothing has been compiled yet, or all remaining
        compilations have run longer than expected.
    """
    if not compiled_s or left < 1:
        return None
    mean_s = sum(compiled_s) / len(compiled_s)
    work_s = left * mean_s - sum(min(each, mean_s) for each in running_s)
    # No build ends before its newest compilation.
    newest_s = max((mean_s - each for each in running_s), default=0.0)
    expected_s = max(work_s / max(1, min(jobs, left)), newest_s)
    return expected_s if expected_s > 0 else None


class Live(Progress):
    """Shows the events of a build on a terminal.

    Small builds print one line per hit; larger builds count hits.
    """

    def __init__(self, screen: Screen, **settings: Any) -> None:
        super().__init__(screen, **settings)
        self._began_s = self._clock()
        self._drawn_s = -math.inf
        self._drawn: list[Text] = []
        self._visible = False
        self._counts = dict.fromkeys(STATUS_COLOURS, 0)
        self._running: list[tuple[Variant, float]] = []
        self._tick = Tick((), 0, 0)

    def __call__(self, event: Event | Tick) -> None:
        """Record an event, and redraw if the last redraw is long enough ago."""
        now_s = self._clock()
        if isinstance(event, Tick):
            self._tick = event
            self._running = [(variant, now_s - seconds) for variant, seconds in event.running]
        else:
            self._tick = replace(self._tick, done=event.done, total=event.total)
            if event.result is not None:
                self._finish(event.result)
            else:
                self._running.append((event.variant, now_s))
                self._visible = True
        if now_s - self._drawn_s >= _INTERVAL_S:
            self._visible = self._visible or now_s - self._began_s >= _QUIET_S
            if self._visible or self._held:
                self._draw(now_s)

    def end(self) -> None:
        """Print buffered lines, and remove the status area."""
        self._visible = False
        self._draw(self._clock())

    def _put(self, text: str) -> None:
        """Print text above the status area."""
        self._held.append(f"{text}\n")
        self._draw(self._clock())

    def _finish(self, result: VariantResult) -> None:
        self._counts[result.status] += 1
        if self._running:
            # Compare by identity: equality would compare every field of thousands of variants.
            self._running = [entry for entry in self._running if entry[0] is not result.variant]
        if result.status == "hit" and not (self.hits and self._tick.total <= _FEW_HITS):
            return
        outcome = built(result)
        line = self.screen.paint_status(self.line(outcome), outcome.status)
        self._held += [f"{text}\n" for text in (line, *lines_below(outcome))]

    def _draw(self, now_s: float) -> None:
        """Write buffered lines and the status area in one write, to avoid flicker."""
        columns, rows = self.screen.size()
        lines: list[Text] = []
        painted = ""
        if self._visible:
            running = [(one_line(variant.id), now_s - since) for variant, since in self._running]
            left = time_left(self._tick, [seconds for _, seconds in running])
            lines = status_lines(
                self._tick.done, self._tick.total, self._counts, running, left, columns, rows
            )
            painted = terminal_text(lines, self.screen)
        if self._held or lines != self._drawn:
            text = _erase(self._drawn, columns) + "".join(self._held) + painted
            # Before the write: if it is interrupted, `end` must erase the new status area.
            self._held.clear()
            self._drawn = lines
            self.screen.write(text)
        self._drawn_s = now_s


def _erase(lines: list[Text], columns: int) -> str:
    """Return control sequences that erase drawn lines; the cursor is at the end of the last one.

    If the terminal has become narrower since they were drawn, they occupy several rows each.
    """
    if not lines:
        return ""
    above = sum(max(1, -(-line.cell_len // columns)) for line in lines) - 1
    return "\r\x1b[2K" + "\x1b[1A\x1b[2K" * above


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
    from rich.text import Text

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
    from rich.text import Text

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
    from rich.text import Text

    words = {name: f"{number:,} {name}" for name, number in counts.items() if number}
    words |= {"hit": count(counts["hit"], "hit")} if counts["hit"] else {}
    parts = [Text(text, STATUS_COLOURS[name]) for name, text in words.items()]
    parts += [Text(f"{running:,} running")] if running else []
    return Text(", ").join(parts)


def _running(shown: Sequence[tuple[str, float]]) -> list[Text]:
    """Return one line per variant: its right-aligned elapsed time and its id."""
    from rich.text import Text

    times = [elapsed(seconds) for _, seconds in shown]
    widest = max(map(len, times), default=0)
    return [
        Text.assemble((f"  {time:>{widest}}  ", "bright_black"), name)
        for time, (name, _) in zip(times, shown, strict=True)
    ]


def terminal_text(lines: Sequence[Text], screen: Screen) -> str:
    """Render lines as terminal text, with colors if the screen has any."""
    import io

    from rich.console import Console
    from rich.text import Text

    stream = io.StringIO()
    console = Console(
        file=stream,
        force_terminal=True,
        color_system="standard" if screen.colour else None,
        legacy_windows=False,
    )
    console.print(Text("\n").join(lines), end="", soft_wrap=True)
    return stream.getvalue()


class Reading:
    """Reports while Python specs are executed, and collects errors.

    Args:
        progress: where to report.
        errors: collects the errors of specs that could not be executed; None to raise them.
    """

    def __init__(self, progress: Progress, errors: list[SpecError] | None) -> None:
        self._progress = progress
        self._heartbeat = Heartbeat(2.0)
        self.errors = errors

    def tick(self, path: str, seconds: float) -> None:
        """Report at increasing intervals that a spec is still being executed."""
        if self._heartbeat.is_due():
            self._progress.mention(f"reading {path} {seconds:.0f} s")

    def broken(self, error: SpecError) -> None:
        """Record the error of a spec whose process died or was stopped.

        Raises:
            SpecError: this error, unless errors are collected.
        """
        if self.errors is None:
            raise error
        self.errors.append(error)
        self._progress.say(f"error: {error_text(error)}")


def stderr_progress(*, quiet: bool = False, **settings: Any) -> Progress:
    """Return a `Progress` or `Live` for this process's stderr; for arguments, see `Progress`."""
    screen = stderr_screen()
    kind = Progress if quiet or not screen.live else Live
    return kind(screen, quiet=quiet, **settings)
