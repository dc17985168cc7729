"""`pallasc build`: compile specs into the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import (
    BuildOptions,
    annotations_option,
    compile_options,
    count_option,
    executor_option,
    fail_on_warning_option,
    file_option,
    frozen_options,
    json_option,
    junit_option,
    quiet_option,
    require_store_option,
    selection_options,
    signed_store_option,
    specs_argument,
    store_option,
    supervision_options,
)
from pallasc.cli.arguments.remote import remote_options
from pallasc.cli.arguments.shard import shard_option, take_share
from pallasc.cli.arguments.watch import refuse_unwatchable, watch_option
from pallasc.cli.terminal.output import echo

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.compiler.builds.options import Options
    from pallasc.compiler.builds.report import Report
    from pallasc.compiler.builds.reproduce import Reproduction
    from pallasc.compiler.builds.shard import Shard


class _Options(BuildOptions):
    """How `build` compiles."""

    keep_going: bool
    explain: bool
    executor: str | None


@click.command("build", cls=Command, short_help="Compile specs into the store.")
@specs_argument()
@selection_options
@compile_options
@executor_option
@supervision_options
@click.option(
    "--keep-going/--fail-fast",
    default=True,
    show_default=True,
    help="After a failure, compile the other variants, or stop.",
)
@click.option(
    "--dry-run", is_flag=True, help="Compile nothing; say what would be compiled, and why."
)
@watch_option
@frozen_options
@shard_option
@file_option(
    "--baseline",
    'The lock or bundle that rules of budgets, such as registers: "+8", are relative to; '
    "pallasc.lock by default.",
)
@count_option(
    "--reproduce",
    "Afterwards compile N variants twice, each alone in a process, and compare their bytes with "
    "each other and with the store's.",
)
@click.option("--explain", is_flag=True, help="Say why each miss was a miss, field by field.")
@click.option(
    "--lines",
    is_flag=True,
    help="Afterwards find the lines of your source for machine code and PTX, which "
    "`pallasc inspect` shows.",
)
@junit_option
@quiet_option
@annotations_option("failures, spills and warnings")
@store_option
@require_store_option
@remote_options
@click.option(
    "--warnings",
    is_flag=True,
    help="Show the warnings that were printed while variants were compiled: those of Python, "
    "logging, the standard error output; of hits too.",
)
@fail_on_warning_option
@signed_store_option
@json_option("the report")
def command(
    specs: tuple[str, ...],
    targets: tuple[str, ...],
    expression: str | None,
    all_points: bool,
    store_root: Path | None,
    lock: Path | None,
    baseline: Path | None,
    shard: Shard | None,
    annotations: str | None,
    junit: Path | None,
    reproduce: int | None,
    lines: bool,
    as_json: bool,
    warnings: bool,
    quiet: bool,
    dry_run: bool,
    watch: bool,
    frozen: bool,
    locked: bool,
    require_signed: bool,
    **options: Unpack[_Options],
) -> int:
    """Compile every variant of SPECS that is not in the store yet.

    SPECS are YAML files, Python files with @pallasc.kernel or pallasc.declare, or folders of both.
    Each variant gets a line on the standard error output: "hit" was in the store; "lowered" was
    too, but had to be lowered again to see that; "shared" is the same as another variant of this
    build; "compiled" was compiled now; "failed" comes with its message, the line of your source and
    the end of what it printed. A terminal also shows what is running. Ctrl-C or SIGTERM ends the
    build at once; what is finished is kept.

    With --watch, the build goes on: it compiles again what a change of a spec, or of a file that
    compiling reads, has changed, in processes that are ready, and prints what that did to times,
    registers, spills and sizes. Errors are shown, and the watch goes on until Ctrl-C.

    Warnings that were printed while a variant was traced, lowered and compiled (those of Python,
    logging at WARNING and above, the standard error output) are kept with it, and counted at the
    end, for hits too.

    Examples:
      pallasc build kernels.yaml
      pallasc build kernels.yaml --target sm_90a --target b200
      pallasc build specs/ -k "matmul and m=4096" --jobs 4 --timeout 600
      pallasc build specs/ --dry-run --explain
      pallasc build specs/ --locked --junit report.xml --annotations github
      pallasc build specs/ --fail-fast --json > report.json
      pallasc build specs/ --executor dask://scheduler:8786
      pallasc build specs/ --locked --shard 3/8
      pallasc build specs/ --baseline released.pallasc
      pallasc build kernels.yaml --target h100-sxm --watch
      pallasc build specs/ --lines
      pallasc build specs/ --warnings --fail-on-warning "no tuning|cache miss"

    --json prints one object:
      schema       1
      seconds      time of the whole build
      interrupted  whether a signal stopped it
      notes        warnings about the store, and about compilations that gave different results
      warnings     how many warnings there were, those of hits included
      totals       number of variants by status
      hit_rate     hits (without lowered and shared) divided by what was finished, or null
      saved_s      how long compiling the hits took, as far as that is known
      slowest      ids of the compiled variants that took longest
      largest      ids of the compiled variants with the largest cubins
      spilling     ids of all variants that spill
      variants     a list, in the order of the specs; of each: id, name, params, target, arch,
                   status (hit, lowered, shared, compiled, failed, skipped, missing), seconds,
                   saved_s, reason (why it was a miss), explanation (with --explain: reason, key,
                   nearest, fields, sources, over_budget), remote (whether it is a hit of the
                   remote store), action_key, digest (of the artifact), cubin_bytes, kernels
                   (each with what it takes), resources (what the variant takes, as its lock and its
                   budget have it: registers, spill_bytes, stack_bytes, smem_bytes, occupancy in
                   warps of a multiprocessor, cubin_bytes), pallas_kernels (how many are Mosaic's),
                   xla_kernels (names of those that XLA added), warnings (stage, kind, source, text,
                   count),
                   error (message, hint, file, line, column, exit_code), output (its last lines)
      reproduced   with --reproduce, a list: variant, outcome, digests (stored, first, second),
                   differences and more
      shard        with --shard: number, of, variants and others (how many this shard has, and all
                   others have), expected_s (compile time by the costs of the lock file, or null),
                   costs_from (the lock file, or null)
      remote       what was done with the remote store, or null: url, requests, hits, offered (how
                   many variants were sent), bytes_read, bytes_written, waited_s, lost_s (how much
                   of that brought nothing: at most 2), saved_s, refusals (how much was not used),
                   refused (the first reasons), conflicts (action keys under which it has another
                   record), tripped (why it was left alone)
      errors       of Python specs whose process died or was stopped; the others are built
      error        why nothing was built, such as a mistake in a spec
    What a variant does not have is null or empty.
    """
    from pallasc.cli.arguments.selection import open_store
    from pallasc.cli.render.build_outputs import Outputs
    from pallasc.cli.render.live import store_progress
    from pallasc.cli.render.reading import Reading
    from pallasc.cli.render.summary import print_notes, summary
    from pallasc.cli.source.views import found_lines, tell_missing
    from pallasc.compiler.builds.build import build
    from pallasc.compiler.builds.collect import SpecReader
    from pallasc.compiler.builds.options import Options, load_baseline

    if lines and (frozen or dry_run):
        other = "--frozen" if frozen else "--dry-run"
        raise click.UsageError(f"--lines compiles once more, and {other} compiles nothing.")
    if reproduce and (frozen or dry_run):
        other = "--frozen" if frozen else "--dry-run"
        raise click.UsageError(f"--reproduce compiles, and {other} compiles nothing.")
    if watch:
        refuse_unwatchable(click.get_current_context())
    outputs = Outputs(as_json=as_json, junit=junit, annotations=annotations)
    opening = partial(open_store, store_root, require_signed=require_signed)
    with outputs.reporting_errors():
        how = Options(**options, compile=not dry_run, frozen=frozen)
        if watch:
            selection = (targets, expression, baseline, all_points)
            return _watch(specs, *selection, how, opening, warnings=warnings, quiet=quiet)
        if frozen or locked or (lock is not None and shard is None):
            from pallasc.compiler.builds.locked import load_locked

            how = replace(how, locked=load_locked(lock, frozen=frozen, locked=locked))
        store = opening()
        reproduction = None
        with store_progress(store, quiet=quiet) as progress:
            reading = Reading(progress, keep_going=how.keep_going)
            reader = SpecReader(
                store=store,
                timeout_s=how.timeout_s,
                memory_bytes=how.memory_bytes,
                frozen=frozen,
                on_tick=reading.tick,
                broken=reading.broken,
            )
            chosen = reader.select(specs, targets, expression, all_points=all_points)
            variants = chosen.variants
            share = take_share(shard, variants, lock, progress.mention)
            variants = share.variants if share else variants
            how = replace(how, baseline=load_baseline(baseline, variants))
            report = build(variants, store=store, options=how, on_event=progress)
            report = replace(report, errors=tuple(reading.errors))
            if reproduce and not report.exit_code:
                from pallasc.compiler.builds.reproduce import reproduce as compile_twice
                from pallasc.compiler.builds.reproduce import with_reproduction

                progress.mention(
                    f"compiling {min(reproduce, len(variants))} twice more, to compare"
                )
                stored = {r.variant.id: r.artifact for r in report.results if r.artifact}
                reproduction = compile_twice(
                    variants,
                    reproduce,
                    store=store,
                    stored=stored,
                    options=how,
                    on_event=progress,
                )
                report = with_reproduction(report, reproduction)
            if lines:
                found = found_lines(report.results, store, how, progress.mention)
        if reproduction is not None:
            _print_reproduction(reproduction, report, quiet=quiet)
        print_notes(report, store)
        if ending := summary(report, progress.screen, warnings=warnings, quiet=quiet):
            progress.screen.write(f"{ending}\n")
        outputs.write(report, reproduction, share)
    missing = tell_missing(found) if lines else 0
    return report.exit_code or missing


def _watch(
    specs: tuple[str, ...],
    targets: tuple[str, ...],
    expression: str | None,
    baseline: Path | None,
    all_points: bool,
    options: Options,
    opening: Callable[[], Store],
    *,
    warnings: bool,
    quiet: bool,
) -> int:
    from pallasc.cli.render.watching import watch_builds
    from pallasc.compiler.builds.watch import Watch

    here = replace(options, executor=None)
    with Watch(specs, here, targets, expression, baseline=baseline, all_points=all_points) as watch:
        return watch_builds(watch, opening, warnings=warnings, quiet=quiet)


def _print_reproduction(reproduction: Reproduction, report: Report, *, quiet: bool) -> None:
    from pallasc.cli.render.result_text import failure_lines
    from pallasc.specs.plain_text import one_line

    for result in reproduction.results:
        if quiet and result.outcome == "same":
            continue
        echo(f"{result.outcome:<9}  {one_line(result.variant)}", err=True)
    for failed in report.results:
        for line in failure_lines(failed):
            echo(line, err=True)
