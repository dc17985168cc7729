"""A planned job as text and JSON: the points of each key, and why others were dropped.

`pallasc tune plan`: the points that are worth measuring, as a job for a machine with a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
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
from pallasc.cli.artifacts.metrics_text import amount
from pallasc.cli.terminal.output import count, echo
from pallasc.specs.canonical import plain

if TYPE_CHECKING:
    from pallasc.cache.remote.settings import RemoteSettings
    from pallasc.specs.spec import Variant
    from pallasc.tuning.plan import LostKey, Planned
    from pallasc.tuning.rules import Facts


def planned_text(planned: Planned) -> str:
    """Return the points of each key by rank, then those that were dropped, a line each."""
    from pallasc.tuning.plan import key_of

    variants = [result.variant for result in planned.report.results]
    keys: dict[object, list[int]] = {}
    for number, variant in enumerate(variants):
        keys.setdefault(key_of(variant), []).append(number)
    ranks = dict(planned.pruned.kept)
    reasons = {each.number: each.why for each in planned.pruned.dropped}
    lines: list[str] = []
    for numbers in keys.values():
        kept = sorted((number for number in numbers if number in ranks), key=ranks.__getitem__)
        first = variants[numbers[0]]
        lines.append(f"{_heading(first)}: {len(kept)} of {count(len(numbers), 'point')}")
        for number in kept:
            words = _words(planned.facts[number])
            lines.append(f"  {ranks[number]:>3}  {_use(variants[number])}: {words}")
        for number in numbers:
            if number in reasons:
                lines.append(f"    -  {_use(variants[number])}: {reasons[number]}")
    return "\n".join(lines)


def totals_text(planned: Planned) -> str:
    """Return what was written and how many points each rule dropped, lines for people."""
    from pallasc.tuning.plan import counts
    from pallasc.tuning.rules import KINDS

    lines = [*_left_out(planned)]
    if planned.pruned.dropped:
        words = [f"{number:,} {KINDS[kind]}" for kind, number in counts(planned.pruned).items()]
        points = count(len(planned.report.results), "point")
        lines.append(f"dropped {len(planned.pruned.dropped):,} of {points}: {', '.join(words)}")
    if planned.written is not None:
        bundle = planned.written.bundle
        points = count(len(bundle.variants), "point")
        lines.append(f"wrote {bundle.path}: {points}, {bundle.size:,} bytes")
    else:
        lines.append("no job is written")
    return "\n".join(lines)


def _left_out(planned: Planned) -> Iterator[str]:
    """Yield what the job does not have, and why."""
    for name in planned.untuned:
        yield f"note: {name} has no `tune` and is left out"
    kept = (planned.report.results[each.number] for each in planned.pruned.kept)
    without = {
        (result.variant.name, samples.why): None
        for result, samples in zip(kept, planned.samples, strict=True)
        if samples.data is None
    }
    for name, why in without:
        yield f"note: {name} has no reference values: {why}"


def planned_json(planned: Planned) -> dict[str, object]:
    """Return what `--json` prints."""
    results, written = planned.report.results, planned.written
    job: dict[str, object] | None = None
    if written is not None:
        bundle = written.bundle
        job = {"file": str(bundle.path), "bytes": bundle.size, "digest": bundle.digest}
    points = [
        {
            **_point_json(results[each.number].variant, planned.facts[each.number]),
            "rank": each.rank,
            "reference": samples.data is not None,
            **({} if samples.data is not None else {"why_no_reference": samples.why}),
        }
        for each, samples in zip(planned.pruned.kept, planned.samples, strict=True)
    ]
    dropped = [
        {
            **_point_json(results[each.number].variant, planned.facts[each.number]),
            "rule": each.kind,
            "why": each.why,
        }
        for each in planned.pruned.dropped
    ]
    return {
        "job": job,
        "points": points,
        "dropped": dropped,
        "lost": [_lost_json(key) for key in planned.lost],
        "untuned": list(planned.untuned),
    }


def _lost_json(key: LostKey) -> dict[str, object]:
    variant = key.variant
    by = variant.tuning.by if variant.tuning is not None else ()
    return {
        "kernel": variant.name,
        "key": {name: value for name, value in variant.params if name in by},
        "target": variant.target.name,
        "why": list(key.reasons),
    }


def _point_json(variant: Variant, facts: Facts | None) -> dict[str, object]:
    known = None if facts is None else facts.to_json()
    digest = None if known is None else known.pop("digest")
    return {
        "id": variant.id,
        "kernel": variant.name,
        "params": dict(variant.params),
        "target": variant.target.name,
        "digest": digest,
        "facts": known,
    }


def _heading(variant: Variant) -> str:
    """Return `matmul m=1024, dtype=bf16 on h100-sxm`."""
    by = variant.tuning.by if variant.tuning else ()
    text = ", ".join(f"{k}={plain(v)}" for k, v in variant.params if k in by)
    return f"{variant.name}{f' {text}' if text else ''} on {variant.target.name}"


def _use(variant: Variant) -> str:
    """Return the parameters in which points of a key differ."""
    by = variant.tuning.by if variant.tuning else ()
    return ", ".join(f"{k}={plain(v)}" for k, v in variant.params if k not in by)


def _words(facts: Facts | None) -> str:
    """Return the figures of a point that ranks are made from."""
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
    from pallasc.cli.arguments.selection import open_store
    from pallasc.cli.render.failures import error_text
    from pallasc.cli.render.live import store_progress
    from pallasc.cli.render.reading import Reading
    from pallasc.cli.render.summary import print_notes, summary
    from pallasc.compiler.builds.collect import SpecReader
    from pallasc.compiler.builds.options import Options
    from pallasc.tuning.plan import PlanOptions, plan_job

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
