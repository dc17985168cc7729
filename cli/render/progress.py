"""Report on the standard error output what a build does: a line for each finished variant.

A terminal shows `live` instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from pallasc.cli.render.remarks import facts as remark_facts
from pallasc.cli.render.result_text import counter, lines_below, result_line
from pallasc.cli.terminal.screen import (
    LONGEST_SILENCE_S,
    Heartbeat,
    Screen,
    about,
    elapsed,
    time_left_s,
)
from pallasc.compiler.builds.report import Event, Tick, VariantResult
from pallasc.specs.plain_text import one_line, printable

_HELD_LINES = 512
"""Lines of hits that are written at a time: about 64 kB."""
_HELD_S = 1.0
_MOST_NAMED = 3

ResultLine = Callable[[VariantResult, int | None], str]
"""Returns the line of a result, as `result_line` does."""


class Progress:
    """Prints the events of a build, a line each; the lines of hits are written many at a time.

    As a context manager it prints what is left, however the build ends.

    Args:
        screen: where to.
        hits: whether variants that were in the store get a line.
        quiet: print only what went wrong.
        line: makes the line of a result, for so many columns.
        clock: gives the time, in seconds.
    """

    def __init__(
        self,
        screen: Screen,
        *,
        hits: bool = True,
        quiet: bool = False,
        line: ResultLine = result_line,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.screen = screen
        self.hits = hits and not quiet
        self.quiet = quiet
        self.line = line
        self._clock = clock
        self._held: list[str] = []
        self._hit_line = ""
        self._written_s = clock()
        self._heartbeat = Heartbeat(self._written_s)
        self._said_getting_ready = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def __call__(self, event: Event | Tick) -> None:
        """Print what an event has to report, if anything."""
        # Thousands of hits come this way, a few of everything else.
        if event.__class__ is Event and event.kind == "hit":
            if self.hits:
                self._hold_hit(event)
        elif isinstance(event, Tick):
            self._beat(event)
        elif event.result is not None:
            self._heartbeat.put_off(self._clock())
            if not self.quiet or event.result.error is not None:
                self._put(self._finished_text(event, event.result))
        else:
            self._write()  # nothing may follow for a while

    def say(self, text: str) -> None:
        """Print lines of text, after what is held."""
        self._put(printable(text))

    def mention(self, text: str) -> None:
        """Print lines of text that only say what is going on."""
        if not self.quiet:
            self.say(text)

    def _finished_text(self, event: Event, result: VariantResult) -> str:
        line = self.screen.paint_status(self.line(result, None), result.status)
        head = f"{counter(event.done, event.total)} {line}"
        return "\n".join([head, *lines_below(result)])

    def _put(self, text: str) -> None:
        """Print text that is printable, except for our own colours."""
        self._held.append(f"{text}\n")
        self._write()

    def end(self) -> None:
        """Print what is still held."""
        self._write()

    def _hold_hit(self, event: Event) -> None:
        """Hold a hit's line back: a build without changes prints thousands of them."""
        if not self._hit_line:
            hit = self.screen.paint_status(f"{'hit':<8}", "hit")
            self._hit_line = f"[%{len(str(event.total))}d/{event.total}] {hit}  %s\n"
        name = one_line(event.variant.id)
        if event.result is not None and (remarks := remark_facts(event.result)):
            name = f"{name}  {', '.join(remarks)}"
        if event.result is not None and event.result.remote:
            name = f"{name}  from the remote store"
        held = self._held
        held.append(self._hit_line % (event.done, name))
        if len(held) >= _HELD_LINES or self._clock() - self._written_s > _HELD_S:
            self._write()

    def _write(self) -> None:
        if self._held:
            text = "".join(self._held)
            self._held.clear()
            self.screen.write(text)
            self._written_s = self._clock()

    def _beat(self, tick: Tick) -> None:
        """Print what is running, if nothing was finished for long enough."""
        self._write()
        is_ready = bool(tick.running or tick.done)
        if is_ready and self._said_getting_ready:
            self._said_getting_ready = False
            self._heartbeat = Heartbeat(self._clock())
        if self._heartbeat.is_due(self._clock()):
            self.mention(heartbeat(tick))
            if not is_ready and not self._said_getting_ready:
                self._said_getting_ready = True
                self._heartbeat = Heartbeat(self._clock(), first_s=LONGEST_SILENCE_S)


def heartbeat(tick: Tick) -> str:
    """Return `[ 12/200] compiling 2: matmul@b200 14 s, add@b200 3 s; about 3 min left`.

    The slowest are named, and the others counted.
    """
    what = "waiting" if tick.done else "getting ready"
    if tick.running:
        slowest = sorted(tick.running, key=lambda entry: -entry[1])[:_MOST_NAMED]
        names = [f"{one_line(variant.id)} {elapsed(seconds)}" for variant, seconds in slowest]
        more = len(tick.running) - len(names)
        names += [f"{more:,} more"] if more else []
        what = f"compiling {len(tick.running)}: {', '.join(names)}"
    left_s = time_left_s(
        left=tick.total - tick.done,
        compiled_s=tick.compiled_s,
        running_s=[seconds for _, seconds in tick.running],
        jobs=tick.jobs,
    )
    left = f"; {about(left_s)} left" if left_s is not None else ""
    return f"{counter(tick.done, tick.total)} {what}{left}"
