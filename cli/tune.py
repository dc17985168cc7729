"""`pallasc tune`: choose points to measure, measure them, write tuning tables, and show them.

A point is one combination of values of all parameters. Points compete within a key: one combination
of values of the `tune.by` parameters, on one target. A contest is the measurement of one key.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pallasc.cli.arguments import options
from pallasc.cli.arguments import variants as given
from pallasc.cli.arguments.command import Command, Group
from pallasc.cli.arguments.variants import Selectable, Target
from pallasc.cli.output.text import count, echo, fields, json_text, table
from pallasc.errors import SpecError
from pallasc.specs.canonical import Scalar, canonical_text, variant_id
from pallasc.specs.gpus import MODELS
from pallasc.specs.spelling import amount, listed, one_line
from pallasc.specs.tuning import Row, key_text, use_text

if TYPE_CHECKING:
    from pallasc.cli.arguments.options import F
    from pallasc.cli.arguments.variants import Work
    from pallasc.specs.spec import Spec
    from pallasc.specs.tuning import Tune
    from pallasc.tuning.measure import Match
    from pallasc.tuning.pick import Key, Picked, RowChange, TunedKernel
    from pallasc.tuning.plan import Facts, JobPoint, Planned
    from pallasc.tuning.results import Contest, Start

# ---- plan

_DIGITS = 12
_HEADS = ["KERNEL", "GPU", "KEY", "USE", "TIME", "SPREAD", "ROUNDS", "DATE", "FROM"]


@click.group(
    "tune", cls=Group, short_help="Choose the fastest variants of a kernel: plan, measure, pick."
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


def _percent_option(
    name: str, text: str, parameter: str, default: float, most: float = 100
) -> Callable[[F], F]:
    kind = click.FloatRange(0, most)
    return options.option(name, "PERCENT", text, parameter=parameter, type=kind, default=default)


def _seconds_option(name: str, text: str, parameter: str) -> Callable[[F], F]:
    kind = click.FloatRange(min=0, min_open=True)
    return options.option(name, "SECONDS", text, parameter=parameter, type=kind, default=60.0)


@command.command("plan", cls=Command, short_help="Write a job with the points worth measuring.")
@options.specs_argument()
@options.output_option("FILE", "Job to write; an existing file is replaced atomically.")
@_percent_option("--keep", "Maximum percentage of points to keep per key.", "percent", 50)
@options.count_option("--most", "Maximum number of points to keep per key.")
@options.variant_options
@options.quiet_option
@given.build_options()
@options.json_option("the points and the dropped points")
def plan_command(output: Path, percent: float, most: int | None, as_json: bool, work: Work) -> int:
    """Compile all points of the tuned kernels of SPECS, and write a job with the best candidates.

    No GPU is needed. Points compete within a key: one combination of values of the `tune.by`
    parameters, on one target. Points are dropped if they do not compile, exceed their budget, need
    too much shared memory, compile to the same artifact as another point, or spill much more than
    others. The rest are ranked by static facts, and --keep and --most limit how many are kept. The
    spec's default and the variants in its table are kept if they compile, plus at least one other
    point.

    The job is a bundle for `pallasc tune run`. If the spec has a reference that runs within two
    minutes, the job includes up to 4,096 elements of each reference output.

    Examples:
      pallasc tune plan kernels.yaml -o job.pallasc
      pallasc tune plan kernels.yaml -o job.pallasc --keep 25 --most 16
      pallasc tune plan specs/ -o job.pallasc --target h100-sxm -k matmul

    The exit code is 1 if a key has no points left; the job contains all other keys. If no key has
    points left, no job is written.
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
            share=percent / 100,
            most=most,
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
        lines += [f"  {one.rank:>3}  {use_text(one.use)}: {_words(one.known)}" for one in kept]
        lines += [f"    -  {use_text(one.use)}: {one.why}" for one in own if not one.rank]
    return "\n".join(lines)


def _words(facts: Facts) -> str:
    """Return the figures of a point that matter most for its rank."""
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
    facts = {} if point.facts is None else point.facts._asdict()
    facts |= {"waves": round(facts["waves"], 4)} if facts else {}
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


# ---- run


