"""What a build of 100,000 variants takes on 1 to 1,000 workers: a simulation with measured costs.

Measured first, in the same run: what each variant of the library takes to trace and lower and to
compile, what it weighs in a pack, how long a worker takes to start and to note what a compilation
has read, what looking up, sending and publishing a variant costs the client, and what a task costs
dask's scheduler in time and memory (`farm_costs`; `--costs FILE` takes them from an earlier run).
The variants of the simulated build are drawn from those of the library, with a fixed seed.

What is simulated, event by event (`farm_events`): a client that submits tasks and publishes results
one after the other, a scheduler that hands out one task after the other, workers that serve one
architecture at a time and take a start for another, two on a machine of two cores, workers that are
preempted and lose the task in hand, and a remote store that has none, half or all of the variants.
Beside it, `touched` is the build after a change of sources that changes no kernel: all is lowered,
nothing compiled.

Checked against real builds of the library's mix with 1, 2 and 4 workers on this machine
(`farm_home`): the median of some rounds.

Prices, in US dollars, as published in 2026: a minute of a hosted runner with two cores (GitHub,
"Actions runner pricing": 0.006, each job rounded up to whole minutes); a remote store in S3
Standard, us-east-1 (0.0004 for 1,000 GET, 0.005 for 1,000 PUT, 0.09 for a GB that leaves the
region).
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import farm_home
from farm_costs import Costs, Kernel, costs_from_json, costs_to_json, measure_costs
from farm_events import PACK_BYTES, Farm, Outcome
from harness import Figure, run_benchmark

WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)
CHECKED = (1, 2, 4)
LATENCY_S, BYTES_PER_S = 0.05, 100e6
"""A request to a store in the same region, and what one connection brings."""
PREEMPTED_EVERY_S = 2 * 3600.0
SCALES = 0.5
"""A build scales while each worker is at work for half of the time at least."""


def drawn(kernels: Sequence[Kernel], count: int, seed: int = 1) -> list[Kernel]:
    """Return variants drawn from measured ones, grouped as the kernels of a spec are."""
    chosen = random.Random(seed).choices(kernels, k=count)
    return sorted(chosen, key=lambda kernel: kernel.name)


def with_remote(
    kernels: Sequence[Kernel], costs: Costs, workers: int, *, held: float, every_s: float = 0.0
) -> Outcome:
    """Simulate a build whose remote store holds this part of the variants."""
    choose = random.Random(7)
    hits, misses = [], []
    for kernel in kernels:
        (hits if choose.random() < held else misses).append(kernel)
    arrived = sum(kernel.packed_bytes for kernel in hits)
    requests = math.ceil(arrived / PACK_BYTES) + 14 if hits else 1
    fetch_s = arrived / BYTES_PER_S + requests * LATENCY_S + len(hits) * costs.fetch_s
    looked_s = len(kernels) * costs.look_up_s
    if not misses:
        return Outcome(looked_s + fetch_s, 0.0, looked_s, 0.0, fetch_s, 0, requests, arrived, 0.0)
    rest = Farm(misses, costs, workers, preempted_every_s=every_s).run()
    sent_s = rest.bytes_out / BYTES_PER_S
    seconds = looked_s + fetch_s + max(rest.seconds, sent_s)
    return Outcome(
        seconds, rest.workers_s, rest.client_s + looked_s, rest.scheduler_s, fetch_s + sent_s,
        rest.lost, rest.requests + requests, arrived, rest.bytes_out,
    )  # fmt: skip


def simulated(kernels: Sequence[Kernel], costs: Costs) -> Iterator[tuple[str, int, Outcome]]:
    """Simulate all that the figures show: name, workers, outcome."""
    for workers in WORKERS:
        yield "cold", workers, with_remote(kernels, costs, workers, held=0.0)
        yield "half warm", workers, with_remote(kernels, costs, workers, held=0.5)
        yield "touched", workers, Farm(kernels, costs, workers, compiles=False).run()
        if workers > 1:
            every_s = PREEMPTED_EVERY_S
            lossy = with_remote(kernels, costs, workers, held=0.0, every_s=every_s)
            yield "cold, preempted", workers, lossy
    yield "warm", 1, with_remote(kernels, costs, 1, held=1.0)


def table(rows: Sequence[tuple[str, int, Outcome]]) -> str:
    """Return the outcomes as a table."""
    lines = ["remote            workers     time  busy  bound by      cost   lost"]
    for name, workers, outcome in rows:
        busy = outcome.workers_s / workers / outcome.seconds
        lines.append(
            f"{name:16} {workers:8} {outcome.seconds:7.0f}s {busy:5.0%}  "
            f"{outcome.bound_by(workers):10} {outcome.dollars(workers):7.2f}$ {outcome.lost:6}"
        )
    return "\n".join(lines)


def checked(options: argparse.Namespace) -> Iterator[Figure]:
    """Compare simulated with real builds on this machine."""
    rounds = list(farm_home.compare(options.real, CHECKED, options.rounds, options.foreign))
    for number, found in zip(CHECKED, zip(*rounds, strict=True), strict=True):
        real_s = statistics.median(each.real_s for each in found)
        ratio = statistics.median(each.simulated_s / each.real_s for each in found)
        yield Figure(f"{number} real workers", real_s, "s")
        name = f"simulated / real, {number} workers, distance from 1"
        yield Figure(name, abs(ratio - 1), goal=0.15)
    most = max(each.foreign for found in rounds for each in found)
    yield Figure("the part of this machine that other programs had meanwhile, at most", most)


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Measure the costs, simulate, check."""
    if options.costs and options.costs.exists():
        costs = costs_from_json(json.loads(options.costs.read_text()))
    else:
        costs = replace(measure_costs(), after_s=farm_home.after_s())
        if options.costs:
            options.costs.write_text(json.dumps(costs_to_json(costs), indent=1) + "\n")
    kernels = drawn(costs.kernels, options.variants)
    rows = list(simulated(kernels, costs))
    print(table(rows), file=sys.stderr)
    found = {(name, workers): outcome for name, workers, outcome in rows}
    figures = [
        Figure("trace and lower a variant, mean", _mean(k.lower_s for k in costs.kernels), "s"),
        Figure("compile a variant, mean", _mean(k.compile_s for k in costs.kernels), "s"),
        Figure("a variant in a pack, mean", _mean(k.packed_bytes for k in costs.kernels), "bytes"),
        Figure("start of a worker", costs.start_s, "s"),
        Figure("noting what a variant read", costs.after_s * 1e3, "ms"),
        Figure("a task on the client", (costs.submit_s + costs.publish_s) * 1e3, "ms"),
        Figure("a task on the scheduler", costs.scheduler_s * 1e3, "ms"),
        Figure(
            f"scheduler's memory for {options.variants} tasks",
            costs.scheduler_bytes * options.variants / 1e6,
            "MB",
        ),
    ]
    for (name, workers), outcome in found.items():
        if workers in (1, 64, 256, 1000) or name == "warm":
            title = f"{options.variants} variants, {name}, {workers} workers"
            figures.append(Figure(title, outcome.seconds, "s"))
            figures.append(Figure(f"{title}, cost", outcome.dollars(workers), "USD"))
    for name in ("cold", "half warm", "touched", "cold, preempted"):
        scales = [
            w for n, w, o in rows if n == name and o.workers_s / w / o.seconds >= SCALES
        ]  # fmt: skip
        figures.append(
            Figure(f"{name}: workers that are busy half of the time", max(scales or [0]))
        )
    return [*figures, *(checked(options) if options.real else [])]


def _mean(values: Iterator[float]) -> float:
    held = list(values)
    return sum(held) / len(held)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--variants", type=int, default=100_000, help="of the simulated build")
    parser.add_argument("--costs", type=Path, help="costs of an earlier run; written if missing")
    parser.add_argument("--real", type=int, default=60, help="variants of the real builds, 0: none")
    parser.add_argument("--rounds", type=int, default=3, help="how often these are compared")
    parser.add_argument(
        "--foreign", type=float, default=0.05, help="a round that left more to others is repeated"
    )


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", measure, _options))
