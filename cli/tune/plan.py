"""`pallasc tune plan`: write the points worth measuring as a job for a machine with a GPU."""

from __future__ import annotations

from collections.abc import Sequence
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
    remote_options,
    specs_argument,
    store_option,
    store_setting,
    supervision_options,
    variant_options,
)
from pallasc.cli.output.artifact_text import amount
from pallasc.cli.output.text import count, echo, json_text
from pallasc.specs.canonical import plain

if TYPE_CHECKING:
    from pallasc.cache.remote.settings import RemoteSettings
    from pallasc.specs.spec import Variant
    from pallasc.tuning.plan import Planned
    from pallasc.tuning.rules import Facts, Point


def _share(ctx: click.Context, _: click.Parameter, text: str) -> float:
    """Parse a percentage into a number from 0 to 1.

    Raises:
        click.BadParameter: it is not a percentage.
    """
    if ctx.resilient_parsing:
        return 1.0
    number = text.removesuffix("%").strip()
    try:
        percent = float(number)
    except ValueError:
        percent = -1.0  # rejected below, like other invalid values
    if not text.endswith("%") or not 0 < percent <= 100:
        raise click.BadParameter(f"{text!r} is not a percentage: write 50% for a half.", ctx)
    return percent / 100


@click.command("plan", cls=Command, short_help="Write a job with the points worth measuring.")
@specs_argument()
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="Job to write; an existing file is replaced atomically.",
)
@click.option(
    "--keep",
    "share",
    callback=_share,
    default="50%",
    show_default=True,
    metavar="PERCENT",
    help="Maximum percentage of the points of a key to keep.",
)
@count_option("--most", "Maximum number of points of a key to keep.")
@variant_options
@compile_options
@supervision_options
@store_option
@store_setting
@remote_options
@quiet_option
@json_option("the points and the dropped points")
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
    """Compile all points of the tuned kernels of SPECS, and write a job with the best candidates.

    No GPU is needed. A key is a set of values of `tune.by` on one target; the points of a key are
    alternatives. Points are dropped if they do not compile, exceed their budget, need too much
    shared memory, compile to the same artifact as another point, or spill much more than others.
    The rest are ranked by static facts, and --keep and --most limit how many are kept. The spec's
    default and the variants in its table are kept if they compile, and at least one more point.

    The job is a bundle for `pallasc tune run`. If the spec has a reference that runs within two
    minutes, the job includes up to 4,096 elements of each of its results. A key without points is
    an error; the job contains all other keys.

    Examples:
      pallasc tune plan kernels.yaml -o job.pallasc
      pallasc tune plan kernels.yaml -o job.pallasc --keep 25% --most 16
      pallasc tune plan specs/ -o job.pallasc --target h100-sxm -k matmul

    The exit code is 1 if a key has no points left. If no key has any, no job is written.

    --json prints one object:
      schema    1
      job       file, bytes, digest (of the whole content)
      points    list in the order of the specs, each with: id, kernel, params, target, digest (of
                the artifact), rank, facts, reference (true if it has values) or why_no_reference
      dropped   list, each with: id, kernel, params, target, digest or null, rule (failed, budget,
                "shared memory", equal, spills, rank), why, facts or null
      facts     spill_bytes, smem_bytes, warps_per_sm, waves, instructions, tile_flops, mbarriers,
                load_bytes, store_bytes, bound_s; null if unknown
      lost      list of the keys without points, each with: kernel, key (by parameter), target,
                why
      untuned   names of the kernels without `tune`, which are not in the job
    """
    from pallasc.cli.arguments.selection import open_store
    from pallasc.cli.output.build_text import print_notes, summary
    from pallasc.cli.output.exits import error_text
    from pallasc.cli.output.progress import Reading, store_progress
    from pallasc.compiler.builds.collect import SpecReader
    from pallasc.compiler.builds.options import Options
    from pallasc.tuning.plan import lost_error, plan_job

    store = open_store(store_root)
    with store_progress(store, hits=False, quiet=quiet) as progress:
        reader = SpecReader(
            store=store,
            timeout_s=limits["timeout_s"],
            memory_bytes=limits["memory_bytes"],
            on_tick=Reading(progress, keep_going=False).tick,
        )
        planned = plan_job(
            reader.select(specs, targets, expression, all_points=True),
            output,
            store=store,
            options=Options(
                jobs=jobs, ptxas=ptxas, require_store=require_store, remote=remote, **limits
            ),
            share=share,
            most=most,
            on_event=progress,
        )
    print_notes(planned.report, store)
    for own in planned.lost:
        echo(f"error: {error_text(lost_error(own))}", err=True)
    if planned.report.interrupted:
        progress.screen.write(f"{summary(planned.report, progress.screen, quiet=quiet)}\n")
        echo(f"{output} is not written.", err=True)
        return planned.exit_code
    if as_json:
        echo(json_text(_json(planned)))
    elif not quiet:
        echo(_text(planned))
    if not quiet:
        echo(_totals_text(planned), err=True)
    return planned.exit_code


