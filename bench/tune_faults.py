"""Faults and kills of `pallasc tune run`, on the stand-in driver.

Each of `--fault-runs` runs has a job of a few points with invented times, each 5 % slower than the
next, with noise. At a random launch, some points hang, exit, fail with an illegal address, or give
wrong results. The run itself is killed by SIGKILL or SIGTERM at random moments, with or without a
truncated line, and started again. A result may be wrong only in an element that no reference value
covers; in that case, the first point with a result gives the right one.

Goals: no result is lost, and no wrong point wins. A result is lost if a line that was on disk is
gone, a round is missing or recorded twice, or a point without a fault has failed. A winner is wrong
if another point that did not fail is faster.
"""

import argparse
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness import ROOT, Figure, say

sys.path.insert(0, str(ROOT / "tests" / "runtime"))

import tuned_jobs

from pallasc.tuning.results import read_results

_POINTS = 5
_TIMEOUT_S = 10.0
_MOST_KILLS = 4
_FAULTY = 0.3
_FAULTS = ("hang", "end", "illegal address", "wrong result", "wrong element")
_NO_REFERENCE = 7
"""Elements from this one on have no reference value, except the last."""


class Plan(NamedTuple):
    """The events of a run: behavior of kernels, faults by point, points by speed, its ends."""

    kernels: Mapping[str, Mapping[str, Any]]
    faults: Mapping[str, str]
    order: Sequence[str]
    ends: Sequence[str]


def figures(options: argparse.Namespace, place: Path) -> list[Figure]:
    """Run jobs with faults and kills."""
    wrong, kills, faults = 0, 0, Counter[str]()
    job = tuned_jobs.write_job(place / "job.pallasc", points=_POINTS)
    for number in range(options.fault_runs):
        plan, folder = draw(number), place / f"run{number}"
        folder.mkdir()
        for text in play(job, folder, plan):
            wrong += 1
            say(f"run {number}: {text}")
        kills, faults = kills + len(plan.ends), faults + Counter(plan.faults.values())
        say(f"run {number + 1} of {options.fault_runs}")
    return [
        Figure("tune run: lost results and wrong winners", wrong, goal=0),
        Figure("tune run: runs", options.fault_runs),
        Figure("tune run: kills, some of them after the end", kills),
        *(Figure(f"tune run: points with {fault}", faults[fault]) for fault in _FAULTS),
    ]


def draw(number: int) -> Plan:
    """Draw the plan of a run."""
    source = random.Random(number)
    order = source.sample(range(_POINTS), _POINTS)
    kernels: dict[str, dict[str, Any]] = {}
    faults: dict[str, str] = {}
    for place, tile in enumerate(order):
        noise = source.choice([0.0, 0.01, 0.03])
        own = kernels[f"v{tile}"] = {"us": 10 * 1.05**place, "noise": noise, "seed": number}
        if source.random() < _FAULTY:
            fault = faults[tuned_jobs.point_id(1, tile)] = source.choice(_FAULTS)
            own |= fault_of(fault, source.randint(1, 10), tile)
    standard = next((kernels[f"v{n}"] for n in range(_POINTS) if is_standard(kernels[f"v{n}"])), {})
    if "wrong_at" in standard:
        for own in kernels.values():
            own.pop("wrong_at", None)
        faults = {name: fault for name, fault in faults.items() if fault != "wrong element"}
    ends = [draw_end(source) for _ in range(source.randint(0, _MOST_KILLS))]
    return Plan(kernels, faults, [tuned_jobs.point_id(1, tile) for tile in order], ends)


def fault_of(fault: str, at: int, tile: int) -> dict[str, Any]:
    """Return how a kernel fails: at one of its first launches, or in its result."""
    return {
        "hang": {"hang_at": at},
        "end": {"end_at": at},
        "illegal address": {"fail_at": at, "code": 700},
        "wrong result": {"wrong": True},
        "wrong element": {"wrong_at": _NO_REFERENCE + tile},
    }[fault]


def is_standard(kernel: Mapping[str, Any]) -> bool:
    """Return True if the first launch of a kernel agrees with the reference values."""
    first = [kernel.get(f"{how}_at") for how in ("hang", "end", "fail")]
    return "wrong" not in kernel and 1 not in first


def draw_end(source: random.Random) -> str:
    """Draw a signal, its time, and how much of a line is truncated."""
    if source.random() < 0.2:
        return f"SIGTERM:{source.randint(2, 30)}"
    torn = f":{source.randint(1, 60)}" if source.random() < 0.5 else ""
    return f"SIGKILL:{source.randint(2, 30)}{torn}"


def play(job: Path, folder: Path, plan: Plan) -> Iterator[str]:
    """Run a job with a plan, to its end; yield the errors."""
    output, kept = folder / "results.jsonl", b""
    environment = tuned_jobs.environment(folder, plan.kernels)
    command = tuned_jobs.command(job, output, "--timeout", str(_TIMEOUT_S))
    for end in (*plan.ends, ""):
        own = {**environment, "MADE_UP_END": end}
        done = subprocess.run(command, env=own, capture_output=True, text=True)
        if done.returncode not in {0, 1, *((-signal.SIGKILL, 130) if end else ())}:
            yield f"exit status {done.returncode}: {done.stderr[-500:]}"
            return
        now = output.read_bytes()
        if not now.startswith(kept):
            yield "lines that were on disk are gone"
        kept = now[: now.rfind(b"\n") + 1]
    # Reading rejects rounds that are missing or there twice, and lines that do not match.
    (contest,) = read_results(output).contests.values()
    failed = {name: point.failed for name, point in contest.points.items() if point.failed}
    fastest = next((name for name in plan.order if name not in failed), None)
    if contest.winner != fastest:
        yield f"{contest.winner} won, and {fastest} is the fastest"
    yield from (f"{name} has no fault: {failed[name]}" for name in failed.keys() - plan.faults)
    for name, fault in plan.faults.items():
        if fault.startswith("wrong") and name not in failed:
            yield f"{name} has wrong results, and is valid"
