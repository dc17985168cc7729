"""Output of `pallasc build --watch`: the first build, then the effect of each edit."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from pallasc.cli.output.build_text import print_end, print_notes, result_line
from pallasc.cli.output.exits import error_text
from pallasc.cli.output.outcome import build_run, built
from pallasc.cli.output.progress import Reading, store_progress
from pallasc.cli.output.text import count, echo, first_of
from pallasc.errors import PallascError, SpecError
from pallasc.specs.spelling import one_line

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.cli.output.outcome import Figures, Outcome
    from pallasc.cli.output.progress import Progress
    from pallasc.compiler.builds.report import Report
    from pallasc.compiler.builds.watch import Watch


class Before:
    """Outcomes of all variants before the last edit."""

    def __init__(self) -> None:
        self._by_id: dict[str, Outcome] = {}
        self._alone: dict[object, str] = {}

    def note(self, report: Report) -> None:
        """Record a build. A variant that failed keeps its earlier outcome."""
        kernels: dict[object, list[str]] = {}
        for outcome in build_run(report).outcomes:
            if outcome.figures is not None:
                # A hit on the same artifact keeps the time of its compilation.
                same = None if self.is_other(outcome) else self._of(outcome)
                self._by_id[outcome.id] = same or outcome
            kernels.setdefault(_kernel(outcome), []).append(outcome.id)
        self._alone = {kernel: ids[0] for kernel, ids in kernels.items() if len(ids) == 1}

    def is_other(self, outcome: Outcome) -> bool:
        """Return True if the artifact of an outcome has changed."""
        earlier, now = self._of(outcome), outcome.figures
        if now is None:
            return False
        return earlier is None or earlier.figures is None or earlier.figures.digest != now.digest

    def line(self, outcome: Outcome) -> str:
        """Return the line of an outcome, compared with the earlier one if there is any.

        For example `compiled  add@h100-sxm  0.3 s, 24 → 32 registers, 9,512 bytes (worse:
        registers)`.
        """
        earlier, result = self._of(outcome), outcome.result
        before, now = earlier and earlier.figures, outcome.figures
        if earlier is None or before is None or now is None:
            return result_line(outcome)
        if result is not None and result.explanation is not None:
            return result_line(outcome)
        facts = [
            _seconds(outcome, earlier),
            _both(before.registers, now.registers, "registers"),
            f"spills {_both(before.spill_bytes, now.spill_bytes, 'bytes')}"
            if before.spill_bytes or now.spill_bytes
            else "",
            _both(before.cubin_bytes, now.cubin_bytes, "bytes"),
            *outcome.notes,
        ]
        head = f"{outcome.status:<8}  {one_line(outcome.id)}"
        return f"{head}  {', '.join(filter(None, facts))} ({verdict(before, now)})"

    def _of(self, outcome: Outcome) -> Outcome | None:
        """Return the earlier outcome; a kernel's only variant may have a new id since then."""
        found = self._by_id.get(outcome.id)
        return found or self._by_id.get(self._alone.get(_kernel(outcome), ""))


def _kernel(outcome: Outcome) -> object:
    return outcome.suite, outcome.result and outcome.result.variant.target.name


def verdict(before: Figures, now: Figures) -> str:
    """Return the effect of an edit: `unchanged`, `better: registers; worse: size`."""
    if before.digest == now.digest:
        return "unchanged"
    signs = {
        "registers": now.registers - before.registers,
        "spills": now.spill_bytes - before.spill_bytes,
        "size": now.cubin_bytes - before.cubin_bytes,
    }
    better = ", ".join(name for name, by in signs.items() if by < 0)
    worse = ", ".join(name for name, by in signs.items() if by > 0)
    told = [f"better: {better}" if better else "", f"worse: {worse}" if worse else ""]
    return "; ".join(filter(None, told)) or "other code, same figures"


def _seconds(outcome: Outcome, before: Outcome) -> str:
    """Return the time of this build, and of the earlier one if both compiled the variant."""
    if outcome.status == "compiled" and before.status == "compiled":
        return f"{before.seconds:.2f} → {outcome.seconds:.2f} s"
    return f"{outcome.seconds:.2f} s" if outcome.status in ("compiled", "lowered") else ""


