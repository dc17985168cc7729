"""A build on many workers, simulated event by event, for `farm_model`.

A client submits tasks and takes in results one after the other, a scheduler hands out one task
after the other, and workers serve one architecture at a time and take a start for another. Workers
share the cores of their machine; they may be preempted and lose the task in hand.

A build on one machine (`Home`) has no scheduler, and its client needs the cores, too: it starts the
workers, prepares while they import JAX, then takes in their results.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from farm_costs import Costs, Home, Kernel

CORES = 2
RUNNER_MINUTE = 0.006
GET, PUT, GB_OUT = 0.0004 / 1000, 0.005 / 1000, 0.09
PACK_BYTES = 8 << 20
BACK_AFTER_S = 60.0
"""How long a worker that was preempted is away."""


@dataclass(slots=True)
class Worker:
    """A worker process, or the client: what it serves and what it does now.

    Attributes:
        machine: whose cores it needs.
        architecture: of the tasks that it can do without a start, "" for none.
        task: the number of its task, -1 for none.
        turn: counts its tasks, so that what was planned for a lost one is recognised.
        waits_s: for how long it waits for the disk after its present work.
        known: the kernels that it has met.
    """

    machine: Machine
    architecture: str = ""
    task: int = -1
    turn: int = 0
    waits_s: float = 0.0
    known: set[str] = field(default_factory=set)


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
        home: what a build on one machine has beside these, None for a cluster.
        preempted_every_s: mean time between losses of a worker, 0 for none.
        seed: of the losses.
    """

    kernels: Sequence[Kernel]
    costs: Costs
    workers: int
    cores: int = CORES
    compiles: bool = True
    home: Home | None = None
    preempted_every_s: float = 0.0
    seed: int = 1
    _events: list[tuple[float, int, str, object, int]] = field(default_factory=list)
    _count: int = 0
    _waiting: dict[str, deque[int]] = field(default_factory=dict)
    _serving: dict[str, int] = field(default_factory=dict)
    _idle: list[Worker] = field(default_factory=list)
    _client: Worker | None = None
    _results: int = 0
    _left: int = 0
    _end_s: float = 0.0
    _client_s: float = 0.0
    _client_free_s: float = 0.0
    _scheduler_s: float = 0.0
    _scheduler_free_s: float = 0.0
    _workers_s: float = 0.0
    _lost: int = 0

    def run(self) -> Outcome:
        """Simulate the build from its start to its end."""
        self._random = random.Random(self.seed)
        self._left = len(self.kernels)
        if self.home is not None:
            self._begin_at_home(self.home)
        else:
            self._begin_on_cluster()
        while self._left:
            now_s, _, kind, subject, turn = heapq.heappop(self._events)
            getattr(self, f"_{kind}")(now_s, subject, turn)
        end_s = self._end_s + (self.home.end_s if self.home else 0.0)
        sent = sum(kernel.packed_bytes for kernel in self.kernels) if self.compiles else 0
        return Outcome(
            end_s, self._workers_s, self._client_s, self._scheduler_s, 0.0, self._lost,
            requests=math.ceil(sent / PACK_BYTES) + 2, bytes_in=0.0, bytes_out=sent,
        )  # fmt: skip

    def _begin_on_cluster(self) -> None:
        machines = [Machine(self.cores) for _ in range(math.ceil(self.workers / self.cores))]
        self._idle = [Worker(machines[n % len(machines)]) for n in range(self.workers)]
        submit_s = self.costs.submit_s
        batch = 1 if len(self.kernels) < 10_000 else 50  # fewer events; nothing else changes
        for first in range(0, len(self.kernels), batch):
            last = min(first + batch, len(self.kernels))
            self._at(last * submit_s, "arrive", range(first, last))
        if self.preempted_every_s:
            for worker in self._idle:
                self._at(self._until_lost_s(), "lose", worker)
        self._client_s = self._client_free_s = len(self.kernels) * submit_s

    def _begin_at_home(self, home: Home) -> None:
        """Have the client prepare and the workers start, all at once, on one machine."""
        machine = Machine(self.cores)
        self._client = Worker(machine)
        architecture = self.kernels[0].architecture
        starting = [Worker(machine, architecture) for _ in range(self.workers)]
        self._serving[architecture] = self.workers
        self._client_s = home.prepare_s
        self._workers_s = self.workers * home.start_s
        for each in (self._client, *starting):
            work_s = home.prepare_s if each is self._client else home.start_s
            self._at(home.warm_s, "work", (each, work_s), each.turn)

    def _at(self, when_s: float, kind: str, subject: object, turn: int = 0) -> None:
        self._count += 1
        heapq.heappush(self._events, (when_s, self._count, kind, subject, turn))

    def _until_lost_s(self) -> float:
        return self._random.expovariate(1 / self.preempted_every_s)

    def _arrive(self, now_s: float, numbers: range, _: int = 0) -> None:
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
        work_s = kernel.lower_s + (kernel.compile_s if self.compiles else 0.0) + self.costs.after_s
        if worker.architecture != architecture:
            work_s += self.costs.start_s
            self._serving[worker.architecture] = self._serving.get(worker.architecture, 0) - 1
            self._serving[architecture] = self._serving.get(architecture, 0) + 1
            worker.architecture = architecture
        if kernel.name not in worker.known:
            worker.known.add(kernel.name)
            work_s += kernel.first_s
        self._scheduler_free_s = max(self._scheduler_free_s, now_s) + self.costs.scheduler_s
        self._scheduler_s += self.costs.scheduler_s
        self._workers_s += work_s
        worker.turn += 1
        worker.waits_s = work_s * self.home.waiting if self.home else 0.0
        self._at(self._scheduler_free_s, "work", (worker, work_s - worker.waits_s), worker.turn)

    def _work(self, now_s: float, subject: tuple[Worker, float], turn: int) -> None:
        worker, work_s = subject
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

    def _done(self, now_s: float, machine: Machine, turn: int) -> None:
        """End the work of a machine's first worker, unless others have come or gone meanwhile."""
        if machine.turn != turn:
            return
        machine.advance(now_s)
        _, _, worker = heapq.heappop(machine.active)
        self._plan(machine)
        if worker is self._client:
            self._client_done(now_s)
        else:
            self._at(now_s + worker.waits_s, "free", worker, worker.turn)

    def _free(self, now_s: float, worker: Worker, turn: int) -> None:
        """Take in the result of a worker, and give it more to do."""
        if worker.turn != turn:
            return
        if worker.task >= 0:
            self._publish(now_s)
        worker.task, worker.turn = -1, worker.turn + 1
        self._idle.append(worker)
        self._hand_out(now_s)

    def _publish(self, now_s: float) -> None:
        self._client_s += self.costs.publish_s
        if self._client is None:
            self._client_free_s = max(self._client_free_s, now_s) + self.costs.publish_s
            self._left, self._end_s = self._left - 1, max(self._end_s, self._client_free_s)
            return
        self._results += 1
        if self._results == 1:
            self._work(now_s, (self._client, self.costs.publish_s), self._client.turn)

    def _client_done(self, now_s: float) -> None:
        """Have tasks handed out once the client has prepared; later, take in the next result."""
        assert self._client is not None
        if not self._client.turn:
            self._client.turn = 1
            self._arrive(now_s, range(len(self.kernels)))
            return
        self._results, self._left, self._end_s = self._results - 1, self._left - 1, now_s
        if self._results:
            self._work(now_s, (self._client, self.costs.publish_s), self._client.turn)

    def _lose(self, now_s: float, worker: Worker, _: int = 0) -> None:
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
        worker.known.clear()
        self._at(now_s + BACK_AFTER_S, "back", worker)
        self._hand_out(now_s)

    def _back(self, now_s: float, worker: Worker, _: int = 0) -> None:
        self._idle.append(worker)
        self._at(now_s + self._until_lost_s(), "lose", worker)
        self._hand_out(now_s)
