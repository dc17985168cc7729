"""`pallasc build`: compile specs into the store; with --watch, again after each edit."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import click
from click.core import ParameterSource
from msgspec.structs import replace

from pallasc.cli.arguments import options
from pallasc.cli.arguments import variants as given
from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.variants import Work, shard_option
from pallasc.cli.output.build_text import failure_lines, print_end, print_notes, result_line
from pallasc.cli.output.outcome import build_run, built
from pallasc.cli.output.progress import Reading
from pallasc.cli.output.text import count, echo, error_text, first_of
from pallasc.errors import PallascError, SpecError
from pallasc.specs.spelling import one_line

if TYPE_CHECKING:
    from pallasc.cli.output.outcome import Outcome
    from pallasc.cli.output.progress import Progress
    from pallasc.cli.output.reports import Outputs
    from pallasc.compiler.builds.collect import Shard
    from pallasc.compiler.builds.report import Report
    from pallasc.compiler.builds.reproduce import Reproduction
    from pallasc.compiler.builds.watch import Watch


class BuildCommand(Command):
    """`pallasc build` with its options in groups."""

    groups: ClassVar[Mapping[str, Sequence[str]]] = {
        "Select": ("targets", "expression", "shard"),
        "Compile": (
            "jobs", "timeout_s", "memory_bytes", "executor", "keep_going", "dry_run", "watch",
            "reproduce",
        ),
        "Cache": ("store_root", "remote", "remote_write"),
        "Lock": ("frozen", "locked", "lock", "baseline"),
        "Output": (
            "explain", "fail_on_warning", "quiet", "as_json", "junit", "annotations",
        ),
    }  # fmt: skip


@click.command("build", cls=BuildCommand, short_help="Compile specs into the store.")
@options.specs_argument()
@options.variant_options
@shard_option
@options.executor_option
@options.fail_fast_option
@options.flag("--dry-run", "List what would be compiled, without compiling it.")
@options.flag("--watch", "Recompile after each file change, until Ctrl-C.")
@options.count_option("--reproduce", "Compile N variants again and compare.")
@options.frozen_options
@options.file_option("--baseline", 'Lock file to compare with: a budget "+8" allows 8 more.')
@options.explain_option
@options.fail_on_warning_option
@options.quiet_option
@options.report_options("problems")
@given.build_options()
def command(
    lock: Path | None,
    baseline: Path | None,
    shard: Shard | None,
    outputs: Outputs,
    reproduce: int | None,
    dry_run: bool,
    watch: bool,
    frozen: bool,
    locked: bool,
    work: Work,
) -> int:
    """Compile every variant of SPECS that is not in the store yet.

    SPECS are YAML files, Python files with @pallasc.kernel or pallasc.declare, or folders. The
    status of each variant is printed to standard error: "hit", "lowered" (a hit that was found only
    after lowering the kernel again), "shared" (same as another variant), "compiled", or "failed".
    Ctrl-C keeps the variants that are finished.

    Examples:
      pallasc build kernels.yaml --target sm_90a --target b200
      pallasc build specs/ -k "matmul and m=4096" --jobs 4 --timeout 600
      pallasc build specs/ --locked --shard 3/8 --junit report.xml --annotations github
      pallasc build kernels.yaml --target h100-sxm --watch
    """
    from pallasc.compiler.builds.build import build
    from pallasc.compiler.builds.options import load_baseline

    if reproduce and (frozen or dry_run):
        other = "--frozen" if frozen else "--dry-run"
        raise click.UsageError(f"--reproduce cannot be used with {other}, which compiles nothing.")
    if watch:
        refuse_unwatchable(click.get_current_context())
    with outputs.reporting_errors():
        how = replace(work.how, compile=not dry_run, frozen=frozen)
        if watch:
            return _watch(work, baseline)
        if frozen or locked or lock is not None:
            from pallasc.compiler.builds.locked import load_locked

            how = replace(how, locked=load_locked(lock, frozen=frozen, locked=locked))
        store, quiet, reproductions = work.store, work.quiet, None
        with work.progress(hits=True) as progress:
            variants, share = work.select_share(
                progress, shard, keep_going=how.keep_going, frozen=frozen
            )
            how = replace(how, baseline=load_baseline(baseline, variants))
            report = build(variants, store=store, options=how, on_event=progress)
            report = replace(report, errors=tuple(work.errors))
            if reproduce and not report.exit_code:
                from pallasc.compiler.builds.reproduce import reproduce as compile_again

                progress.mention(f"compiling {min(reproduce, len(variants))} again, to compare")
                report, reproductions = compile_again(
                    report, reproduce, store=store, options=how, on_event=progress
                )
        if reproductions is not None:
            _print_reproductions(reproductions, report, quiet=quiet)
        print_end(report, store, progress.screen, quiet=quiet)
        if outputs.is_requested:
            outputs.write(build_run(report, share=share), reproductions)
    return report.exit_code


def _print_reproductions(
    reproductions: Sequence[Reproduction], report: Report, *, quiet: bool
) -> None:
    for result in reproductions:
        if quiet and result.outcome == "same":
            continue
        echo(f"{result.outcome:<9}  {one_line(result.variant)}", err=True)
    for failed in report.results:
        for line in failure_lines(built(failed)):
            echo(line, err=True)


# ---- --watch: the first build, then the effect of each edit


_UNWATCHABLE = (
    "frozen", "dry_run", "locked", "lock", "shard", "reproduce", "executor", "junit",
    "annotations", "as_json",
)  # fmt: skip
"""Options that cannot be combined with `--watch`."""


def refuse_unwatchable(ctx: click.Context) -> None:
    """Check that no option conflicts with `--watch`.

    A cluster address in `PALLASC_EXECUTOR` is no conflict: `--watch` ignores it and compiles
    locally.

    Raises:
        click.UsageError: an option conflicts.
    """
    for parameter in ctx.command.params:
        name = parameter.name or ""
        is_given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if name in _UNWATCHABLE and is_given:
            raise click.UsageError(f"--watch cannot be used with {parameter.opts[0]}.")


class Before:
    """Outcomes of all variants before the last edit."""

    def __init__(self) -> None:
        self._by_id: dict[str, Outcome] = {}

    def note(self, report: Report) -> None:
        """Record a build. A variant that failed keeps its earlier outcome."""
        for outcome in build_run(report).outcomes:
            if outcome.artifact is not None:
                # A hit on the same artifact keeps the earlier outcome, with its compile time.
                same = None if self.is_other(outcome) else self._by_id.get(outcome.id)
                self._by_id[outcome.id] = same or outcome

    def is_other(self, outcome: Outcome) -> bool:
        """Return True if the artifact of an outcome has changed."""
        earlier, now = self._by_id.get(outcome.id), outcome.artifact
        if now is None:
            return False
        return earlier is None or earlier.artifact is None or earlier.artifact.digest != now.digest

    def line(self, outcome: Outcome) -> str:
        """Return the line of an outcome, with changes since the variant's earlier outcome, if any.

        For example `compiled  add@h100-sxm  0.3 s, 24 → 32 registers (worse)`.
        """
        from pallasc.analysis.compare import changes
        from pallasc.specs.artifacts.artifact import WORDS

        earlier, result = self._by_id.get(outcome.id), outcome.result
        before, now = earlier and earlier.resources, outcome.resources
        if earlier is None or before is None or now is None:
            return result_line(outcome)
        if result is not None and result.explanation:
            return result_line(outcome)
        facts = [
            f"{each.before:,} → {each.after:,} {WORDS[each.field]} ({each.verdict})"
            for each in changes(before, now)
        ]
        if not facts:
            facts = ["different code, same figures" if self.is_other(outcome) else "unchanged"]
        head = f"{outcome.status:<8}  {one_line(outcome.id)}"
        return f"{head}  {', '.join([*_seconds(outcome, earlier), *facts, *outcome.notes])}"


def _seconds(outcome: Outcome, before: Outcome) -> list[str]:
    """Return the time of this build, and of the earlier one if both compiled the variant."""
    if outcome.status == "compiled" and before.status == "compiled":
        return [f"{before.seconds:.2f} → {outcome.seconds:.2f} s"]
    return [f"{outcome.seconds:.2f} s"] if outcome.status in ("compiled", "lowered") else []


def _watch(work: Work, baseline: Path | None) -> int:
    """Build after each change until Ctrl-C or SIGTERM; return the exit code of the last build.

    Raises:
        PallascError: the first build cannot start, and the reason is not a mistake in a spec.
    """
    from pallasc.compiler.builds.watch import Watch

    here, selection, before = replace(work.how, executor=None), work.selection, Before()
    targets, expression = selection.targets, selection.expression
    with Watch(work.specs, here, targets, expression, baseline=baseline) as watch:
        report = _build(watch, work, before)
        if not work.quiet:
            echo(f"watching {count(len(watch.files), 'file')}; Ctrl-C ends", err=True)
        while report is None or not report.interrupted:
            changed = watch.files.wait()
            del work.store  # reopened for each build: its folder may be gone
            report = _build(watch, work, before, changed)
    return report.exit_code


def _build(watch: Watch, work: Work, before: Before, changed: Sequence[Path] = ()) -> Report | None:
    """Build once; return None if the build cannot start.

    Args:
        watch: the specs to build.
        work: the store.
        before: outcomes of the last build.
        changed: changed files, none for the first build.
    """
    is_first, store = not changed, work.store
    is_missing = is_first and not all(map(os.path.exists, watch.paths))
    with work.progress(hits=is_first, line=None if is_first else before.line) as progress:
        if not is_first:
            progress.mention(f"{first_of(sorted({file.name for file in changed}), 3)} changed")
        reading = Reading(progress, work.errors if watch.options.keep_going else None)
        try:
            report = watch.build(
                store, on_event=progress, on_tick=reading.tick, broken=reading.broken
            )
        except PallascError as error:
            if is_first and (is_missing or not isinstance(error, SpecError)):
                raise
            progress.say(f"error: {error_text(error)}")
            return None
        if not is_first:
            _tell_hits(report, before, progress)
    if is_first:
        print_end(report, store, progress.screen, quiet=work.quiet)
    else:
        print_notes(report, store)
    before.note(report)
    if not report.interrupted:
        with suppress(PallascError):  # the next build reports the error
            watch.get_ready(report, store)
    return report


def _tell_hits(report: Report, before: Before, progress: Progress) -> None:
    """Print the hits whose artifact has changed, or that nothing has changed."""
    hits = [built(result) for result in report.results if result.status == "hit"]
    changed = [hit for hit in hits if before.is_other(hit)]
    for hit in changed:
        progress.mention(before.line(hit))
    if len(hits) == len(report.results) and not changed:
        progress.mention(f"{count(len(hits), 'variant')}: nothing to compile, no changes")
