"""`pallasc build`: compile specs into the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pallasc.cli.arguments.layout import Command
from pallasc.cli.arguments.options import (
    compile_options,
    fail_on_warning_option,
    json_option,
    require_store_option,
    selection_options,
    signed_store_option,
    specs_argument,
    store_option,
    supervision_options,
    traceback_option,
)
from pallasc.cli.terminal.output import echo

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.cli.render.progress import Progress
    from pallasc.compiler.builds.report import Report
    from pallasc.compiler.builds.reproduce import Reproduction
    from pallasc.specs.spec import Variant

F = TypeVar("F", bound=Callable[..., Any])


def _lock_options(function: F) -> F:
    """Add the options that hold a build to what is locked or stored already."""
    for option in (
        click.option(
            "--reproduce",
            type=click.IntRange(min=1),
            metavar="N",
            help="Afterwards compile N variants twice in fresh processes, and compare their bytes "
            "with each other and with the store's.",
        ),
        click.option(
            "--lock",
            "lock_path",
            type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE",
            help="The lock file of --frozen and --locked; by default pallasc.lock in the current "
            "folder.",
        ),
        click.option(
            "--locked", is_flag=True, help="Fail where something is not as the lock file says."
        ),
        click.option(
            "--frozen", is_flag=True, help="Compile nothing; fail where something is missing."
        ),
        click.option(
            "--dry-run", is_flag=True, help="Compile nothing; say what would be compiled, and why."
        ),
    ):
        function = option(function)
    return function


def _report_options(function: F) -> F:
    """Add the options that say where else the report goes."""
    for option in (
        click.option(
            "--annotations",
            type=click.Choice(["github"]),
            help="Say failures, spills and warnings in a form that GitHub shows at their lines.",
        ),
        click.option(
            "--junit",
            type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE",
            help="Write the report as JUnit XML.",
        ),
        click.option(
            "--explain", is_flag=True, help="Say why each miss was a miss, field by field."
        ),
    ):
        function = option(function)
    return function


@click.command("build", cls=Command, short_help="Compile specs into the store.")
@specs_argument()
@selection_options
@compile_options
@supervision_options
@click.option(
    "--keep-going/--fail-fast",
    default=True,
    show_default=True,
    help="After a variant failed, compile the others, or stop.",
)
@_lock_options
@_report_options
@store_option
@require_store_option
@click.option(
    "--warnings",
    is_flag=True,
    help="Show what was said while variants were compiled: warnings of Python, logging, the "
    "standard error output; of hits too.",
)
@fail_on_warning_option
@signed_store_option
@json_option("the report")
@traceback_option()
def command(
    specs: tuple[str, ...],
    targets: tuple[str, ...],
    expression: str | None,
    store_root: Path | None,
    lock_path: Path | None,
    annotations: str | None,
    junit: Path | None,
    reproduce: int | None,
    as_json: bool,
    warnings: bool,
    dry_run: bool,
    frozen: bool,
    locked: bool,
    require_signed: bool,
    **options: Any,
) -> int:
    """Compile every variant of SPECS that is not in the store yet.

    SPECS are YAML files, Python files with @pallasc.kernel or pallasc.declare, or folders of both.
    Each variant gets one line on the standard error output: "hit" was in the store; "lowered" was
    too, but had to be lowered again to see that; "shared" is the same as another variant of this
    build; "compiled" was made now; "failed" comes with its message and the line of your source. On
    a terminal, what is running is shown below. Ctrl-C or SIGTERM ends it at once; what is finished
    is kept.

    What was said while a variant was traced, lowered and compiled (warnings of Python, logging at
    WARNING and above, the standard error output) is kept with it, and counted at the end, of hits
    too.

    Examples:
      pallasc build kernels.yaml
      pallasc build kernels.yaml --target sm_90a --target b200
      pallasc build specs/ -k "matmul and m=4096" --jobs 4 --timeout 600
      pallasc build specs/ --dry-run --explain
      pallasc build specs/ --locked --junit report.xml --annotations github
      pallasc build specs/ --fail-fast --json > report.json
      pallasc build specs/ --warnings --fail-on-warning "no tuning|cache miss"

    --json prints one object:
      schema       1
      seconds      time of the whole build
      interrupted  whether it was stopped from outside
      notes        warnings, about the store and about compilations that gave different results
      warnings     how many warnings there were, those of hits included
      totals       number of variants by status
      hit_rate     hits (without lowered and shared) by all that was finished, or null
      saved_s      what compiling the hits took, as far as that is known
      slowest      ids of the compiled variants that took longest; largest, by size of their cubins;
                   spilling, all that spill
      variants     a list, in the order of the specs; of each: id, name, params, target, arch,
                   status (hit, lowered, shared, compiled, failed, skipped, missing), seconds,
                   saved_s, reason (why it was a miss), explanation (with --explain: reason, key,
                   nearest, fields, sources, over_budget), action_key, digest (of the artifact),
                   cubin_bytes, kernels (resources), pallas_kernels (how many are Mosaic's),
                   xla_kernels (names of those that XLA added), warnings (stage, kind, source, text,
                   count),
                   error (message, hint, file, line, column, exit_code), output (its last lines)
      reproduced   with --reproduce, a list: variant, outcome, digests (stored, first, second),
                   differences and more
      errors       of Python specs whose process died or was stopped; the others are built
      error        what ended the whole build before it began, such as a mistake in a spec
    What a variant does not have is null or empty.
    """
    from pallasc.cli.arguments.selection import open_store
    from pallasc.cli.render.build_outputs import Outputs

    if reproduce and (frozen or dry_run):
        other = "--frozen" if frozen else "--dry-run"
        raise click.UsageError(f"--reproduce compiles, and {other} compiles nothing.")
    outputs = Outputs(as_json=as_json, junit=junit, annotations=annotations)
    with outputs.telling_of_errors():
        build = {**options, "compile": not dry_run, "frozen": frozen}
        if frozen or locked or lock_path is not None:
            from pallasc.compiler.builds.locked import load_locked

            build["locked"] = load_locked(lock_path, frozen=frozen, locked=locked)
        store = open_store(store_root, require_signed=require_signed)
        report, found = _run(specs, targets, expression, store, build, reproduce, warnings=warnings)
        outputs.write(report, found)
    return report.exit_code


def _run(
    specs: tuple[str, ...],
    targets: tuple[str, ...],
    expression: str | None,
    store: Store,
    options: dict[str, Any],
    reproduce: int | None,
    *,
    warnings: bool,
) -> tuple[Report, Reproduction | None]:
    """Load, build and perhaps reproduce, and say how it goes and how it went."""
    from pallasc.cli.arguments.selection import load_variants
    from pallasc.cli.render.live import stderr_progress
    from pallasc.cli.render.reading import Reading
    from pallasc.cli.render.result_text import failure_lines
    from pallasc.cli.render.summary import summary
    from pallasc.specs.plain_text import one_line

    found = None
    with stderr_progress() as progress:
        store.warn_by(lambda text: progress.say(f"warning: {text}"))
        reading = Reading(progress, keep_going=options["keep_going"])
        variants = load_variants(
            specs,
            store=store,
            targets=targets,
            expression=expression,
            timeout_s=options["timeout_s"],
            memory_bytes=options["memory_bytes"],
            frozen=options["frozen"],
            on_tick=reading.tick,
            broken=reading.broken,
        )
        report = _build(variants, store, options, progress)
        report = replace(report, errors=tuple(reading.errors))
        if reproduce and not report.exit_code:
            progress.say(f"compiling {min(reproduce, len(variants))} twice more, to compare")
            report, found = _reproduce(variants, reproduce, store, options, report, progress)
    if found is not None:
        for result in found.results:
            echo(f"{result.outcome:<9}  {one_line(result.variant)}", err=True)
        for failed in report.results:
            for line in failure_lines(failed):
                echo(line, err=True)
    for note in report.notes:
        if note not in store.warnings:
            echo(f"warning: {note}", err=True)
    progress.screen.write(f"{summary(report, progress.screen, warnings=warnings)}\n")
    return report, found


def _build(
    variants: list[Variant], store: Store, options: dict[str, Any], progress: Progress
) -> Report:
    from pallasc.compiler.builds.build import build

    report = build(variants, store=store, on_event=progress, **options)
    if options["explain"]:
        from pallasc.cli.render.why_text import explanation_text

        for result in report.results:
            if result.explanation is not None:
                progress.say(explanation_text(result.explanation))
    return report


def _reproduce(
    variants: list[Variant],
    number: int,
    store: Store,
    options: dict[str, Any],
    report: Report,
    progress: Progress,
) -> tuple[Report, Reproduction]:
    """Compile some variants twice; those that differ have failed in the report."""
    from pallasc.compiler.builds.reproduce import judged, reproduce

    shared = {name: options[name] for name in ("jobs", "ptxas", "timeout_s", "memory_bytes")}
    stored = {r.variant.id: r.artifact for r in report.results if r.artifact is not None}
    found = reproduce(variants, number, store=store, stored=stored, on_event=progress, **shared)
    return judged(report, found), found
