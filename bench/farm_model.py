"""What a build of 100,000 variants takes on 1 to 1,000 workers: a simulation with measured costs.

Measured first, in the same run: what each variant of the library takes to trace and lower and to
compile, what it weighs in a pack, how long a worker takes to start, what looking up, sending and
publishing a variant costs the client, and what a task costs dask's scheduler in time and memory
(`farm_costs`; `--costs FILE` takes them from an earlier run). The variants of the simulated build
are drawn from those of the library, with a fixed seed.

What is simulated, event by event: a client that submits tasks and publishes results one after the
other, a scheduler that hands out one task after the other, workers that serve one architecture at
a time and take a start for another, two on a machine of two cores, workers that are preempted and
lose the task in hand, and a remote store that has none, half or all of the variants. Beside it,
`touched` is the build after a change of sources that changes no kernel: all is lowered, nothing
compiled.

Checked against real builds of the library's mix with 1, 2 and 4 workers on this machine.

Prices, in US dollars, as published in 2026: a minute of a hosted runner with two cores (GitHub,
"Actions runner pricing": 0.006, each job rounded up to whole minutes); a remote store in S3
Standard, us-east-1 (0.0004 for 1,000 GET, 0.005 for 1,000 PUT, 0.09 for a GB that leaves the
region).
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from farm_costs import Costs, Kernel, costs_from_json, costs_to_json, measure_costs, real_builds
from harness import Figure, run_benchmark

WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)
CORES = 2
RUNNER_MINUTE = 0.006
GET, PUT, GB_OUT = 0.0004 / 1000, 0.005 / 1000, 0.09
PACK_BYTES = 8 << 20
LATENCY_S, BYTES_PER_S = 0.05, 100e6
"""A request to a store in the same region, and what one connection brings."""
PREEMPTED_EVERY_S, BACK_AFTER_S = 2 * 3600.0, 60.0
SCALES = 0.5
"""A build scales while each worker is at work for half of the time at least."""


@dataclass(slots=True)
class Worker:
    """A worker process: what it serves, what it does now, and until what work of its machine."""

    machine: Machine
    architecture: str = ""
    task: int = -1
    turn: int = 0
    """Counts its tasks, so that what was planned for a lost one is recognised."""


@dataclass(slots=True)
class Machine:
    """Cores that the active workers share; `worked_s` is what each active one has had of them."""

    cores: int
    active: list[tuple[float, int, Worker]] = field(default_factory=list)
    worked_s: float = 0.0
    at_s: float = 0.0
    turn: int = 0

    def advance(self, now_s: float) -> None:
        """Give each active worker its share of the time that has passed."""
        self.worked_s += (now_s - self.at_s) * self._rate()
        self.at_s = now_s

    def next_s(self) -> float:
        """Return when the first active worker is done, if nothing changes."""
        return self.at_s + (self.active[0][0] - self.worked_s) / self._rate()

    def _rate(self) -> float:
        return min(1.0, self.cores / max(1, len(self.active)))


@dataclass(frozen=True)
class Outcome:
    """What a simulated build took.

    `workers_s` is the time that workers had work, `lost` how many tasks were begun once more.
    """

    seconds: float
    workers_s: float
    client_s: float
    scheduler_s: float
    transfer_s: float
    lost: int
    requests: int
    bytes_in: float
    bytes_out: float

    def bound_by(self, workers: int) -> str:
        """Return what was busy for the largest part of the build."""
        shares = {
            "workers": self.workers_s / workers,
            "client": self.client_s,
            "scheduler": self.scheduler_s,
            "transfer": self.transfer_s,
        }
        return max(shares, key=lambda name: shares[name])

    def dollars(self, workers: int, cores: int = CORES) -> float:
        """Return what runners, requests and traffic cost."""
        runners = math.ceil(workers / cores) * math.ceil(self.seconds / 60) * RUNNER_MINUTE
        return runners + self.requests * (GET + PUT) / 2 + self.bytes_in / 1e9 * GB_OUT


@dataclass
class Farm:
    """One simulated build.

    Args:
        kernels: the variants that miss, in the order of the build.
        costs: what each step costs.
        workers: how many there are.
        cores: how many cores a machine has; workers fill one machine after the other.
        compiles: whether workers compile what they have lowered.
        preempted_every_s: mean time between losses of a worker, 0 for none.
        seed: of the losses.
    """

    kernels: Sequence[Kernel]
    costs: Costs
    workers: int
    cores: int = CORES
    compiles: bool = True
    local: bool = False
    preempted_every_s: float = 0.0
    seed: int = 1
    _events: list[tuple[float, int, str, object, int]] = field(default_factory=list)
    _count: int = 0
    _waiting: dict[str, deque[int]] = field(default_factory=dict)
    _serving: dict[str, int] = field(default_factory=dict)
    _client_s: float = 0.0
    _scheduler_s: float = 0.0
    _workers_s: float = 0.0
    _lost: int = 0

    def run(self) -> Outcome:
        """Simulate the build from the first task to the last result."""
        machines = [Machine(self.cores) for _ in range(math.ceil(self.workers / self.cores))]
        if self.local:
            machines = [Machine(self.cores)]
        self._idle = [Worker(machines[n % len(machines)]) for n in range(self.workers)]
        self._random = random.Random(self.seed)
        submit_s = self.costs.submit_s
        batch = 1 if len(self.kernels) < 10_000 else 50  # fewer events; nothing else changes
        for first in range(0, len(self.kernels), batch):
            last = min(first + batch, len(self.kernels))
            self._at(last * submit_s, "arrive", range(first, last))
        if self.preempted_every_s:
            for worker in self._idle:
                self._at(self._until_lost_s(), "lose", worker)
        self._client_free_s = len(self.kernels) * submit_s
        self._scheduler_free_s = end_s = 0.0
        self._client_s = self._client_free_s
        left = len(self.kernels)
        while left:
            now_s, _, kind, subject, turn = heapq.heappop(self._events)
            if kind == "done":
                done_s = self._done(now_s, subject, turn)
                if done_s:
                    left -= 1
                    end_s = max(end_s, done_s)
            else:
                getattr(self, f"_{kind}")(now_s, subject)
        sent = sum(kernel.packed_bytes for kernel in self.kernels) if self.compiles else 0
        return Outcome(
            end_s, self._workers_s, self._client_s, self._scheduler_s, 0.0, self._lost,
            requests=math.ceil(sent / PACK_BYTES) + 2, bytes_in=0.0, bytes_out=sent,
        )  # fmt: skip

    def _at(self, when_s: float, kind: str, subject: object, turn: int = 0) -> None:
        self._count += 1
        heapq.heappush(self._events, (when_s, self._count, kind, subject, turn))

    def _until_lost_s(self) -> float:
        return self._random.expovariate(1 / self.preempted_every_s)

    def _arrive(self, now_s: float, numbers: range) -> None:
        for number in numbers:
            architecture = self.kernels[number].architecture
            self._waiting.setdefault(architecture, deque()).append(number)
        self._hand_out(now_s)

    def _hand_out(self, now_s: float) -> None:
        """Give tasks to idle workers, to those of the same architecture first."""
        while self._idle and any(self._waiting.values()):
            chosen = next((w for w in self._idle if self._waiting.get(w.architecture)), None)
            worker = chosen or self._idle[0]
            self._idle.remove(worker)
            architecture = worker.architecture if chosen else self._neediest()
            self._begin(now_s, worker, architecture)

    def _neediest(self) -> str:
        """Return the architecture with the most tasks for each of its workers."""
        return max(
            self._waiting, key=lambda a: len(self._waiting[a]) / (1 + self._serving.get(a, 0))
        )

    def _begin(self, now_s: float, worker: Worker, architecture: str) -> None:
        worker.task = self._waiting[architecture].popleft()
        kernel = self.kernels[worker.task]
        work_s = kernel.lower_s + (kernel.compile_s if self.compiles else 0.0)
        if worker.architecture != architecture:
            work_s += self.costs.start_s
            self._serving[worker.architecture] = self._serving.get(worker.architecture, 0) - 1
            self._serving[architecture] = self._serving.get(architecture, 0) + 1
            worker.architecture = architecture
        self._scheduler_free_s = max(self._scheduler_free_s, now_s) + self.costs.scheduler_s
        self._scheduler_s += self.costs.scheduler_s
        self._workers_s += work_s
        worker.turn += 1
        self._at(self._scheduler_free_s, "work", (worker, work_s, worker.turn))

    def _work(self, now_s: float, subject: tuple[Worker, float, int]) -> None:
        worker, work_s, turn = subject
        if worker.turn != turn:
            return
        machine = worker.machine
        machine.advance(now_s)
        self._count += 1
        heapq.heappush(machine.active, (machine.worked_s + work_s, self._count, worker))
        self._plan(machine)

    def _plan(self, machine: Machine) -> None:
        """Note when the first worker of a machine is done, in place of what was noted before."""
        machine.turn += 1
        if machine.active:
            self._at(machine.next_s(), "done", machine, machine.turn)

    def _done(self, now_s: float, machine: object, turn: int) -> float:
        """Publish the result of a machine's first worker; return when that is done, 0 if stale."""
        assert isinstance(machine, Machine)
        if machine.turn != turn:
            return 0.0
        machine.advance(now_s)
        _, _, worker = heapq.heappop(machine.active)
        self._plan(machine)
        worker.task, worker.turn = -1, worker.turn + 1
        self._client_free_s = max(self._client_free_s, now_s) + self.costs.publish_s
        self._client_s += self.costs.publish_s
        self._idle.append(worker)
        self._hand_out(now_s)
        return self._client_free_s

    def _lose(self, now_s: float, worker: Worker) -> None:
        """Take a worker away; its task is the next one of its architecture."""
        if worker in self._idle:
            self._idle.remove(worker)
        elif worker.task >= 0:
            machine = worker.machine
            machine.advance(now_s)
            machine.active = [entry for entry in machine.active if entry[2] is not worker]
            heapq.heapify(machine.active)
            self._plan(machine)
            self._waiting[worker.architecture].appendleft(worker.task)
            self._lost += 1
        worker.task, worker.turn = -1, worker.turn + 1
        self._serving[worker.architecture] = self._serving.get(worker.architecture, 0) - 1
        worker.architecture = ""
        self._at(now_s + BACK_AFTER_S, "back", worker)
        self._hand_out(now_s)

    def _back(self, now_s: float, worker: Worker) -> None:
        self._idle.append(worker)
        self._at(now_s + self._until_lost_s(), "lose", worker)
        self._hand_out(now_s)


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


