"""The machine: launches kernels, schedules their warps, and explains their deadlocks.

By default, asynchronous operations complete only when something waits for them (`Policy.eagerness`
0), so that a missing wait gives wrong numbers. Runs with the same seed are identical.

The message for a deadlock fits on one screen, and shows what each group of warps waits for.
"""

from __future__ import annotations

import math
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
)
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
from pallasc.emulator.machine.warp import (
    BarrierWait,
    ClusterWait,
    LanesWait,
    LoopWait,
    MbarrierWait,
    MemoryWait,
    Split,
    Warp,
    goes_in_circles,
)
from pallasc.emulator.ptx.syntax import Instruction
from pallasc.emulator.tensors.descriptors import OperandError

_SMALLER_GRID = (
    "Blocks that wait for each other must all run at once. Launch at most as many blocks as fit, "
    "and let each block loop over its part of the work."
)
_MOST_GROUPS = 8
_MOST_NAMED = 3


class Deadlock(Fault):
    """No warp can make progress.

    Attributes:
        waiting: each warp, the index of its instruction, and the reason for its wait.
        summary: one line that names the first warps and why they wait.
    """

    def __init__(
        self,
        message: str,
        waiting: Sequence[tuple[Warp, int, str]],
        summary: str,
        hint: str | None = None,
    ) -> None:
        (first, place, _), *_ = waiting
        instruction = first.instruction(place)
        super().__init__("deadlock", message, instruction=instruction, actor=first.actor, hint=hint)
        self.waiting = tuple(waiting)
        self.summary = summary


@dataclass(slots=True)
class _Group:
    """Warps at one instruction with the same reason to wait."""

    instruction: Instruction
    reason: str
    waits: object
    warps: dict[tuple[int, tuple[int, int, int]], list[int]] = field(default_factory=dict)


def explain(clusters: Sequence[Cluster]) -> Fault:
    """Return the error that explains the wait of every warp, with blocks in grid order.

    If lanes of one warp wait for each other, the error is about this warp only.
    """
    clusters = sorted(
        clusters, key=lambda each: (each.blocks[0].device, each.blocks[0].index[::-1])
    )
    warps = [warp for cluster in clusters for warp in cluster.warps if not warp.ended]
    if (parted := next((warp for warp in warps if _is_parted(warp)), None)) is not None:
        return _parted(parted)
    waiting: list[tuple[Warp, int, str]] = []
    others: list[tuple[Warp, int, str]] = []
    groups: dict[tuple[int, str], _Group] = {}
    for warp, split in _in_order(clusters):
        reason, place = str(split.waits or "a change in memory"), _place(split)
        # A wait for other lanes of the same warp is only a result of those lanes' waits.
        follows = isinstance(split.waits, LanesWait) and len(warp.splits) > 1
        (others if follows else waiting).append((warp, place, reason))
        group = groups.setdefault(
            (place, reason), _Group(warp.instruction(place), reason, split.waits)
        )
        group.warps.setdefault((warp.block.device, warp.block.index), []).append(warp.index)
    first, *_ = groups.values()
    crowd = _crowd(clusters) if isinstance(first.waits, MemoryWait) else ""
    head = f"{crowd}no warp can make progress:"
    lines = [head]
    for group in list(groups.values())[:_MOST_GROUPS]:
        at = f"PTX line {group.instruction.line}"
        lines.append(f"  {_names(group)} at {at}: {group.instruction.text}")
        lines.append(f"    waiting for {group.reason}")
    if len(groups) > _MOST_GROUPS:
        lines.append(f"  … and {len(groups) - _MOST_GROUPS} more groups of warps")
    who = _names(first)
    are = "is" if who.startswith("warp ") else "are"
    summary = f"{head} {who} {are} waiting for {first.reason}"
    hint = _SMALLER_GRID if crowd else None
    return Deadlock("\n".join(lines), waiting or others, summary, hint)