@command.command("run", cls=Command, short_help="Measure the points of a job on the GPU.")
@click.argument(
    "job",
    type=options.PATH,
    metavar="JOB",
    callback=options.only_bundles("job", "pallasc tune plan SPECS -o job.pallasc"),
)
@options.output_option(
    "FILE",
    "Results file; if it has results of this job and GPU, the run is resumed.",
    dir_okay=False,
)
@options.count_option("--device", "Index of the GPU.", parameter="ordinal", least=0, default=0)
@_percent_option(
    "--within",
    "Stop when no other point can be faster than the best by more than this.",
    "within_percent",
    1.0,
)
@_seconds_option("--seconds", "Maximum time to measure one key, in seconds.", "seconds")
@options.count_option("--repeats", "Number of measured launches of a point per round.", default=8)
@options.flag("--cold", "Empty the L2 cache before each launch.")
@_seconds_option(
    "--timeout", "Time limit for each start, launch, or round of a point, in seconds.", "timeout_s"
)
@options.quiet_option
@options.json_option("a summary")
def run_command(
    job: Path,
    output: Path,
    ordinal: int,
    within_percent: float,
    seconds: float,
    quiet: bool,
    as_json: bool,
    **limits: Any,
) -> int:
    """Measure the points of JOB, a bundle from pallasc tune plan, on a local GPU.

    JAX and a compiler are not needed. Each point runs in a separate process, so a point that hangs
    or fails does not affect the others. All points of a key (one tuned problem) are launched before
    measuring. The outputs of each point are compared with the job's reference values, if any, and
    then, element by element, with the outputs of the first valid point. The spec's default, if any,
    is launched first. Points with a different result are not measured.

    Points of a key are measured in rounds, once per round, in changing order. After each round,
    points that are known to be slower are dropped. A key is done when its best point is known, when
    no other point is faster by more than --within, or after --seconds. About one key in a hundred
    may get the wrong winner; see docs/tuning.md.

    The results of a round are written before the next round begins. To resume an interrupted run,
    repeat the command; if every key is done, nothing changes. A file with results of a different
    job or GPU, or with different --cold or --repeats, is rejected and not changed.

    Failed points are not launched again. To retry them, for example after a hang caused by the
    machine, write the results to another file.

    Clocks and temperatures are recorded if cuda-bindings includes NVML.

    Examples:
      pallasc tune run job.pallasc -o results.jsonl
      pallasc tune run job.pallasc -o results.jsonl --within 3 --seconds 10
      pallasc tune run job.pallasc -o results.jsonl --timeout 300
      pallasc tune run job.pallasc -o b200.jsonl --device 1 --cold --json > summary.json

    Exit codes:
      0    every key has a winner
      1    all points of a key failed
      2    the results are for another job, GPU, --cold, or --repeats; or JOB is not a job
      4    there is no GPU, or the GPU is no longer usable
      5    the job or the results are damaged
      130  interrupted; the results so far are kept
    """
    from pallasc.cli.launching import device_json, model_of
    from pallasc.runtime.device.devices import look_at_device
    from pallasc.runtime.timing import find_conditions, pci_address
    from pallasc.specs.bundle.bundle import open_bundle
    from pallasc.specs.bundle.signature import read_policy
    from pallasc.tuning.contest import Rules
    from pallasc.tuning.measure import Referee, Run, Setup, read_job
    from pallasc.tuning.results import Start, open_results

    rules = Rules(within_percent / 100, seconds=seconds)
    with open_bundle(job) as bundle:
        bundle.check_policy(read_policy())
        device = look_at_device(ordinal)
        matches = read_job(bundle, device)
        model, conditions = model_of(device), find_conditions(pci_address(device))
        start = Start(
            job=bundle.digest,
            device=device.name,
            model=None if model is None else model.name,
            arch=f"sm_{device.major}{device.minor}",
            driver=conditions.driver(),
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            settings={**asdict(rules), **limits},
        )
        with open_results(output, start) as file:
            for why in (file.results.torn, _unfit_gpu(start, matches)):
                if why:
                    echo(f"warning: {why}", err=True)
            if conditions.missing:
                echo(f"note: clocks and temperatures not recorded: {conditions.missing}", err=True)
            setup = Setup(bundle, ordinal, **limits)
            for match in Run(file, setup, rules, conditions, Referee, _tell_failed).all(matches):
                if not (quiet or as_json):
                    contest = file.results.contests[match.contest_key]
                    echo(one_line(_contest_line(match, contest)), err=True)
    contests = [file.results.contests[match.contest_key] for match in matches]
    if as_json:
        about = {"file": str(output), "job": start.job, "device": device_json(device)}
        known = {"resumed": file.resumed, "changed": file.changed}
        echo(json_text({**about, **known, "keys": list(map(_contest_json, contests))}))
    elif not quiet:
        points = sum(len(match.entries) for match in matches)
        echo(f"{_run_totals(contests, points)} on {device}: {output}")
        if not file.changed:
            echo("All keys were already done; the results are unchanged.")
    return 0 if all(contest.winner for contest in contests) else 1