def checked(options: argparse.Namespace, costs: Costs) -> Iterator[Figure]:
    """Compare simulated with real builds on this machine."""
    for jobs, real_s, kernels in real_builds(options.real, (1, 2, 4)):
        model = Farm(kernels, costs, jobs, cores=CORES, local=True).run()
        ratio = (model.seconds + costs.begin_s) / real_s
        print(f"{jobs} workers: {real_s:.1f} s, simulated {ratio * real_s:.1f} s", file=sys.stderr)
        yield Figure(f"{jobs} real workers", real_s, "s")
        name = f"simulated / real, {jobs} workers, distance from 1"
        yield Figure(name, abs(ratio - 1), goal=0.15)


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Measure the costs, simulate, check."""
    if options.costs and options.costs.exists():
        costs = costs_from_json(json.loads(options.costs.read_text()))
    else:
        costs = measure_costs()
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
    return [*figures, *(checked(options, costs) if options.real else [])]


def _mean(values: Iterator[float]) -> float:
    held = list(values)
    return sum(held) / len(held)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--variants", type=int, default=100_000, help="of the simulated build")
    parser.add_argument("--costs", type=Path, help="costs of an earlier run; written if missing")
    parser.add_argument("--real", type=int, default=60, help="variants of the real builds, 0: none")


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", measure, _options))
