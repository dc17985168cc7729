"""`pallasc tune run`: measure the points of a job on the GPU of this machine."""

from __future__ import annotations

from pathlib import Path

import click

from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import WholeNumber, count_option, json_option, quiet_option
from pallasc.cli.terminal.output import echo

_POSITIVE = click.FloatRange(min=0, min_open=True)


@click.command("run", cls=Command, short_help="Measure the points of a job on the GPU.")
@click.argument("job", type=click.Path(path_type=Path), metavar="JOB")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    required=True,
    help="The file of results; one of an earlier run of this job on this GPU is continued.",
)
@count_option("--device", "The GPU, by its number.", parameter="ordinal", least=0, default=0)
@click.option(
    "--within",
    "within_percent",
    type=click.FloatRange(min=0, max=100),
    default=1.0,
    show_default=True,
    metavar="PERCENT",
    help="Take points for equal where the best is slower by no more than this.",
)
@count_option("--rounds", "Compare two points in this many rounds at most.", default=200)
@click.option(
    "--seconds",
    type=_POSITIVE,
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Measure the points of a key for this long at most.",
)
@click.option(
    "--together",
    type=WholeNumber(2),
    default=8,
    show_default=True,
    metavar="N",
    help="Measure this many points of a key in turn; fewer live at a time if memory runs out.",
)
@count_option("--repeats", "Measure this many launches of a point in a round.", default=8)
@click.option("--cold", is_flag=True, help="Empty the L2 cache before each launch.")
@click.option(
    "--timeout",
    "timeout_s",
    type=_POSITIVE,
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Give up a point that needs longer to start, to launch, or for a round.",
)
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    metavar="N",
    help="Choose the order of points in a round, and inputs where the job has no reference.",
)
@click.option(
    "--retry-failed",
    is_flag=True,
    help="Launch points again that failed in an earlier run; what they failed with is kept.",
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
    repeats: int,
    cold: bool,
    timeout_s: float,
    seed: int,
    retry_failed: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Measure the points of JOB, a bundle of pallasc tune plan, on the GPU of this machine.

    Neither JAX nor a compiler is needed. Each point runs in a process of its own: one that hangs or
    fails is lost, and nothing else. All points of a key are launched before the first is measured.
    Their outputs are compared with the reference values of the job, where it has some, and with
    each other in all elements: what most points of a key give is taken for right, and a point that
    differs is not measured. Without a most common result the key has no winner.

    The points of a key are measured in rounds, each once a round, in an order that changes. After
    each round, what is known to be slower is dropped; a key is done when its best point is known,
    or is slower than no other by more than --within, or the budget is spent. One key in a hundred
    may have a worse winner than that; see docs/tuning.md.

    Every line of the results is on the disk before the next round begins. A run that was stopped or
    cut goes on where it was when the same command is given again, and where every key is done it
    changes nothing. Results of another job or another GPU, or with other --cold, --repeats or
    --seed, are refused and stay as they are. A point that failed stays lost. --retry-failed
    launches all of these again, as after a hang that was the machine's fault; their keys are open
    again, and have --seconds anew. Conditions such as clock and temperature are taken from NVML,
    where cuda-bindings has it.

    Examples:
      pallasc tune run job.pallasc -o results.jsonl
      pallasc tune run job.pallasc -o results.jsonl --within 3 --seconds 10
      pallasc tune run job.pallasc -o results.jsonl --retry-failed --timeout 300
      pallasc tune run job.pallasc -o b200.jsonl --device 1 --cold --json > summary.json

    Exit codes:
      0    every key has a winner
      1    the points of a key all failed, or nothing tells which of them are right
      2    the results are of another job, GPU, --cold, --repeats or --seed, or the job is not one
      4    no GPU, or it cannot be used any more
      5    the job or the results are damaged
      130  interrupted; the results so far are kept

    --json prints one object:
      schema   1
      file     the results
      device   ordinal, name, arch, driver
      job      digest of the job's content
      resumed  whether the file had results before
      changed  whether anything was added to it
      keys     a list; of each: kernel, key, at (parameters that are not in the key), winner (an id,
               or null), why, us (of the winner, median), rounds, spent_s, points (of each: id,
               params, artifact, us or null, rounds, failed or null, failed_before (why, each time
               before it was tried again), dropped or null)
    """
    from pallasc.cli.tune.measuring import Wishes, measure
    from pallasc.cli.tune.run_text import exit_code, summary_json, summary_text
    from pallasc.runtime.tuning.decisions import Rules

    rules = Rules(within_percent / 100, rounds, seconds, together, seed)
    wishes = Wishes(
        ordinal,
        rules,
        repeats,
        timeout_s,
        cold=cold,
        quiet=quiet or as_json,
        retry_failed=retry_failed,
    )
    report = measure(job, output, wishes)
    if as_json:
        from pallasc.cli.terminal.output import json_text

        echo(json_text(summary_json(report)))
    elif not quiet:
        echo(summary_text(report))
    return exit_code(report)