def _unfit_gpu(start: Start, matches: Sequence[Match]) -> str:
    """Return why `pallasc tune pick` will reject results of this GPU, or ""."""
    targets = sorted({entry.target for match in matches for entry in match.entries.values()})
    if start.model in targets:
        return ""
    here = "a model unknown to pallasc" if start.model is None else f"the model {start.model}"
    return (
        f"{start.device} is {here}, but the points are compiled for {', '.join(targets)}: pallasc "
        "tune pick will reject the results. Add this GPU to 'models' and 'targets' of the specs, "
        "and plan again."
    )


def _tell_failed(name: str, why: str) -> None:
    echo(f"failed  {one_line(name)}: {one_line(why)}", err=True)


def _contest_line(match: Match, contest: Contest) -> str:
    """Return the line of a finished key: the winner, its time, and why measuring ended."""
    rounds = count(len(contest.rounds), "round")
    failed = f", {len(contest.failed)} failed" if contest.failed else ""
    of = f"{count(len(match.entries), 'point')}{failed}, {rounds}"
    if contest.winner is None:
        return f"{match.text}: {contest.done} ({of})"
    point = contest.points[contest.winner]
    others = {*match.by, *match.at}
    use = use_text({name: own for name, own in point.params.items() if name not in others})
    return f"{match.text}: {use}, {point.median_us:,.2f} µs, {contest.done} ({of})"


def _run_totals(contests: Sequence[Contest], points: int) -> str:
    failed = sum(len(contest.failed) for contest in contests)
    without = sum(contest.winner is None for contest in contests)
    parts = [count(len(contests), "key"), count(points, "point")]
    parts += [f"{failed} failed"] if failed else []
    parts += [f"{count(without, 'key')} without a valid point"] if without else []
    return ", ".join(parts)


def _contest_json(contest: Contest) -> dict[str, object]:
    winner = None if contest.winner is None else contest.points[contest.winner]
    return {
        **fields(contest, "kernel", "key", "at", "winner", "spent_s"),
        "why": contest.done,
        "us": None if winner is None else winner.median_us,
        "rounds": len(contest.rounds),
        "points": [
            {
                **fields(point, "id", "params", "artifact"),
                "us": point.median_us if point.times_us else None,
                "rounds": len(point.times_us),
                "failed": point.failed or None,
                "dropped": point.dropped or None,
            }
            for point in contest.points.values()
        ],
    }


# ---- pick

WITHIN_PERCENT = 3.0
_MARKS = {"added": "+", "changed": "~", "measured": "=", "dropped": "-"}
_MOST_NAMED = 5
_HEAD = ("", "GPU", "KEY", "BEFORE", "AFTER", "µs", "SLOWER")


