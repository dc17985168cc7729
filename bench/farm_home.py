"""Builds on this machine, simulated and real: what `farm_model` is checked against.

A round builds the library's mix four times, each time into an empty store: with one worker, from
which the costs are taken, then with as many workers as are compared. From the first build come

* when workers are started, what the client has to prepare meanwhile, what the start of a worker
  takes, and what the end of a build takes;
* for each variant, the time from one result to the next: a worker also notes what a compilation
  has read and writes that down, after the seconds that it reports;
* what the first variant of a kernel in a process takes beyond later ones of the kernel, since its
  modules are imported and JAX traces its functions: every worker pays that for itself;
* what part of that time was not the processor's (the disk), in which others can use it;
* what a result costs the client, whose process needs the same cores as the workers.

Other programs on the machine slow a build down. What part of the machine they had is noted for each
build, and a round in which that is more than `--foreign` is made once more.
"""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farm_costs import Costs, Home, Kernel
from farm_events import CORES, Farm
from library_mix import write_mix

TRACE = Path(__file__).with_name("farm_trace.py")
TRIES = 2


@dataclass(frozen=True, slots=True)
class Compared:
    """A real build and its simulation: seconds of both, and what part others had of the machine."""

    workers: int
    real_s: float
    simulated_s: float
    foreign: float


def compare(
    count: int, workers: Sequence[int], rounds: int, most_foreign: float
) -> Iterator[list[Compared]]:
    """Yield the comparisons of each round.

    Args:
        count: how many variants are built.
        workers: with how many workers, one build for each number.
        rounds: how often.
        most_foreign: what part of the machine others may have.
    """
    with tempfile.TemporaryDirectory(prefix="pallasc-bench-") as folder:
        spec = write_mix(Path(folder), count)
        for number in range(1, rounds + 1):
            for _ in range(TRIES):
                found = _round(spec, Path(folder), workers)
                for each in found:
                    print(
                        f"round {number}, {each.workers} workers: {each.real_s:.2f} s, simulated "
                        f"{each.simulated_s:.2f} s; others had {each.foreign:.0%} of the machine",
                        file=sys.stderr,
                    )
                if max(each.foreign for each in found) <= most_foreign:
                    break
            yield found


def _round(spec: Path, place: Path, workers: Sequence[int]) -> list[Compared]:
    told, seconds, foreign = _traced(spec, place, 1)
    kernels, costs, home = measured(told, seconds)
    found = []
    for number in workers:
        _, real_s, also_foreign = _traced(spec, place, number)
        simulated_s = Farm(kernels, costs, number, cores=CORES, home=home).run().seconds
        found.append(Compared(number, real_s, simulated_s, max(foreign, also_foreign)))
    return found


def after_s(count: int = 30) -> float:
    """Return what a variant takes a worker after it was compiled, the median of `count` ones."""
    with tempfile.TemporaryDirectory(prefix="pallasc-bench-") as folder:
        told, _, _ = _traced(write_mix(Path(folder), count), Path(folder), 1)
        return _after_s(told["results"], _spans_s(told["results"]))


def _spans_s(rows: Sequence[Any]) -> list[float]:
    """Return the seconds from one result to the next."""
    at_s = [row[3] for row in rows]
    return [after - before for before, after in itertools.pairwise(at_s)]


def _after_s(rows: Sequence[Any], spans_s: Sequence[float]) -> float:
    return statistics.median(span_s - row[2] for span_s, row in zip(spans_s, rows[1:], strict=True))


def measured(told: dict[str, Any], seconds: float) -> tuple[list[Kernel], Costs, Home]:
    """Return variants, costs and what is a build's own, from a build with one worker."""
    rows = told["results"]
    spans_s = _spans_s(rows)
    spans_s.insert(0, rows[0][2] + _after_s(rows, spans_s))  # before it, the worker starts
    kernels = _kernels([row[0] for row in rows], spans_s)
    start_s = rows[0][3] - spans_s[0] - told["warm_s"]
    busy_s = told["workers_s"] - start_s
    home = Home(
        warm_s=told["warm_s"],
        prepare_s=told["first_s"] - told["warm_s"],
        start_s=start_s,
        end_s=seconds - rows[-1][3],
        waiting=max(0.0, 1 - busy_s / sum(spans_s)),
    )
    publish_s = (told["own_s"] - told["own_before_s"]) / len(rows)
    costs = Costs(
        kernels=kernels, start_s=start_s, after_s=0.0, look_up_s=0.0, fetch_s=0.0,
        submit_s=0.0, publish_s=publish_s, scheduler_s=0.0, scheduler_bytes=0.0,
    )  # fmt: skip
    return kernels, costs, home


def _kernels(names: Sequence[str], spans_s: Sequence[float]) -> list[Kernel]:
    """Return variants; the first of each kernel has what it took beyond the later ones apart."""
    by_name: dict[str, list[float]] = {}
    for name, span_s in zip(names, spans_s, strict=True):
        by_name.setdefault(name, []).append(span_s)
    extra_s = {
        name: max(0.0, first_s - statistics.median(later_s))
        for name, (first_s, *later_s) in by_name.items()
    }
    kernels = []
    for name, span_s in zip(names, spans_s, strict=True):
        work_s = span_s - (extra_s[name] if by_name.pop(name, None) else 0.0)
        kernels.append(Kernel(name, "sm_90a", 0.0, work_s, 0, extra_s[name]))
    return kernels


def _traced(spec: Path, place: Path, jobs: int) -> tuple[dict[str, Any], float, float]:
    """Build into an empty store; return what was noted, the seconds, and the part of others."""
    with tempfile.TemporaryDirectory(dir=place) as store:
        before, began_s = _machine_s(), time.monotonic()
        command = [sys.executable, "-P", str(TRACE), str(spec), f"{store}/store", str(jobs)]
        done = subprocess.run(
            [*command, str(began_s)], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        seconds = time.monotonic() - began_s
        after = _machine_s()
    told = json.loads(done.stdout)
    busy_s, all_s = after[0] - before[0], after[1] - before[1]
    return told, seconds, max(0.0, busy_s - told["own_s"] - told["workers_s"]) / all_s


def _machine_s() -> tuple[float, float]:
    """Return what all processors have worked and what they could have, in ticks' seconds."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / 100, sum(ticks) / 100
