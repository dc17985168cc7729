"""`pallasc tune run`: measure the points of a job on the GPU of this machine."""

from __future__ import annotations

import datetime
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import F, count_option, json_option, only_bundles, quiet_option
from pallasc.cli.output.text import count, echo, fields, json_text
from pallasc.specs.spelling import one_line
from pallasc.specs.tuning import use_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pallasc.tuning.measure import Match
    from pallasc.tuning.results import Contest, Start


def _seconds_option(name: str, text: str, parameter: str) -> Callable[[F], F]:
    return click.option(
        name,
        parameter,
        type=click.FloatRange(min=0, min_open=True),
        default=60.0,
        show_default=True,
        metavar="SECONDS",
        help=text,
    )


@click.command("run", cls=Command, short_help="Measure the points of a job on the GPU.")
@click.argument(
    "job",
    type=click.Path(path_type=Path),
    metavar="JOB",
    callback=only_bundles("job", "pallasc tune plan SPECS -o job.pallasc"),
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    required=True,
    help="Results file; if it has results of this job and GPU, the run is resumed.",
)
@count_option("--device", "Index of the GPU.", parameter="ordinal", least=0, default=0)
@click.option(
    "--within",
    "within_percent",
    type=click.FloatRange(min=0, max=100),
    default=1.0,
    show_default=True,
    metavar="PERCENT",
    help="Stop when no other point can be faster than the best by more than this.",
)
@count_option(
    "--rounds", "Maximum rounds to compare two points; then the median decides.", default=200
)
@_seconds_option("--seconds", "Maximum time to measure one key, in seconds.", "seconds")
@count_option(
    "--together",
    "Points of a key to run at once, one process each; fewer if memory runs out.",
    least=2,
    default=8,
)
@count_option("--repeats", "Number of measured launches of a point per round.", default=8)
@click.option("--cold", is_flag=True, help="Empty the L2 cache before each launch.")
@_seconds_option(
    "--timeout",
    "Time limit for each start, launch, or round of a point, in seconds.",
    "timeout_s",
)
@quiet_option
@json_option("a summary")
def command(
    job: Path,
    output: Path,
    ordinal: int,
    within_percent: float,
    rounds: int,
    seconds: float,
    together: int,
    quiet: bool,
    as_json: bool,
    **limits: Any,
) -> int:
    """Measure the points of JOB, a bundle from pallasc tune plan, on a local GPU.

    JAX and a compiler are not needed. Each point runs in a separate process, so a point that hangs
    or fails does not affect the others. All points of a key (one tuned problem) are launched before
    measuring. Outputs are compared with the job's reference values, if any. All of their elements
    are also compared with the first valid output; the spec's default, if any, is launched first.
    Points with a different result are not measured.

    Points of a key are measured in rounds, once per round, in changing order. After each round,
    points that are known to be slower are dropped. A key is done when its best point is known, when
    no other point is faster by more than --within, or when --rounds or --seconds run out. About one
    key in a hundred may get the wrong winner; see docs/tuning.md.

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
    from pallasc.cli.launching import device_json, make_inputs, model_of
    from pallasc.runtime.device.devices import look_at_device
    from pallasc.runtime.timing import find_conditions, pci_address
    from pallasc.specs.bundle.bundle import open_bundle
    from pallasc.specs.bundle.signature import read_policy
    from pallasc.tuning.contest import Rules
    from pallasc.tuning.measure import Referee, Run, Setup, read_job
    from pallasc.tuning.results import Start, open_results

    rules = Rules(within_percent / 100, rounds, seconds, together)
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
            Run(
                file,
                Setup(bundle, ordinal, **limits),
                rules,
                conditions,
                lambda: Referee(bundle, make_inputs),
                _Progress(quiet=quiet or as_json),
            ).all(matches)
    contests = [file.results.contests[match.contest_key] for match in matches]
    if as_json:
        about = {"file": str(output), "job": start.job, "device": device_json(device)}
        known = {"resumed": file.resumed, "changed": file.changed}
        echo(json_text({**about, **known, "keys": list(map(_contest_json, contests))}))
    elif not quiet:
        points = sum(len(match.entries) for match in matches)
        echo(f"{_totals(contests, points)} on {device}: {output}")
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


class _Progress(NamedTuple):
    """Prints a line for each failed point and, unless quiet, for each finished key."""

    quiet: bool

    def failed(self, name: str, why: str) -> None:
        echo(f"failed  {one_line(name)}: {one_line(why)}", err=True)

    def done(self, match: Match, contest: Contest) -> None:
        if not self.quiet:
            echo(one_line(_contest_line(match, contest)), err=True)


def _contest_line(match: Match, contest: Contest) -> str:
    """Return the line of a finished contest: winner, its time, and the reason."""
    rounds = count(len(contest.rounds), "round")
    failed = f", {len(contest.failed)} failed" if contest.failed else ""
    of = f"{count(len(match.entries), 'point')}{failed}, {rounds}"
    if contest.winner is None:
        return f"{match.text}: {contest.done} ({of})"
    point = contest.points[contest.winner]
    tuning = match.entries[point.id].tuning
    use = use_text({name: point.params[name] for name in tuning.over} if tuning else {})
    return f"{match.text}: {use or point.id}, {point.median_us:,.2f} µs, {contest.done} ({of})"


def _totals(contests: Sequence[Contest], points: int) -> str:
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