@command.command("pick", cls=Command, short_help="Write the table from measurements.")
@click.argument("files", nargs=-1, required=True, type=options.PATH, metavar="RESULTS...")
@options.option(
    "--specs",
    "SPECS",
    "Specs from which the job was planned; repeatable.",
    type=click.Path(),
    multiple=True,
    required=True,
)
@_percent_option(
    "--within",
    "Allowed slowdown of a variant relative to the best one for its key.",
    "within",
    WITHIN_PERCENT,
    most=1000,
)
@options.count_option(
    "--at-most", "Maximum number of configurations per kernel, even if some keys get slower."
)
@options.flag("--dry-run", "Show the changes without writing them.")
@given.reading_options
@options.json_option("the picked variants and the changes")
def pick_command(
    files: tuple[Path, ...],
    within: float,
    at_most: int | None,
    dry_run: bool,
    as_json: bool,
    work: Work,
) -> int:
    """Write the tables of tuned kernels, from RESULTS of pallasc tune run.

    A configuration is a set of values of the tuned parameters. Pick selects few configurations:
    for each key, at least one takes at most --within longer than the key's best. A configuration
    counts only if the measurements prove that it is within this limit. Each bucket of keys gets
    one row; a key for which that row is too slow gets a separate row. Rows of other GPUs, and of
    keys and buckets without measurements, are kept. The order of RESULTS does not change the table.

    Pick rejects truncated results, results from two GPUs or from a GPU for which the points are not
    compiled, and results of one key in two files. Each row records the digest of the measured
    artifact; a build warns if the row's variant compiles to a different artifact.

    Examples:
      pallasc tune pick results.jsonl --specs kernels.yaml
      pallasc tune pick results.jsonl --specs kernels.yaml --dry-run
      pallasc tune pick one.jsonl two.jsonl --specs specs/ --within 5 --at-most 4

    If no key has complete results, nothing is written, and the exit code is 1.
    """
    from pallasc.tuning.pick import pick, with_model
    from pallasc.tuning.results import read_results

    results = [read_results(file) for file in files]
    tuned = [spec for spec in work.reader().specs(work.specs) if spec.tune is not None]
    if not tuned:
        raise SpecError(
            f"no kernel of {', '.join(work.specs)} has 'tune'.",
            hint="Name tuned parameters in the spec, then plan and measure.",
        )
    models = [model for spec in tuned for model in spec.models.values()]
    results = [with_model(file, models) for file in results]
    kernels = _read_kernels(tuned, results[0].start.model)
    decided = pick(results, kernels, within, most=at_most)
    written = [] if dry_run else _write(decided, kernels)
    if as_json:
        picked = [{"table": kernels[own.name].shown, **_picked_json(own)} for own in decided]
        echo(json_text({"kernels": picked, "written": [str(path) for path in written]}))
    for own in decided:
        tune = kernels[own.name].tune
        if not as_json:
            echo(_pick_text(own, tune))
        for line in _remarks(own, tune, within):
            echo(line, err=True)
    for path, shown in {own.table: own.shown for own in kernels.values()}.items():
        stayed = "unchanged" if path.exists() else "not written"
        echo(f"{shown} is {'written' if path in written else stayed}", err=True)
    return 0 if any(own.served for own in decided) else 1


def _read_kernels(specs: Sequence[Spec], model: str | None) -> dict[str, TunedKernel]:
    """Return the tuned kernels of specs for a model, by name.

    Raises:
        SpecError: a spec or a table is invalid, or two specs tune a kernel differently.
    """
    from pallasc.specs.loading.matrix import expand
    from pallasc.specs.loading.tuned_table import table_shown
    from pallasc.tuning.pick import TunedKernel

    declared = {(spec.location, spec.name): spec for spec in specs}
    kernels: dict[str, TunedKernel] = {}
    for variant in expand(list(declared.values()), all_points=True):
        name, tuning, spec = variant.name, variant.tuning, declared[variant.location, variant.name]
        if variant.target.name != model or tuning is None or spec.tune is None:
            continue
        path, shown = Path(spec.base_dir, spec.tune.table), table_shown(spec, spec.tune)
        kernel = kernels.setdefault(name, TunedKernel(spec.tune, set(), tuning.table, path, shown))
        if kernel.tune != spec.tune:
            raise SpecError(
                f"two specs tune {name} on {model} in different ways.",
                location=spec.where("tune"),
                hint="Write the same 'tune' in both.",
            )
        kernel.ids.add(variant.id)
    return kernels


def _write(decided: Sequence[Picked], kernels: Mapping[str, TunedKernel]) -> list[Path]:
    """Write the tables that have changed, and return their paths."""
    from pallasc.specs.loading.tuned_table import Table, read_table, table_text
    from pallasc.specs.user_files import replace_file

    written: dict[Path, None] = {}
    for own in decided:
        kernel = kernels[own.name]
        path, tables = kernel.table, read_table(kernel.table, kernel.shown)
        rows = tuple(change.row for change in own.changes if change.kind != "dropped")
        data = table_text({**tables, own.name: Table(kernel.tune.by, rows)}).encode()
        if own.served and not (path.exists() and path.read_bytes() == data):
            replace_file(path, data)
            written[path] = None
    return [*written]


