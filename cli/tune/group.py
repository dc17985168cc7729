"""`pallasc tune`: plan a job of points to measure, and show the rows of tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pallasc.cli.arguments import options
from pallasc.cli.arguments import variants as given
from pallasc.cli.arguments.command import Command, Group
from pallasc.cli.arguments.variants import Selectable, Target
from pallasc.cli.output.text import count, echo, json_text, table
from pallasc.cli.tune import pick, run
from pallasc.specs.canonical import variant_id
from pallasc.specs.gpus import MODELS
from pallasc.specs.spelling import amount
from pallasc.specs.templates import Scalar
from pallasc.specs.tuning import Row, use_text

if TYPE_CHECKING:
    from pallasc.cli.arguments.variants import Work
    from pallasc.tuning.plan import Facts, JobPoint, Planned

_DIGITS = 12
_HEADS = ["KERNEL", "GPU", "KEY", "USE", "TIME", "SPREAD", "ROUNDS", "DATE", "FROM"]


@click.group(
    "tune",
    cls=Group,
    short_help="Choose the fastest variants of a kernel: plan, measure, pick.",
)
def command() -> None:
    """Choose the fastest variants of a kernel.

    `tune` in the spec lists the parameters to tune; they must affect only the speed. The result is
    a table: a file to review and commit, which builds and bundles use.

    Examples:
      pallasc tune plan kernels.yaml -o job.pallasc
      pallasc tune run job.pallasc -o results.jsonl
      pallasc tune pick results.jsonl --specs kernels.yaml
      pallasc tune show kernels.yaml
    """


command.add_command(run.command)
command.add_command(pick.command)


def _share(ctx: click.Context, _: click.Parameter, text: str) -> float:
    """Parse a percentage into a number from 0 to 1.

    Raises:
        click.BadParameter: it is not a percentage.
    """
    number = text.strip().removesuffix("%")
    if text == number or not number.replace(".", "", 1).isdecimal() or not 0 < float(number) <= 100:
        raise click.BadParameter(f"{text!r} is not a percentage. Write it like 50%.", ctx)
    return float(number) / 100


@command.command("plan", cls=Command, short_help="Write a job with the points worth measuring.")
@options.specs_argument()
@options.output_option("FILE", "Job to write; an existing file is replaced atomically.")
@click.option(
    "--keep",
    "share",
    callback=_share,
    default="50%",
    show_default=True,
    metavar="PERCENT",
    help="Maximum percentage of points to keep per key.",
)
@options.count_option("--most", "Maximum number of points to keep per key.")
@options.variant_options
@options.quiet_option
@given.build_options()
@options.json_option("the points and the dropped points")
def plan_command(output: Path, as_json: bool, work: Work, **limits: Any) -> int:
    """Compile all points of the tuned kernels of SPECS, and write a job with the best candidates.

    No GPU is needed. Points compete within a key: one combination of values of the `tune.by`
    parameters, on one target. Points are dropped if they do not compile, exceed their budget, need
    too much shared memory, compile to the same artifact as another point, or spill much more than
    others. The rest are ranked by static facts, and --keep and --most limit how many are kept. The
    spec's default and the variants in its table are kept if they compile, plus at least one other
    point.

    The job is a bundle for `pallasc tune run`. If the spec has a reference that runs within two
    minutes, the job includes up to 4,096 elements of each reference output. A key that has no
    points left is an error, but the job still contains all other keys.

    Examples:
      pallasc tune plan kernels.yaml -o job.pallasc
      pallasc tune plan kernels.yaml -o job.pallasc --keep 25% --most 16
      pallasc tune plan specs/ -o job.pallasc --target h100-sxm -k matmul

    The exit code is 1 if a key has no points left. If no key has points left, no job is written.
    """
    from pallasc.cli.output.build_text import print_notes, summary
    from pallasc.cli.output.text import error_text
    from pallasc.tuning.plan import lost_error, plan_job

    quiet, work.selection = work.quiet, work.selection._replace(all_points=True)
    with work.progress() as progress:
        planned = plan_job(
            work.select(progress),
            output,
            store=work.store,
            options=work.how,
            on_event=progress,
            **limits,
        )
    print_notes(planned.report, work.store)
    for own in planned.lost:
        echo(f"error: {error_text(lost_error(own))}", err=True)
    if planned.report.interrupted:
        progress.screen.write(f"{summary(planned.report, progress.screen, quiet=quiet)}\n")
        echo(f"{output} is not written.", err=True)
        return planned.exit_code
    if as_json:
        echo(json_text(_plan_json(planned)))
    elif not quiet:
        echo(_plan_text(planned))
    if not quiet:
        echo("\n".join(_totals(planned)), err=True)
    return planned.exit_code


def _plan_text(planned: Planned) -> str:
    """Return the points of each key, one line each: kept ones by rank, then dropped ones."""
    lines: list[str] = []
    for own in planned.keys:
        kept = sorted((point for point in own if point.rank), key=lambda point: point.rank)
        name = f"{own[0].variant.name} {use_text(own[0].place)}".rstrip()
        total = count(len(own), "point")
        lines.append(f"{name} on {own[0].variant.target.name}: {len(kept)} of {total}")
        lines += [f"  {one.rank:>3}  {use_text(one.use)}: {_words(one.facts)}" for one in kept]
        lines += [f"    -  {use_text(one.use)}: {one.why}" for one in own if not one.rank]
    return "\n".join(lines)


def _words(facts: Facts | None) -> str:
    """Return the figures of a point that matter most for its rank."""
    if facts is None:
        return "nothing is known"
    parts = [
        f"{facts.waves:.3g} waves",
        count(facts.mbarriers, "barrier"),
        f"{amount(facts.smem_bytes)}B of shared memory",
    ]
    if facts.spill_bytes:
        parts.append(f"spills {count(facts.spill_bytes, 'byte')}")
    return ", ".join(parts)


def _totals(planned: Planned) -> Iterator[str]:
    """Yield the totals: omitted kernels, points dropped by each rule, the written job."""
    from pallasc.tuning.plan import counts_text

    for name in planned.untuned:
        yield f"note: {name} has no `tune` and is not in the job"
    kept = [point for point in planned.points if point.rank]
    samples = [(own.variant.name, own.samples) for own in kept if own.samples]
    for name, why in dict.fromkeys((name, own.why) for name, own in samples if not own.data):
        yield f"note: {name} has no reference values: {why}"
    if dropped := len(planned.points) - len(kept):
        points = count(len(planned.points), "point")
        yield f"dropped {dropped:,} of {points}: {counts_text(planned.points)}"
    if (written := planned.written) is None:
        yield "no job is written"
    else:
        points = count(len(written.variants), "point")
        yield f"wrote {written.path}: {points}, {written.size:,} bytes"


def _plan_json(planned: Planned) -> dict[str, object]:
    job, written = None, planned.written
    if written is not None:
        job = {"file": str(written.path), "bytes": written.size, "digest": written.digest}
    return {
        "job": job,
        "points": [_point_json(point) for point in planned.points if point.rank],
        "dropped": [_point_json(point) for point in planned.points if not point.rank],
        "lost": [
            {
                "kernel": own[0].variant.name,
                "key": own[0].place,
                "target": own[0].variant.target.name,
                "why": list(dict.fromkeys(point.why for point in own)),
            }
            for own in planned.lost
        ],
        "untuned": list(planned.untuned),
    }


def _point_json(point: JobPoint) -> dict[str, object]:
    facts = {} if point.facts is None else point.facts.to_json()
    own: dict[str, object] = {"rule": point.rule, "why": point.why}
    if point.samples is not None:
        own = {"rank": point.rank, "reference": point.samples.data is not None}
        own |= {"why_no_reference": point.samples.why} if point.samples.data is None else {}
    return {
        "id": point.id,
        "kernel": point.variant.name,
        "params": dict(point.variant.params),
        "target": point.variant.target.name,
        "digest": facts.pop("digest", None),
        "facts": facts or None,
        **own,
    }


@command.command("show", cls=Command, short_help="Show the rows of the tables of tuned kernels.")
@options.specs_argument()
@options.expression_option(
    "Select rows that match EXPR, as in pallasc build. It can name kernels, values of keys and of "
    "tuned parameters, and target=MODEL."
)
@given.reading_options
@options.json_option("the rows")
def show_command(expression: str | None, as_json: bool, work: Work) -> None:
    """Show the rows of the tables of SPECS: the variant used for each key, and its measurements.

    Tables are checked against the specs. Nothing is compiled. The FROM column shows the origin of
    the row, or the first digits of the digest of the measured artifact.

    Examples:
      pallasc tune show kernels.yaml
      pallasc tune show kernels.yaml -k "target=h100-sxm and m=1024"
      pallasc tune show specs/ --json | jq ".rows[].us"
    """
    from pallasc.specs.loading.select import select
    from pallasc.specs.loading.tuned_table import Tables

    known = work.select().specs
    tables = Tables(known)
    tuned = {
        (spec.name, id(own)): (spec.name, own)
        for spec in known
        if spec.tune is not None and (own := tables.of(spec, spec.tune)) is not None
    }
    rows = [_selectable(row, name, own.by) for name, own in tuned.values() for row in own.rows]
    if rows and expression is not None:
        rows = select(rows, expression, noun="rows")
    if as_json:
        echo(json_text({"rows": list(map(_row_json, rows))}))
    elif rows:
        echo(table(_HEADS, list(map(_row_cells, rows))))
    elif any(spec.tune is not None for spec in known):
        echo("The tables of these specs have no rows.", err=True)
    else:
        echo("No kernel of these specs is tuned.", err=True)


def _selectable(row: Row, name: str, by: tuple[str, ...]) -> Selectable:
    """Return a row of a kernel in a form that `-k` can select from; `entry` is the row."""
    params = (*zip(by, row.key, strict=True), *row.use.items())
    model = MODELS.get(row.gpu)
    target = Target(row.gpu, "" if model is None else model.arch)
    return Selectable(variant_id(name, params, row.gpu), name, params, target, row)


def _key(own: Selectable) -> dict[str, Scalar]:
    return dict(own.params[: len(own.entry.key)])


def _row_json(own: Selectable) -> dict[str, object]:
    row: Row = own.entry
    return {
        "kernel": own.name,
        "file": row.place.file if row.place else None,
        "line": row.place.line if row.place else None,
        "gpu": row.gpu,
        "key": _key(own),
        "use": row.use,
        "artifact": row.artifact,
        **({"source": row.source} if row.source else {}),
        **(row.measured.to_json() if row.measured is not None else {}),
    }


def _row_cells(own: Selectable) -> list[str]:
    row: Row = own.entry
    figures = ["", "", "", ""]
    if measured := row.measured:
        spread = f"{measured.spread_percent:g} %" if measured.spread_percent else ""
        figures = [f"{measured.us:g} µs", spread, f"{measured.rounds or ''}", measured.date]
    origin = row.source or (row.artifact or "")[:_DIGITS]
    return [own.name, row.gpu, use_text(_key(own)), use_text(row.use), *figures, origin]