def _crowd(clusters: Sequence[Cluster]) -> str:
    """Describe the blocks that cannot start because the GPU is full, "" if all have started."""
    launches = [cluster.launch for cluster in clusters]
    launch: Launch | None = next((each for each in launches if each.left), None)
    if launch is None:
        return ""
    blocks = math.prod(launch.cluster)
    why = f" ({launch.capacity})" if launch.capacity else ""
    return (
        f"the grid has {launch.clusters() * blocks:,} blocks, but at most "
        f"{launch.resident * blocks:,} run at once{why}, so {launch.left * blocks:,} never start: "
    )


def _is_parted(warp: Warp) -> bool:
    """Return True if the lanes of a warp wait for each other at different instructions."""
    return all(
        isinstance(split.waits, LanesWait)
        and {"bar", "aligned"} & set(warp.instruction(split.place).parts)
        for split in warp.splits
    )


def _parted(warp: Warp) -> Fault:
    at = [warp.instruction(split.place) for split in warp.splits]
    which = " and ".join(f"{each.opcode} (PTX line {each.line})" for each in at)
    fault = Fault(
        "not-aligned",
        f"only some lanes of a warp execute {which}: all its lanes must execute it together",
        instruction=at[0],
        actor=warp.actor,
    )
    fault.place = warp.splits[0].place
    return fault


def _in_order(clusters: Sequence[Cluster]) -> list[tuple[Warp, Split]]:
    """Return all waits, with likely causes before their consequences.

    Infinite loops come first, since they wait for nothing. Waits for mbarriers come before waits
    for memory, unless a warp of the cluster polls memory: that warp may be waiting for a semaphore,
    and the warps at mbarriers for that warp.
    """
    found = []
    for cluster in clusters:
        splits = [
            (warp, split) for warp in cluster.warps if not warp.ended for split in warp.splits
        ]
        polls = any(isinstance(split.waits, MemoryWait) for _, split in splits)
        found += [(_rank(split.waits, polls=polls), warp, split) for warp, split in splits]
    return [(warp, split) for _, warp, split in sorted(found, key=lambda each: each[0])]


def _rank(waits: object, *, polls: bool) -> int:
    if isinstance(waits, MbarrierWait):
        return 3 if polls else 1
    ranks = {LoopWait: 0, MemoryWait: 2, ClusterWait: 4, BarrierWait: 4, LanesWait: 5}
    return ranks.get(type(waits), 4)


def _place(split: Split) -> int:
    """Return the index of the waiting instruction; for a polling loop, of its load."""
    waits = split.waits
    return waits.place if isinstance(waits, MemoryWait) and not split.stuck else split.place


def _names(group: _Group) -> str:
    """Return the names of warps and blocks: "warps 0-3 of block (0, 0, 0)"."""
    by_warps: dict[str, list[str]] = {}
    for (device, (x, y, z)), numbers in group.warps.items():
        on = f" on device {device}" if device else ""
        by_warps.setdefault(_ranges(sorted(set(numbers))), []).append(f"({x}, {y}, {z}){on}")
    named = []
    for warps, blocks in by_warps.items():
        shown = ", ".join(blocks[:_MOST_NAMED])
        more = f" and {len(blocks) - _MOST_NAMED} more" if len(blocks) > _MOST_NAMED else ""
        named.append(f"{warps} of {'block' if len(blocks) == 1 else 'blocks'} {shown}{more}")
    return "; ".join(named)


def _ranges(numbers: Sequence[int]) -> str:
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    text = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in spans)
    return f"{'warp' if len(numbers) == 1 else 'warps'} {text}"


