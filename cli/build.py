"""`pallasc build`: compile specs into the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import click
from msgspec.structs import replace

from pallasc.cli.arguments import options
from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.selection import open_store, shard_option, take_share
from pallasc.cli.output.text import echo

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.compiler.builds.collect import Shard
    from pallasc.compiler.builds.options import Options
    from pallasc.compiler.builds.report import Report
    from pallasc.compiler.builds.reproduce import Reproduction


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
@click.option(
    "--fail-fast",
    "keep_going",
    flag_value=False,
    default=True,
    help="Stop after the first failure.",
)
@click.option("--dry-run", is_flag=True, help="List what would be compiled, without compiling it.")
@options.watch_option
@options.count_option("--reproduce", "Compile N variants twice more, and compare the results.")
@options.frozen_options
@options.file_option(
    "--baseline", 'Lock file or bundle for relative budgets, e.g. registers: "+8".'
)
@click.option("--explain", is_flag=True, help="Explain each cache miss, field by field.")
@options.fail_on_warning_option
@options.quiet_option
@options.json_option("the report")
@options.junit_option
@options.annotations_option("problems")
@options.selecting
@options.build_options()
def command(
    specs: tuple[str, ...],
    selection: options.Selection,
    store_root: Path | None,
    lock: Path | None,
    baseline: Path | None,
    shard: Shard | None,
    annotations: str | None,
    junit: Path | None,
    reproduce: int | None,
    as_json: bool,
    quiet: bool,
    dry_run: bool,
    watch: bool,
    frozen: bool,
    locked: bool,
    how: Options,
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

    --json prints one object:
      schema       1
      seconds      duration of the build
      interrupted  true if a signal stopped the build
      notes        warnings about the store, and about nondeterministic compilations
      warnings     number of warnings, including the warnings of hits
      totals       number of variants by status
      hit_rate     hits (not lowered or shared) divided by finished variants, or null
      saved_s      time that compiling the hits took, as far as known
      slowest      ids of the variants that took longest to compile
      largest      ids of the compiled variants with the largest cubins
      spilling     ids of all variants that spill registers
      variants     list in the order of the specs, each with: id, name, params, target, arch,
                   status (hit, lowered, shared, compiled, failed, skipped, missing), seconds,
                   saved_s, reason (of the miss), explanation (with --explain: reason, key,
                   nearest, fields, sources), remote (true for a hit in the remote store),
                   action_key, digest (of the artifact), cubin_bytes, kernels (with the resources
                   of each), resources (of the variant, as in lock files and budgets: registers,
                   spill_bytes, stack_bytes, smem_bytes, occupancy in warps per multiprocessor,
                   cubin_bytes), pallas_kernels (number of Mosaic kernels), xla_kernels (names of
                   the kernels that XLA added), warnings (stage, kind, source, text, count),
                   error (message, hint, file, line, column, exit_code), output (last lines)
      reproduced   with --reproduce, a list: variant, outcome, digests (stored, first, second),
                   differences, and more
      shard        with --shard: number, of, variants and others (number of variants in this shard
                   and in all others), expected_s (compile time by the costs in the lock file, or
                   null), costs_from (the lock file, or null)
      remote       use of the remote store, or null: url, requests, hits, offered (number of
                   variants sent), bytes_read, bytes_written, waited_s, lost_s (part of waited_s
                   without a result, at most 2 s), saved_s, refusals (number of rejected objects),
                   refused (the first reasons), conflicts (action keys with a different record in
                   the remote store), tripped (why it was disabled for this build)
      errors       errors of Python specs whose process died or was stopped; other specs are built
      error        why nothing was built, for example a mistake in a spec
    Fields that do not apply to a variant are null or empty.
    """
    from pallasc.cli.output.build_text import print_end
    from pallasc.cli.output.progress import Reading, store_progress
    from pallasc.cli.output.reports import Outputs
    from pallasc.compiler.builds.build import build
    from pallasc.compiler.builds.options import load_baseline

    if reproduce and (frozen or dry_run):
        other = "--frozen" if frozen else "--dry-run"
        raise click.UsageError(f"--reproduce compiles, and {other} compiles nothing.")
    if watch:
        from pallasc.cli.watch import refuse_unwatchable

        refuse_unwatchable(click.get_current_context())
    outputs = Outputs(as_json, junit, annotations)
    opening = partial(open_store, store_root)
    with outputs.reporting_errors():
        how = replace(how, compile=not dry_run, frozen=frozen)
        if watch:
            return _watch(specs, selection, baseline, how, opening, quiet=quiet)
        if frozen or locked or (lock is not None and shard is None):
            from pallasc.compiler.builds.locked import load_locked

            how = replace(how, locked=load_locked(lock, frozen=frozen, locked=locked))
        store = opening()
        reproduction = None
        with store_progress(store, quiet=quiet) as progress:
            reading = Reading(progress, keep_going=how.keep_going)
            reader = reading.reader(store, how, frozen=frozen)
            variants = reader.select(specs, selection.targets, selection.expression).variants
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
        if reproduction is not None:
            _print_reproduction(reproduction, report, quiet=quiet)
        print_end(report, store, progress.screen, quiet=quiet)
        outputs.write_build(report, reproduction, share)
    return report.exit_code


def _watch(
    specs: tuple[str, ...],
    selection: options.Selection,
    baseline: Path | None,
    options: Options,
    opening: Callable[[], Store],
    *,
    quiet: bool,
) -> int:
    from pallasc.cli.watch import watch_builds
    from pallasc.compiler.builds.watch import Watch

    here = replace(options, executor=None)
    with Watch(specs, here, selection.targets, selection.expression, baseline=baseline) as watch:
        return watch_builds(watch, opening, quiet=quiet)


def _print_reproduction(reproduction: Reproduction, report: Report, *, quiet: bool) -> None:
    from pallasc.cli.output.build_text import failure_lines
    from pallasc.cli.output.outcome import built
    from pallasc.specs.spelling import one_line

    for result in reproduction.results:
        if quiet and result.outcome == "same":
            continue
        echo(f"{result.outcome:<9}  {one_line(result.variant)}", err=True)
    for failed in report.results:
        for line in failure_lines(built(failed)):
            echo(line, err=True)
