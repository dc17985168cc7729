"""`pallasc tune plan`: the points that are worth measuring, as a job for a machine with a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import (
    ProcessLimits,
    compile_options,
    count_option,
    json_option,
    quiet_option,
    specs_argument,
    store_option,
    store_setting,
    supervision_options,
    variant_options,
)
from pallasc.cli.arguments.remote import remote_options
from pallasc.cli.terminal.output import echo

if TYPE_CHECKING:
    from pallasc.cache.remote.settings import RemoteSettings


def _share(ctx: click.Context, _: click.Parameter, text: str) -> float:
    """Return a share as a number from 0 to 1.

    Raises:
        click.BadParameter: it is not a percentage.
    """
    if ctx.resilient_parsing:
        return 1.0
    number = text.removesuffix("%").strip()
    try:
        percent = float(number)
    except ValueError:
        percent = -1.0  # refused below, with all that is no percentage
    if not text.endswith("%") or not 0 < percent <= 100:
        raise click.BadParameter(f"{text!r} is not a percentage: write 50% for a half.", ctx)
    return percent / 100


@click.command("plan", cls=Command, short_help="Write the points worth measuring as a job.")
@specs_argument()
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="The job to write; what was there is replaced in one step.",
)
@click.option(
    "--keep",
    "share",
    callback=_share,
    default="50%",
    show_default=True,
    metavar="PERCENT",
    help="Keep at most this part of the points of a key.",
)
@count_option("--most", "Keep at most N points of a key.")
@variant_options
@compile_options
@supervision_options
@store_option
@store_setting
@remote_options
@quiet_option
@json_option("the points and what was dropped")
def command(
    specs: tuple[str, ...],
    output: Path,
    share: float,
    most: int | None,
    targets: tuple[str, ...],
    expression: str | None,
    jobs: int | None,
    ptxas: Path | None,
    store_root: Path | None,
    require_store: bool,
    remote: RemoteSettings | None,
    quiet: bool,
    as_json: bool,
    **limits: Unpack[ProcessLimits],
) -> int:
    """Compile all points of the tuned kernels of SPECS, and write those worth measuring into a job.

    No GPU is needed. The points of a key, the values of `tune.by` on one target, are alternatives.
    Dropped are those that do not compile, break their budget, take too much shared memory, give
    the same artifact as another one, or spill much more than the others. The rest are ranked by
    what is known without running them, and the best are kept: --keep and --most say how many. The
    spec's default, and what its table uses, stay where they compile; one more stays in any case.

    The job is a bundle for `pallasc tune run`. With the points go up to 4,096 elements of each
    result of the spec's reference, where it has one and two minutes suffice. A key of which nothing
    is left is an error; the job has all others.

    Examples:
      pallasc tune plan kernels.yaml -o job.pallasc
      pallasc tune plan kernels.yaml -o job.pallasc --keep 25% --most 16
      pallasc tune plan specs/ -o job.pallasc --target h100-sxm -k matmul

    Exit code 1 means that of some keys no point is left; where none is left of any, no job is
    written.

    --json prints one object:
      schema    1
      job       file, bytes, digest (of all its content)
      points    a list, in the order of the specs; of each: id, kernel, params, target, digest (of
                its artifact), rank, facts, reference (whether it has values) or why_no_reference
      dropped   a list; of each: id, kernel, params, target, digest or null, rule (failed, budget,
                "shared memory", equal, spills, rank), why, facts or null
      facts     spill_bytes, smem_bytes, warps_per_sm, waves, instructions, tile_flops, mbarriers,
                load_bytes, store_bytes, bound_s; null where one is not known
      lost      keys of which no point is left, a list; of each: kernel, key (by parameter),
                target, why
      untuned   names of kernels that have no `tune`, and are left out
    """
    from pallasc.analysis.tuning.plan import PlanOptions, plan_job
    from pallasc.cli.arguments.selection import open_store
    from pallasc.cli.render.failures import error_text
    from pallasc.cli.render.live import store_progress
    from pallasc.cli.render.reading import Reading
    from pallasc.cli.render.summary import print_notes, summary
    from pallasc.cli.tune.planned import planned_json, planned_text, totals_text
    from pallasc.compiler.builds.collect import SpecReader
    from pallasc.compiler.builds.options import Options

    build = Options(jobs=jobs, ptxas=ptxas, require_store=require_store, remote=remote, **limits)
    store = open_store(store_root)
    with store_progress(store, hits=False, quiet=quiet) as progress:
        reader = SpecReader(
            store=store,
            timeout_s=limits["timeout_s"],
            memory_bytes=limits["memory_bytes"],
            on_tick=Reading(progress, keep_going=False).tick,
        )
        selection = reader.select(specs, targets, expression, all_points=True)
        planned = plan_job(
            selection,
            output,
            store=store,
            options=PlanOptions(share=share, most=most, build=build),
            on_event=progress,
        )
    print_notes(planned.report, store)
    for key in planned.lost:
        echo(f"error: {error_text(key.error())}", err=True)
    if planned.report.interrupted:
        progress.screen.write(f"{summary(planned.report, progress.screen, quiet=quiet)}\n")
        echo(f"{output} is not written.", err=True)
        return planned.exit_code
    if as_json:
        from pallasc.cli.terminal.output import json_text

        echo(json_text(planned_json(planned)))
    elif not quiet:
        echo(planned_text(planned))
    if not quiet:
        echo(totals_text(planned), err=True)
    return planned.exit_code