def _pick_text(picked: Picked, tune: Tune) -> str:
    """Return the picked configurations of a kernel, and a table of its changed rows."""
    name = f"{picked.name} on {picked.gpu}"
    if not picked.served:
        return f"{name}: no key has complete results; its rows are unchanged"
    mean, worst = picked.loss_percent()
    lines = [
        f"{name}: uses {len(picked.uses)} of {count(len(picked.configurations), 'configuration')} "
        f"for {count(len(picked.served), 'key')}; slower than the best by {mean:.2f} % "
        f"(geometric mean), at most {worst:.2f} %"
    ]
    losses = {canonical_text(list(own.key)): own.option.loss for own in picked.served}
    rows = [
        _change_cells(change, tune, losses.get(canonical_text(list(change.row.key))))
        for change in picked.changes
        if change.kind != "same"
    ]
    if rows:
        lines.append(table(_HEAD, rows, right=("µs", "SLOWER")))
    if same := sum(change.kind == "same" for change in picked.changes):
        lines.append(f"{count(same, 'row')} unchanged")
    return "\n".join(lines)


def _change_cells(change: RowChange, tune: Tune, loss: float | None) -> list[str]:
    row, before = change.row, change.before
    names = _MARKS[change.kind], row.gpu, key_text(tune.by, row.key)
    old = "" if before is None else use_text(before.use)
    if change.kind == "dropped":
        return [*names, old, "", "", ""]
    us = "" if row.measured is None else f"{row.measured.us:.2f}"
    slower = "" if loss is None else f"{100 * math.expm1(loss):.2f} %"
    return [*names, old, use_text(row.use), us, slower]


def _remarks(picked: Picked, tune: Tune, within: float) -> Iterator[str]:
    """Yield remarks that the rows do not show, one line each."""
    name = picked.name
    found = {
        f"not known to be within {within:g} % of the best": picked.beyond,
        "not completely measured (continue with pallasc tune run)": picked.unfinished,
        "no picked configuration has valid times, so no row is written": picked.without,
    }
    for what, keys in found.items():
        if keys:
            yield f"{name}: {what}: {_keys(tune, keys)}"
    if picked.unknown:
        points = count(picked.unknown, "point")
        yield f"{name}: ignored {points} that are no longer in the spec"
    if picked.default is not None and tune.default is None:
        yield (
            f"{name}: the spec has no default; the best single configuration for all keys is "
            f"{use_text(picked.default)}"
        )


def _picked_json(picked: Picked) -> dict[str, object]:
    mean, worst = picked.loss_percent()
    return {
        "kernel": picked.name,
        "gpu": picked.gpu,
        "keys": len(picked.served),
        "configurations": {"measured": len(picked.configurations), "used": len(picked.uses)},
        "loss_percent": {"mean": round(mean, 3), "worst": round(worst, 3)},
        **fields(picked, "uses", "default", "beyond", "unfinished", "without"),
        "rows": [
            {
                "change": change.kind,
                **fields(change.row, "gpu", "key"),
                "before": _used_json(change.before),
                "after": None if change.kind == "dropped" else _used_json(change.row),
            }
            for change in picked.changes
        ],
    }


def _used_json(row: Row | None) -> dict[str, object] | None:
    if row is None:
        return None
    us = None if row.measured is None else row.measured.us
    return {"use": row.use, "artifact": row.artifact, "us": us}


def _keys(tune: Tune, keys: Sequence[Key]) -> str:
    return "; ".join(listed([key_text(tune.by, key) or "all calls" for key in keys], _MOST_NAMED))


# ---- show


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
    from pallasc.specs.loading.tuned_table import TunedPoints, table_shown

    known = work.select().specs
    tables = TunedPoints(known)
    tuned = {
        (spec.name, table_shown(spec, spec.tune)): (spec.name, tables.table(spec, spec.tune))
        for spec in known
        if spec.tune is not None
    }
    rows = [_selectable(row, name, own.by) for name, own in tuned.values() for row in own.rows]
    if rows and expression is not None:
        rows = select(rows, expression, noun="rows")
    if as_json:
        echo(json_text({"rows": list(map(_row_json, rows))}))
    elif rows:
        echo(table(_HEADS, list(map(_row_cells, rows))))
    else:
        echo("The tables of these specs have no rows.", err=True)


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
