"""Output of `pallasc build --watch`: the first build, then the effect of each edit."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pallasc.cli.output.build_text import print_end, print_notes, remark_facts, result_line
from pallasc.cli.output.exits import error_text
from pallasc.cli.output.progress import Reading, store_progress
from pallasc.cli.output.text import count, cut, echo, first_of, shorten, width
from pallasc.errors import PallascError, SpecError
from pallasc.specs.spelling import one_line

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.cli.output.progress import Progress
    from pallasc.compiler.builds.report import Report, VariantResult
    from pallasc.compiler.builds.watch import Watch


_SHORTEST_ID = 24
_ARROW = " → "


class Figures(NamedTuple):
    """Figures of an artifact; registers and spills are the maximum over its kernels."""

    digest: str
    seconds: float | None
    cubin_bytes: int
    registers: int
    spilled_bytes: int


def figures_of(result: VariantResult) -> Figures | None:
    """Return the figures of a result, None without an artifact."""
    artifact = result.artifact
    if artifact is None:
        return None
    return Figures(
        artifact.digest,
        result.seconds if result.status == "compiled" else None,
        artifact.cubin_bytes,
        max((kernel.registers for kernel in artifact.kernels), default=0),
        artifact.spill_bytes,
    )


class Before:
    """Figures of all variants before the last edit."""

    def __init__(self) -> None:
        self._by_id: dict[str, Figures] = {}
        self._alone: dict[tuple[str, str], str] = {}

    def note(self, report: Report) -> None:
        """Record a build. A variant that failed keeps its earlier figures."""
        for result in report.results:
            figures = figures_of(result)
            earlier = self._of(result)
            if figures is not None:
                if figures.seconds is None and earlier and earlier.digest == figures.digest:
                    figures = figures._replace(seconds=earlier.seconds)
                self._by_id[result.variant.id] = figures
        kernels: dict[tuple[str, str], list[str]] = {}
        for result in report.results:
            kernels.setdefault(_kernel(result), []).append(result.variant.id)
        self._alone = {kernel: ids[0] for kernel, ids in kernels.items() if len(ids) == 1}

    def is_other(self, result: VariantResult) -> bool:
        """Return True if the artifact of a result has changed."""
        now, earlier = figures_of(result), self._of(result)
        return now is not None and (earlier is None or earlier.digest != now.digest)

    def line(self, result: VariantResult, columns: int | None = None) -> str:
        """Return the line of a result, compared with its earlier figures if there are any."""
        now, earlier = figures_of(result), self._of(result)
        if now is None or earlier is None or result.explanation is not None:
            return result_line(result, columns)
        return edited_line(result, earlier, now, columns)

    def _of(self, result: VariantResult) -> Figures | None:
        """Return the earlier figures; a kernel's only variant may have a new id since then."""
        found = self._by_id.get(result.variant.id)
        return found or self._by_id.get(self._alone.get(_kernel(result), ""))


def _kernel(result: VariantResult) -> tuple[str, str]:
    return result.variant.name, result.variant.target.name


def edited_line(
    result: VariantResult, before: Figures, now: Figures, columns: int | None = None
) -> str:
    """Return `compiled  add@h100-sxm  0.3 s, 24 → 32 registers, 9,512 bytes (worse: registers)`.

    Args:
        result: result of a variant.
        before: figures before the edit.
        now: current figures.
        columns: available width. If the line is too long, unchanged figures are dropped first, then
            the time, then the middle of the id, then all figures.
    """
    seconds = _seconds(result, before)
    figures = [
        _both(before.registers, now.registers, "registers"),
        *_spills(before, now),
        _both(before.cubin_bytes, now.cubin_bytes, "bytes"),
        *map(str, remark_facts(result)),
    ]
    head, name, ending = f"{result.status:<8}  ", one_line(result.variant.id), verdict(before, now)
    changed = [figure for figure in figures if _ARROW in figure]
    choices = [[seconds, *figures], [seconds, *changed], changed, []]
    texts = [_words(facts, ending) for facts in choices]
    if columns is None:
        return f"{head}{name}{texts[0]}"
    for least in (width(name), _SHORTEST_ID):
        for words in texts[: 3 if least > _SHORTEST_ID else 4]:
            room = columns - len(head) - len(words)
            if room >= least:
                return f"{head}{shorten(name, room)}{words}"
    return cut(f"{head}{shorten(name, _SHORTEST_ID)}{texts[-1]}", columns)


def _words(facts: Sequence[str], ending: str) -> str:
    return "  " + " ".join(filter(None, [", ".join(filter(None, facts)), f"({ending})"]))


def verdict(before: Figures, now: Figures) -> str:
    """Return the effect of an edit: `unchanged`, `better: registers; worse: size`."""
    if before.digest == now.digest:
        return "unchanged"
    signs = {
        "registers": now.registers - before.registers,
        "spills": now.spilled_bytes - before.spilled_bytes,
        "size": now.cubin_bytes - before.cubin_bytes,
    }
    better = ", ".join(name for name, by in signs.items() if by < 0)
    worse = ", ".join(name for name, by in signs.items() if by > 0)
    told = [f"better: {better}" if better else "", f"worse: {worse}" if worse else ""]
    return "; ".join(filter(None, told)) or "other code, same figures"


def _seconds(result: VariantResult, before: Figures) -> str:
    """Return the time of this build, and of the earlier one if both compiled the variant."""
    if result.status == "compiled" and before.seconds is not None:
        return f"{before.seconds:.2f}{_ARROW}{result.seconds:.2f} s"
    return f"{result.seconds:.2f} s" if result.status in ("compiled", "lowered") else ""


def _spills(before: Figures, now: Figures) -> list[str]:
    if not before.spilled_bytes and not now.spilled_bytes:
        return []
    return [f"spills {_both(before.spilled_bytes, now.spilled_bytes, 'bytes')}"]


def _both(before: int, now: int, unit: str) -> str:
    return f"{now:,} {unit}" if before == now else f"{before:,}{_ARROW}{now:,} {unit}"


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
    others = [result for result in report.results if result.status == "hit"]
    for result in others:
        if before.is_other(result):
            progress.mention(before.line(result, progress.screen.line_columns))
    if len(others) == len(report.results) and not any(map(before.is_other, others)):
        progress.mention(f"{count(len(others), 'variant')}: nothing to compile, no changes")


def _named(files: Sequence[Path]) -> str:
    """Return `kernels.py, spec.yaml and 2 more`."""
    return first_of(sorted({file.name for file in files}), _MOST_NAMED)
