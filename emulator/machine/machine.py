"""The machine: launches kernels, schedules their warps, and completes asynchronous operations.

By default, asynchronous operations complete only when something waits for them (`Policy.eagerness`
0), so that a missing wait gives wrong numbers. Runs with the same seed are identical.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pallasc.emulator.machine.block import (
    Asynchronous,
    Block,
    Cluster,
    Dim3,
    Observer,
    Unobserved,
)
from pallasc.emulator.machine.deadlocks import explain
from pallasc.emulator.machine.memory import (
    PARAMETERS,
    RESERVED,
    EmulationTimeout,
    Fault,
    GlobalMemory,
    Region,
    TensorMaps,
    fault_of,
)
from pallasc.emulator.machine.waits import goes_in_circles
from pallasc.emulator.machine.warp import Warp
from pallasc.emulator.tensors.matrices import OperandError

_TURN = 20_000  # instructions that a warp runs before the next one's turn
_IDLE_TURNS = 200  # turns that only reread unchanged memory: the warp is spinning
_STILL_TURNS = 8  # turns of all warps without any change: blocks that wait for room get it
_MULTIPROCESSORS = 148  # of a GPU whose model is unknown; each has room for:
_MOST_BLOCKS = 32
_MOST_THREADS = 2048
_SHARED_BYTES = 228 * 1024
_POISON = 0xFF  # NaN in every floating-point format


@dataclass(frozen=True, slots=True)
class Policy:
    """The schedule of warps and of asynchronous operations.

    Args:
        seed: the seed of random orders.
        eagerness: the probability, at each turn, that an asynchronous operation completes although
            nothing waits for it: 0 delays all operations, 1 completes them immediately.
        turn: the maximum number of instructions that a warp runs before the next one's turn.
        shuffle: if True, warps take turns in random order, for a random number of instructions, and
            clusters start in random order instead of grid order.
        seconds: time limit of the emulation, for all launches together.
        busy: if True, other kernels fill the rest of the GPU, so that a cluster gets the work of
            others by `clusterlaunchcontrol` even if the GPU has room for them.
    """

    seed: int = 0
    eagerness: float = 0.0
    turn: int = _TURN
    shuffle: bool = False
    seconds: float | None = None
    busy: bool = False


@dataclass(slots=True, eq=False)
class Launch:
    """A kernel on a device: its program, sizes and parameters, and the digest of its cubin.

    `room` is the number of clusters that the GPU holds at once, None if the model is unknown.
    `registers` is the initial number per thread, 0 if unknown.
    """

    program: Any  # a `Program` of `emulator/program.py`, which imports this module
    grid: Dim3
    block: Dim3
    cluster: Dim3
    dynamic_shared: int
    parameters: Region
    device: int = 0
    started: int = 0
    cancelled: int = 0
    cubin: str = ""
    order: Sequence[int] = ()  # of its clusters; () for grid order
    room: int | None = None
    registers: int = 0

    @property
    def threads(self) -> int:
        """The number of threads of a block."""
        x, y, z = self.block
        return x * y * z

    @property
    def static_shared(self) -> int:
        """Bytes of shared memory of the kernel's own variables."""
        size: int = self.program.static_shared
        return size

    def clusters(self) -> int:
        """Return the number of clusters in the grid."""
        return self._per_dimension[0] * self._per_dimension[1] * self._per_dimension[2]

    @property
    def _per_dimension(self) -> Dim3:
        x, y, z = (-(-g // c) for g, c in zip(self.grid, self.cluster, strict=True))
        return x, y, z

    @property
    def resident(self) -> int:
        """The number of clusters that fit on the GPU's multiprocessors at once."""
        if self.room is not None:
            return self.room
        shared = RESERVED + self.static_shared + self.dynamic_shared
        fitting = min(_MOST_BLOCKS, _MOST_THREADS // self.threads, _SHARED_BYTES // shared)
        x, y, z = self.cluster
        return max(1, _MULTIPROCESSORS * max(fitting, 1) // (x * y * z))

    def cancel(self, *, is_busy: bool = False) -> Dim3 | None:
        """Give away the work of the last cluster that waits for room; None if there is none."""
        last = self.clusters() - self.cancelled - 1
        if last < max(self.started, 0 if is_busy else self.resident):
            return None
        self.cancelled += 1
        return self._first_block(last)

    def take(self) -> Dim3 | None:
        """Return the first block's index of the next cluster to start, or None."""
        if self.started >= self.clusters() - self.cancelled:
            return None
        self.started += 1
        return self._first_block(self.started - 1)

    def shuffle(self, source: random.Random) -> None:
        """Start clusters in a random order."""
        self.order = source.sample(range(self.clusters()), self.clusters())

    def _first_block(self, number: int) -> Dim3:
        number = self.order[number] if self.order else number
        x, y, _ = self._per_dimension
        inside = (number % x, number // x % y, number // (x * y))
        a, b, c = (i * n for i, n in zip(inside, self.cluster, strict=True))
        return a, b, c


@dataclass(slots=True)
class Machine:
    """Devices that share an address space, and the kernels that run on them.

    `deadline` is the time limit on the monotonic clock. `fetched` counts the bytes that bulk and
    tensor copies and prefetches of each block request from global memory, by device and block.
    `poison` is the initial value of each byte of shared and tensor memory.
    """

    policy: Policy = field(default_factory=Policy)
    memory: GlobalMemory = field(default_factory=GlobalMemory)
    observer: Observer = field(default_factory=Unobserved)
    printed: list[str] = field(default_factory=list)
    tensor_maps: TensorMaps = field(default_factory=TensorMaps)
    pending: deque[Asynchronous] = field(default_factory=deque)
    progress: int = 0
    still: int = 0  # turns of all warps that have changed nothing
    launches: list[Launch] = field(default_factory=list)
    clusters: list[Cluster] = field(default_factory=list)
    random: random.Random = field(init=False)
    deadline: float | None = None
    fetched: dict[tuple[int, Dim3], int] = field(default_factory=dict)
    variables: dict[object, Region] = field(default_factory=dict)  # of modules, in global memory
    poison: int = _POISON

    def __post_init__(self) -> None:
        """Seed the order of turns."""
        self.random = random.Random(self.policy.seed)

    def changed(self) -> None:
        """Record a change that a warp may be waiting for."""
        self.progress += 1

    def fetches(self, block: Block, size: int) -> None:
        """Count bytes that a block requests from global memory."""
        key = (block.device, block.index)
        self.fetched[key] = self.fetched.get(key, 0) + size

    def parameters(self, data: bytes) -> Region:
        """Return the memory of a launch's parameters, with this content."""
        region = Region(PARAMETERS, max(len(data), 1), "the kernel's parameters")
        region.data[: len(data)] = bytearray(data)
        return region

    def run(self, launches: Sequence[Launch]) -> None:
        """Run kernels concurrently, one per device, until all have ended.

        Raises:
            Fault: a kernel executed an invalid operation.
            Deadlock: no kernel can make progress.
            EmulationTimeout: the time limit is over.
        """
        self.launches = list(launches)
        self.clusters = []
        if self.policy.seconds is not None and self.deadline is None:
            self.deadline = time.monotonic() + self.policy.seconds
        for launch in self.launches:
            if self.policy.shuffle:
                launch.shuffle(self.random)
            self._start(launch)
        while self.clusters:
            if not (self._turn() or self._complete_one() or self._start_more() or self._look()):
                raise explain(self.clusters)
        for operation in tuple(self.pending):
            self.finish(operation)
        self.pending.clear()
        self.observer.finished()

    def issue(self, operation: Asynchronous) -> None:
        """Issue an asynchronous operation that is waited for only through its barrier."""
        if self.policy.eagerness >= 1:
            self.finish(operation)
        else:
            self.pending.append(operation)

    def finish(self, operation: Asynchronous) -> None:
        """Complete an operation, unless it is already complete."""
        if operation.done:
            return
        operation.done = True
        self.observer.completing(operation)
        try:
            operation.complete()
        except (Fault, OperandError) as error:
            fault = fault_of(error)
            fault.instruction = fault.instruction or operation.instruction
            fault.actor = fault.actor or operation.actor
            raise fault from None
        self.observer.completed(operation)
        self.changed()

    def _start(self, launch: Launch) -> bool:
        first = launch.take()
        if first is None:
            return False
        cluster = Cluster(self, launch, first)
        cluster.start()
        self.clusters.append(cluster)
        for block in cluster.blocks:
            self.observer.started(block)
        self.changed()
        return True

    def _start_more(self) -> bool:
        """Start up to as many more clusters as are waiting: these may wait for the new ones."""
        running = [cluster.launch for cluster in self.clusters]
        started = False
        for launch in self.launches:
            count = running.count(launch)
            for _ in range(min(max(count, 1), launch.resident - count)):
                started = self._start(launch) or started
        return started

    def _turn(self) -> bool:
        """Run every warp once; return True if that changed anything."""
        ran = False
        before = self.progress
        for warp in self._order():
            ran = self._run(warp) or ran
            if self.deadline is not None and time.monotonic() > self.deadline:
                raise EmulationTimeout("the time limit of the emulation is over")
        self.still = self.still + 1 if self.progress == before else 0
        if self.still == _STILL_TURNS:
            self.still = 0
            if not any(launch.cancelled for launch in self.launches):
                self._start_more()
        for cluster in [cluster for cluster in self.clusters if cluster.ended]:
            self._end(cluster)
            ran = True
        if self.pending and self.random.random() < self.policy.eagerness:
            ran = self._complete_one() or ran
        return ran

    def _look(self) -> bool:
        """Make every warp recheck its wait; return True if that changed anything.

        A loop may read more than the words that its warp was parked on.
        """
        for cluster in self.clusters:
            for warp in cluster.warps:
                warp.parked = ()
        return self._turn()

    def _order(self) -> Iterator[Warp]:
        warps = [w for cluster in self.clusters for w in cluster.warps if not w.ended]
        if self.policy.shuffle:
            self.random.shuffle(warps)
        yield from warps

    def _run(self, warp: Warp) -> bool:
        """Run a warp; return True if it did anything but spin."""
        if warp.ended or warp.is_parked() or (warp.circles and self._circles(warp)):
            return False
        before = self.progress
        budget = self.random.randint(1, 200) if self.policy.shuffle else self.policy.turn
        if not self.execute(warp, budget):
            return False
        return warp.ended or self._has_advanced(warp, before, budget)

    def execute(self, warp: Warp, most: int) -> bool:
        """Execute up to `most` instructions of a warp; return True if it completed any."""
        try:
            ran = warp.run(warp.block.launch.program.code, most)
        except Fault as fault:
            if fault.instruction is None and fault.place is not None:
                fault.instruction = warp.block.launch.program.kernel.instructions[fault.place]
            raise
        if warp.ended:
            self.changed()
            warp.block.cluster.check_arrivals()
        return ran

    def _has_advanced(self, warp: Warp, before: int, budget: int) -> bool:
        """Return True if a warp did anything but spin in its turn."""
        if self.progress != before:
            warp.idle = 0
            warp.rounds.forget()
        elif warp.yielded and warp.ends_round():
            return False
        elif warp.yielded:
            warp.idle = warp.idle + 1 if warp.seen == self.progress else 0
            warp.seen = self.progress
        else:
            idle = warp.idle
            warp.idle += budget / _TURN
            if int(idle).bit_length() < int(warp.idle).bit_length():
                return not self._circles(warp)
        return warp.idle < _IDLE_TURNS

    def _circles(self, warp: Warp) -> bool:
        """Return True if a warp repeats a loop without any effect; otherwise it continues."""
        warp.circles = goes_in_circles(warp, _TURN)
        if warp.circles:
            warp.park_in_loop()
        return warp.circles

    def _end(self, cluster: Cluster) -> None:
        for warp in cluster.warps:
            self.observer.leaving(warp)
            warp.block.launch.program.drain(warp)
        for block in cluster.blocks:
            self.observer.ended(block)
        self.clusters.remove(cluster)
        if not any(other.launch is cluster.launch for other in self.clusters):
            self._start(cluster.launch)

    def _complete_one(self) -> bool:
        """Complete the oldest pending operation, or a random one; return False if there is none."""
        while self.pending:
            at = self.random.randrange(len(self.pending)) if self.policy.shuffle else 0
            operation = self.pending[at]
            del self.pending[at]
            if not operation.done:
                self.finish(operation)
                for cluster in self.clusters:
                    for warp in cluster.warps:
                        warp.idle = 0
                return True
        return self._tensor_work()

    def _tensor_work(self) -> bool:
        """Let the tensor core of some block execute its oldest operation."""
        for cluster in self.clusters:
            for block in cluster.blocks:
                if block.tensor_work:
                    self.finish(block.tensor_work.popleft())
                    for warp in cluster.warps:
                        warp.idle = 0
                    return True
        return False