_TURN = 20_000  # instructions that a warp runs before the next warp's turn
_IDLE_TURNS = 200  # after this many turns that only reread memory, a warp is spinning
_STILL_TURNS = 8  # after this many turns without a change, more blocks may start
# Assumed for an unknown GPU model: the number of multiprocessors, and the limits of each.
_MULTIPROCESSORS = 148
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
        shuffle: if True, warps take turns in random order, for a random number of instructions, and
            clusters start in random order instead of grid order.
        busy: if True, assume that other kernels fill the rest of the GPU, so that
            `clusterlaunchcontrol` can cancel clusters even if the GPU has room for them.
    """

    seed: int = 0
    eagerness: float = 0.0
    shuffle: bool = False
    busy: bool = False


@dataclass(slots=True, eq=False)
class Launch:
    """A kernel on a device: its program, sizes and parameters, and the digest of its cubin.

    `room` is the number of clusters that the GPU holds at once, None if the model is unknown;
    `capacity` explains this limit. `registers` is the initial number per thread, 0 if unknown.
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
    order: Sequence[int] = ()  # start order of clusters; () for grid order
    room: int | None = None
    capacity: str = ""
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
        return math.prod(self._per_dimension)

    @property
    def left(self) -> int:
        """The number of clusters that have not started."""
        return self.clusters() - self.cancelled - self.started

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
        """Cancel the last waiting cluster and return its first block; None if none waits."""
        last = self.clusters() - self.cancelled - 1
        if last < max(self.started, 0 if is_busy else self.resident):
            return None
        self.cancelled += 1
        return self._first_block(last)

    def take(self) -> Dim3 | None:
        """Return the first block's index of the next cluster to start, or None."""
        if self.left <= 0:
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

    `deadline` is the time limit on the monotonic clock. `fetched` counts, by device and block,
    the bytes that bulk copies, tensor copies, and prefetches request from global memory.
    `poison` is the initial value of each byte of shared and tensor memory.
    """

    policy: Policy = field(default_factory=Policy)
    memory: GlobalMemory = field(default_factory=GlobalMemory)
    observer: Observer = field(default_factory=Observer)
    printed: list[str] = field(default_factory=list)
    tensor_maps: TensorMaps = field(default_factory=TensorMaps)
    pending: deque[Asynchronous] = field(default_factory=deque)
    progress: int = 0
    still: int = 0  # number of consecutive turns of all warps without a change
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
        """Return memory for a launch's parameters that contains `data`."""
        region = Region(PARAMETERS, max(len(data), 1), "the kernel's parameters")
        region.data[: len(data)] = bytearray(data)
        return region

    def run(self, launches: Sequence[Launch]) -> None:
        """Run kernels concurrently, one per device, until all have ended.

        Raises:
            Fault: a kernel executed an invalid operation.
            Deadlock: no kernel can make progress.
            EmulationTimeout: time limit exceeded.
        """
        self.launches = list(launches)
        self.clusters = []
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

    def issue(
        self, w: Warp, place: int, operation: Asynchronous, queue: deque[Asynchronous] | None = None
    ) -> None:
        """Issue an asynchronous operation, and complete it at once or put it into a queue.

        Without `queue`, it goes into `pending`, for operations that warps wait for at a barrier.
        """
        self.observer.issued(w, place, operation)
        if self.policy.eagerness >= 1:
            self.finish(operation)
        else:
            (self.pending if queue is None else queue).append(operation)

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
        """Start clusters that running clusters may wait for: at most as many as are running."""
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
                raise EmulationTimeout("the emulation exceeded its time limit")
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

        A parked warp wakes up when a word changes that it has read in its loop, but the loop may
        also read other words.
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
        budget = self.random.randint(1, 200) if self.policy.shuffle else _TURN
        if not self.execute(warp, budget):
            return False
        return warp.ended or self._has_advanced(warp, before, budget)

    def execute(self, warp: Warp, most: int) -> bool:
        """Execute up to `most` instructions of a warp; return True if it completed any."""
        try:
            ran = warp.run(warp.block.launch.program.code, most)
        except Fault as fault:
            if fault.instruction is None and fault.place is not None:
                fault.instruction = warp.instruction(fault.place)
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
        """Park a warp if it repeats a loop without any effect; return True if it does."""
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
