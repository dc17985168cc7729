"""What `pallasc build --watch` prints: the first build as any other, then what edits changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pallasc.cli.render.edited import Before
from pallasc.cli.render.failures import error_text
from pallasc.cli.render.live import store_progress
from pallasc.cli.render.reading import Reading
from pallasc.cli.render.summary import print_notes, summary
from pallasc.cli.terminal.output import count, echo
from pallasc.errors import PallascError, SpecError

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.cli.render.progress import Progress
    from pallasc.compiler.builds.report import Report
    from pallasc.compiler.builds.watch import Watch

_MOST_NAMED = 3


def watch_builds(
    watch: Watch, open_store: Callable[[], Store], *, warnings: bool, quiet: bool
) -> int:
    """Build until a signal ends it; return the exit code of an interrupted build.

    Args:
        watch: what to build.
        open_store: opens the store for one build.
        warnings: show all warnings of the first build.
        quiet: print only what goes wrong.

    Raises:
        PallascError: the first build cannot begin, for another reason than a mistake in a spec.
    """
    before = Before()
    report = _first(watch, open_store(), before, warnings=warnings, quiet=quiet)
    if not quiet:
        echo(f"watching {count(len(watch.files), 'file')}; Ctrl-C ends", err=True)
    while report is None or not report.interrupted:
        report = _next(watch, watch.files.wait(), open_store(), before, quiet=quiet)
    return report.exit_code


def _first(
    watch: Watch, store: Store, before: Before, *, warnings: bool, quiet: bool
) -> Report | None:
    """Build for the first time; None where a spec has a mistake, which may be put right."""
    is_missing = not all(map(os.path.exists, watch.paths))
    with store_progress(store, quiet=quiet) as progress:
        try:
            report = _build(watch, store, progress)
        except SpecError as error:
            if is_missing:
                raise
            progress.say(f"error: {error_text(error)}")
            return None
    print_notes(report, store)
    if ending := summary(report, progress.screen, warnings=warnings, quiet=quiet):
        progress.screen.write(f"{ending}\n")
    _prepare(watch, report, store, before)
    return report


def _next(
    watch: Watch, changed: Sequence[Path], store: Store, before: Before, *, quiet: bool
) -> Report | None:
    """Build after a change; None where that could not begin, which another change may mend."""
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
    """Prepare for the next build."""
    before.note(report)
    if not report.interrupted:
        with suppress(PallascError):  # the next build says why
            watch.get_ready(report, store)


def _build(watch: Watch, store: Store, progress: Progress) -> Report:
    reading = Reading(progress, keep_going=watch.options.keep_going)
    return watch.build(store, on_event=progress, on_tick=reading.tick, broken=reading.broken)


def _tell_hits(report: Report, before: Before, progress: Progress) -> None:
    """Print the lines of hits that are other artifacts than before, and that nothing changed."""
    others = [result for result in report.results if result.status == "hit"]
    for result in others:
        if before.is_other(result):
            progress.mention(before.line(result, progress.screen.line_columns))
    if len(others) == len(report.results) and not any(map(before.is_other, others)):
        progress.mention(f"{count(len(others), 'variant')}: nothing to compile, all as before")


def _named(files: Sequence[Path]) -> str:
    """Return `kernels.py, spec.yaml and 2 more`."""
    names = sorted({file.name for file in files})
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