def _both(before: int, now: int, unit: str) -> str:
    return f"{now:,} {unit}" if before == now else f"{before:,} → {now:,} {unit}"


_UNWATCHABLE = (
    "frozen", "dry_run", "locked", "lock", "shard", "reproduce", "executor", "junit",
    "annotations", "as_json",
)  # fmt: skip
"""Options that make no sense in a watch: they compile nothing, or report the end of a build."""


def refuse_unwatchable(ctx: click.Context) -> None:
    """Check that no option conflicts with `--watch`.

    A cluster that is set in the environment is not an error: a watch ignores it and compiles
    locally.

    Raises:
        click.UsageError: an option conflicts.
    """
    for parameter in ctx.command.params:
        name = parameter.name or ""
        is_given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if name in _UNWATCHABLE and is_given:
            raise click.UsageError(f"--watch cannot be used with {parameter.opts[0]}.")


_MOST_NAMED = 3


def watch_builds(watch: Watch, open_store: Callable[[], Store], *, quiet: bool) -> int:
    """Build after each change until a signal; return the exit code of the interrupted build.

    Args:
        watch: the specs to build and watch.
        open_store: opens the store for one build.
        quiet: print only errors.

    Raises:
        PallascError: the first build cannot start, and the reason is not a mistake in a spec.
    """
    before = Before()
    report = _first(watch, open_store(), before, quiet=quiet)
    if not quiet:
        echo(f"watching {count(len(watch.files), 'file')}; Ctrl-C ends", err=True)
    while report is None or not report.interrupted:
        report = _next(watch, watch.files.wait(), open_store(), before, quiet=quiet)
    return report.exit_code


def _first(watch: Watch, store: Store, before: Before, *, quiet: bool) -> Report | None:
    """Run the first build; None if a spec has a mistake, which the user may fix."""
    is_missing = not all(map(os.path.exists, watch.paths))
    with store_progress(store, quiet=quiet) as progress:
        try:
            report = _build(watch, store, progress)
        except SpecError as error:
            if is_missing:
                raise
            progress.say(f"error: {error_text(error)}")
            return None
    print_end(report, store, progress.screen, quiet=quiet)
    _prepare(watch, report, store, before)
    return report


def _next(
    watch: Watch, changed: Sequence[Path], store: Store, before: Before, *, quiet: bool
) -> Report | None:
    """Build after a change; None if the build cannot start, which another change may fix."""
    with store_progress(store, hits=False, quiet=quiet, line=before.line) as progress:
        progress.mention(f"{_named(changed)} changed")
        try:
            report = _build(watch, store, progress)
        except PallascError as error:
            progress.say(f"error: {error_text(error)}")
            return None
        _tell_hits(report, before, progress)
    print_notes(report, store)
    _prepare(watch, report, store, before)
    return report


def _prepare(watch: Watch, report: Report, store: Store, before: Before) -> None:
    """Record a build's figures, and prepare the next build."""
    before.note(report)
    if not report.interrupted:
        with suppress(PallascError):  # the next build reports the error
            watch.get_ready(report, store)


def _build(watch: Watch, store: Store, progress: Progress) -> Report:
    reading = Reading(progress, keep_going=watch.options.keep_going)
    return watch.build(store, on_event=progress, on_tick=reading.tick, broken=reading.broken)


def _tell_hits(report: Report, before: Before, progress: Progress) -> None:
    """Print hits whose artifact has changed, or that nothing has changed."""
    hits = [built(result) for result in report.results if result.status == "hit"]
    changed = [hit for hit in hits if before.is_other(hit)]
    for hit in changed:
        progress.mention(before.line(hit))
    if len(hits) == len(report.results) and not changed:
        progress.mention(f"{count(len(hits), 'variant')}: nothing to compile, no changes")


def _named(files: Sequence[Path]) -> str:
    """Return `kernels.py, spec.yaml and 2 more`."""
    return first_of(sorted({file.name for file in files}), _MOST_NAMED)