def _text(planned: Planned) -> str:
    """Return the points of each key, one line each: kept ones by rank, then dropped ones."""
    from pallasc.tuning.plan import tuning_of

    lines: list[str] = []
    for own in planned.keys:
        by = tuning_of(own[0][0]).by
        kept = sorted((pair for pair in own if pair[1].rank), key=lambda pair: pair[1].rank)
        name = f"{own[0][0].name} {_values(own[0][0], by)}".rstrip()
        total = count(len(own), "point")
        lines.append(f"{name} on {own[0][0].target.name}: {len(kept)} of {total}")
        for variant, point in kept:
            use = _values(variant, by, others=True)
            lines.append(f"  {point.rank:>3}  {use}: {_words(point.facts)}")
        for variant, point in own:
            if not point.rank:
                lines.append(f"    -  {_values(variant, by, others=True)}: {point.why}")
    return "\n".join(lines)


def _values(variant: Variant, by: Sequence[str], *, others: bool = False) -> str:
    """Return the parameters in the key, or with `others`, the remaining ones."""
    return ", ".join(f"{k}={plain(v)}" for k, v in variant.params if (k in by) is not others)


def _words(facts: Facts | None) -> str:
    """Return the figures of a point that matter most for its rank."""
    if facts is None:
        return "nothing is known"
    parts = [f"{facts.waves:.3g} waves", count(facts.mbarriers, "barrier")]
    if facts.instructions is not None:
        parts.insert(0, count(facts.instructions, "instruction"))
    if facts.load_bytes is not None:
        parts.append(f"{amount(facts.load_bytes)}B loaded")
    if facts.spill_bytes:
        parts.append(f"spills {count(facts.spill_bytes, 'byte')}")
    return ", ".join(parts)


def _totals_text(planned: Planned) -> str:
    """Return the totals: omitted kernels, points dropped by each rule, the written job."""
    from pallasc.tuning.plan import counts
    from pallasc.tuning.rules import KINDS

    lines = [f"note: {name} has no `tune` and is left out" for name in planned.untuned]
    without = {
        (variant.name, planned.samples[point.id].why): None
        for variant, point in planned.pairs
        if point.rank and planned.samples[point.id].data is None
    }
    lines += [f"note: {name} has no reference values: {why}" for name, why in without]
    if dropped := counts(planned.points):
        words = ", ".join(f"{number:,} {KINDS[kind]}" for kind, number in dropped.items())
        points = count(len(planned.points), "point")
        lines.append(f"dropped {sum(dropped.values()):,} of {points}: {words}")
    written = planned.written
    if written is None:
        return "\n".join([*lines, "no job is written"])
    points = count(len(written.variants), "point")
    return "\n".join([*lines, f"wrote {written.path}: {points}, {written.size:,} bytes"])


def _json(planned: Planned) -> dict[str, object]:
    written = planned.written
    job: dict[str, object] | None = None
    if written is not None:
        job = {"file": str(written.path), "bytes": written.size, "digest": written.digest}
    return {
        "job": job,
        "points": [
            {**_point_json(variant, point), **_kept_json(point, planned)}
            for variant, point in planned.pairs
            if point.rank
        ],
        "dropped": [
            {**_point_json(variant, point), "rule": point.rule, "why": point.why}
            for variant, point in planned.pairs
            if not point.rank
        ],
        "lost": [_lost_json(own) for own in planned.lost],
        "untuned": list(planned.untuned),
    }


def _point_json(variant: Variant, point: Point) -> dict[str, object]:
    known = None if point.facts is None else point.facts.to_json()
    digest = None if known is None else known.pop("digest")
    return {
        "id": variant.id,
        "kernel": variant.name,
        "params": dict(variant.params),
        "target": variant.target.name,
        "digest": digest,
        "facts": known,
    }


def _kept_json(point: Point, planned: Planned) -> dict[str, object]:
    samples = planned.samples[point.id]
    why = {} if samples.data is not None else {"why_no_reference": samples.why}
    return {"rank": point.rank, "reference": samples.data is not None, **why}


def _lost_json(own: Sequence[tuple[Variant, Point]]) -> dict[str, object]:
    from pallasc.tuning.plan import tuning_of

    variant = own[0][0]
    by = tuning_of(variant).by
    return {
        "kernel": variant.name,
        "key": {name: value for name, value in variant.params if name in by},
        "target": variant.target.name,
        "why": list(dict.fromkeys(point.why for _, point in own)),
    }
