"""Faults of `pallasc tune run`, on the stand-in driver: what is lost, and who wins.

Goals: 0 lost results and 0 wrong winners, in as many runs as `--fault-runs` says. Each run has a
job of a few points with made-up times, each 5 % slower than the next, with noise. Some hang, end,
fail with an illegal address, or give wrong results, at a launch drawn by chance; and the run itself
is killed by SIGKILL or SIGTERM at some moments, with or without a torn line, and started again. A
result may also be wrong in one element that no reference value covers; then at least two points
give the right one.

A result is lost where a line that was on the disk is not there later, a round is missing or twice,
or a point without a fault is told to have failed. A winner is wrong where another point that did
not fail is faster.

Kernels and moments come from `tests/runtime/` (`made_up/`, `tuned_jobs.py`).
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import Figure

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "runtime"))

import tuned_jobs

from pallasc.tuning.results import read_results

RUNS = 20
_POINTS = 5
TIMEOUT_S = 10.0
"""A process that needs longer hangs; a busy machine must not take so long to start one."""
_MOST_KILLS = 4
_FAULTY = 0.3
_FAULTS = ("hang", "end", "illegal address", "wrong result", "wrong element")
_BESIDE_REFERENCE = 7
"""Elements from this one on have no reference value, the last excepted."""


@dataclass(frozen=True)
class Plan:
    """What happens in a run.

    Attributes:
        kernels: what each kernel does.
        faults: the fault of each point that has one, by id.
        order: all points, the fastest first.
        ends: when the run is ended, as of `made_up`.
    """

    kernels: Mapping[str, Mapping[str, Any]]
    faults: Mapping[str, str]
    order: Sequence[str]
    ends: Sequence[str]


@dataclass
class Outcome:
    """What went wrong in a run."""

    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add how many runs there are."""
    parser.add_argument("--fault-runs", type=int, default=RUNS, help="runs with faults and kills")
    parser.add_argument(
        "--fault-timeout", type=float, default=TIMEOUT_S, help="seconds after which a point hangs"
    )


def figures(options: argparse.Namespace) -> list[Figure]:
    """Run jobs with faults and kills; what was lost is told on the standard error output."""
    lost = wrong = kills = 0
    faults: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="pallasc-tune-") as name:
        job = tuned_jobs.write_job(Path(name) / "job.pallasc", points=_POINTS)
        for number in range(options.fault_runs):
            plan = drawn(number)
            folder = Path(name) / str(number)
            folder.mkdir()
            outcome = play(job, folder, plan, options.fault_timeout)
            for text in (*outcome.lost, *outcome.wrong):
                print(f"run {number}: {text}", file=sys.stderr)
            lost, wrong = lost + len(outcome.lost), wrong + len(outcome.wrong)
            kills, faults = kills + len(plan.ends), faults + Counter(plan.faults.values())
            print(f"run {number + 1} of {options.fault_runs}", file=sys.stderr)
    return [
        Figure("tune run: lost results", lost, goal=0),
        Figure("tune run: wrong winners", wrong, goal=0),
        Figure("tune run: runs", options.fault_runs),
        Figure("tune run: kills drawn, of which some come after the end", kills),
        *(Figure(f"tune run: points with {what}", faults[what]) for what in _FAULTS),
    ]


def drawn(number: int) -> Plan:
    """Return the plan of a run."""
    source = random.Random(number)
    order = source.sample(range(_POINTS), _POINTS)
    kernels: dict[str, dict[str, Any]] = {}
    faults: dict[str, str] = {}
    for place, tile in enumerate(order):
        noise = source.choice([0.0, 0.01, 0.03])
        own = {"us": 10 * 1.05**place, "noise": noise, "seed": number}
        if source.random() < _FAULTY:
            fault = faults[tuned_jobs.point_id(1, tile)] = source.choice(_FAULTS)
            own |= _fault(fault, source, tile)
        kernels[f"v{tile}"] = own
    if sum(map(_votes_right, kernels.values())) < 2:
        for own in kernels.values():
            own.pop("wrong_at", None)
        faults = {name: fault for name, fault in faults.items() if fault != "wrong element"}
    ends = [_end(source) for _ in range(source.randint(0, _MOST_KILLS))]
    return Plan(kernels, faults, [tuned_jobs.point_id(1, tile) for tile in order], ends)


def _votes_right(kernel: Mapping[str, Any]) -> bool:
    """Tell whether a kernel gives the right result at its first launch."""
    is_wrong = "wrong" in kernel or "wrong_at" in kernel
    return not is_wrong and 1 not in (kernel.get(f"{how}_at") for how in ("hang", "end", "fail"))


def _fault(fault: str, source: random.Random, tile: int) -> dict[str, Any]:
    """Return how a kernel fails: at its first launches, or in one of its first rounds."""
    at = source.randint(1, 10)
    return {
        "hang": {"hang_at": at},
        "end": {"end_at": at},
        "illegal address": {"fail_at": at, "code": 700},
        "wrong result": {"wrong": True},
        "wrong element": {"wrong_at": _BESIDE_REFERENCE + tile},
    }[fault]


def _end(source: random.Random) -> str:
    if source.random() < 0.2:
        return f"SIGTERM:{source.randint(2, 30)}"
    torn = f":{source.randint(1, 60)}" if source.random() < 0.5 else ""
    return f"SIGKILL:{source.randint(2, 30)}{torn}"


def play(job: Path, folder: Path, plan: Plan, timeout_s: float) -> Outcome:
    """Run a job with a plan, to its end; return what went wrong."""
    output, outcome = folder / "results.jsonl", Outcome()
    environment = tuned_jobs.environment(folder, plan.kernels)
    kept = b""
    for end in (*plan.ends, ""):
        options = ("--timeout", str(timeout_s))
        done = subprocess.run(
            tuned_jobs.command(job, output, *options),
            env={**environment, "MADE_UP_END": end},
            capture_output=True,
            text=True,
        )
        allowed = {0, 1, *((-signal.SIGKILL, 130) if end else ())}
        if done.returncode not in allowed:
            outcome.lost.append(f"exit status {done.returncode}: {done.stderr[-500:]}")
            return outcome
        now = output.read_bytes()
        if not now.startswith(kept):
            outcome.lost.append("lines that were on the disk are gone")
        kept = now[: now.rfind(b"\n") + 1]
    _judge(output, plan, outcome)
    return outcome


def _judge(output: Path, plan: Plan, outcome: Outcome) -> None:
    # Reading refuses rounds that are missing or twice, and lines that do not match their check.
    (contest,) = read_results(output).contests.values()
    failed = {name: point.failed for name, point in contest.points.items() if point.failed}
    fastest = next((name for name in plan.order if name not in failed), None)
    if contest.winner != fastest:
        outcome.wrong.append(f"{contest.winner} won, and {fastest} is the fastest")
    for name, why in failed.items():
        if name not in plan.faults:
            outcome.lost.append(f"{name} has no fault: {why}")
    for name, fault in plan.faults.items():
        if fault.startswith("wrong") and name not in failed:
            outcome.wrong.append(f"{name} has wrong results, and is valid")
