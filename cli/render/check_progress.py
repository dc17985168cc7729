"""What a check says while it runs: a line for each result, and now and then what is running."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pallasc.checks.candidate import Candidate, Events
from pallasc.cli.render.check_text import result_lines, unbuilt_lines
from pallasc.cli.terminal.output import echo
from pallasc.cli.terminal.times import Heartbeat, elapsed
from pallasc.specs.plain_text import one_line

if TYPE_CHECKING:
    from pallasc.checks.findings import LevelResult
    from pallasc.cli.render.progress import Progress
    from pallasc.errors import PallascError
    from pallasc.specs.spec import Variant

_MOST_NAMED = 3
_FIRST_SILENCE_S = 5.0
_HELD_LINES = 512
"""Lines of stored results that are written at a time: there may be thousands."""


def events(progress: Progress, *, levels: Sequence[str], silent: bool) -> Events:
    """Return the listeners of a check.

    Args:
        progress: where to say what is running.
        levels: the names of the levels that were asked for.
        silent: results go to another output. Where `progress` is quiet, only those are shown that
            make the command fail.
    """
    heartbeat = Heartbeat(time.monotonic(), first_s=_FIRST_SILENCE_S)
    held: list[str] = []

    def write() -> None:
        if held:
            echo("\n".join(held))
            held.clear()

    def on_result(candidate: Candidate, result: LevelResult, from_store: bool) -> None:
        if silent or (progress.quiet and not result.fails):
            return
        variant = candidate.variant
        place = variant.location if variant is not None else candidate.origin
        held.extend(result_lines(candidate.id, result, from_store=from_store, place=place))
        # A result that took time is shown at once; thousands of stored ones are not.
        if not from_store or len(held) >= _HELD_LINES:
            heartbeat.put_off(time.monotonic())
            write()

    def on_unbuilt(variant: Variant, error: PallascError) -> None:
        if not silent and not progress.quiet:
            held.extend(unbuilt_lines(variant.id, error, levels))

    def on_tick(running: Sequence[tuple[str, float]], done: int, total: int) -> None:
        write()
        if running and heartbeat.is_due(time.monotonic()):
            names = [f"{one_line(name)} {elapsed(s)}" for name, s in running[:_MOST_NAMED]]
            more = len(running) - len(names)
            names += [f"{more:,} more"] if more else []
            progress.mention(f"[{done}/{total}] checking {len(running)}: {', '.join(names)}")

    return Events(on_result, on_unbuilt, on_tick, write)
