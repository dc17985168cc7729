"""Barriers, and the waits of warps, with a test for the end of a wait that does not run the warp.

Barriers are `mbarrier` objects in shared memory and the named barriers of a block (PTX ISA 9.0,
9.7.13.15 and 9.7.13.1). A warp that returns to the same place with the same registers, without
having changed anything, will keep doing so until something that it has read changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import is_not
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from pallasc.emulator.machine.memory import Fault, Region

_MOST_ARRIVALS = (1 << 20) - 1
_MOST_BYTES = (1 << 20) - 1
_WARPGROUP = 128


@dataclass(slots=True)
class Mbarrier:
    """An mbarrier object: its phase, its pending arrivals, and its pending bytes."""

    expected: int
    pending: int
    phase: int = 0
    bytes: int = 0

    def expect(self, count: int) -> None:
        """Announce `count` bytes (expect-tx)."""
        self.bytes += count
        self._check()

    def complete(self, count: int) -> bool:
        """Record the arrival of `count` bytes (complete-tx); return True if the phase completed."""
        self.bytes -= count
        self._check()
        return self._turn()

    def arrive(self, count: int = 1) -> bool:
        """Record `count` arrivals; return True if the phase completed.

        Raises:
            Fault: more arrivals than the barrier expects.
        """
        if count > self.pending:
            raise Fault(
                "too-many-arrivals",
                f"{count} arrivals at an mbarrier in phase {self.phase}: {self._left()}",
            )
        self.pending -= count
        return self._turn()

    def has_passed(self, parity: int) -> bool:
        """Return True if the phase of this parity has completed."""
        return self.phase & 1 != parity & 1

    def _turn(self) -> bool:
        if self.pending or self.bytes:
            return False
        self.phase += 1
        self.pending = self.expected
        return True

    def _expected(self) -> str:
        """Format the arrivals of a phase, with the `num_arrivals` that the user wrote."""
        if self.expected % _WARPGROUP:
            return f"{self.expected} arrivals"
        count = self.expected // _WARPGROUP
        return f"{self.expected} arrivals (num_arrivals={count} with {_WARPGROUP} threads each)"

    def _left(self) -> str:
        of = self._expected()
        if self.pending:
            return f"only {self.pending} of its {of} are left"
        return f"all its {of} have already happened, and it waits for bytes of copies"

    def _check(self) -> None:
        if abs(self.bytes) > _MOST_BYTES:
            raise Fault(
                "transaction-overflow",
                f"the transaction count of an mbarrier is {self.bytes} bytes",
            )

    def __str__(self) -> str:
        arrived = self.expected - self.pending
        under_way = ""
        if self.bytes > 0:
            under_way = f", {self.bytes} bytes announced but not copied"
        elif self.bytes < 0:
            under_way = f", {-self.bytes} bytes copied but not announced"
        return f"phase {self.phase}: {arrived} of {self._expected()}{under_way}"


@dataclass(slots=True)
class NamedBarrier:
    """One of the 16 barriers of a block, with the arrivals since it last completed."""

    generation: int = 0
    threads: int = 0
    expected: int = 0
    arrived: list[int] = field(default_factory=list)  # numbers of warps

    def arrive(self, warp: int, threads: int, expected: int) -> bool:
        """Record the arrival of a warp's threads; return True if the barrier is complete.

        Raises:
            Fault: warps disagree on the number of threads, or more threads arrive.
        """
        if self.threads and expected != self.expected:
            raise Fault(
                "barrier-count",
                f"a warp expects {expected} threads at a barrier, and other warps expect "
                f"{self.expected}",
            )
        self.expected = expected
        self.threads += threads
        self.arrived.append(warp)
        if self.threads > expected:
            raise Fault(
                "barrier-count", f"{self.threads} threads arrive at a barrier for {expected}"
            )
        if self.threads < expected:
            return False
        self.generation += 1
        self.threads = 0
        self.arrived = []
        return True


@runtime_checkable
class Wait(Protocol):
    """A wait of lanes; `str()` describes it, to follow "waiting for"."""

    def is_over(self) -> bool:
        """Return True if it may be over, so that the lanes have to check."""


@dataclass(frozen=True, slots=True)
class LanesWait:
    """Lanes wait for the other lanes of their warp, which wait themselves or could run."""

    what: str

    def is_over(self) -> bool:
        """Return False: the waiting lanes themselves cannot end it."""
        return False

    def __str__(self) -> str:
        return f"the other lanes of its warp at {self.what}"


@dataclass(frozen=True, slots=True)
class MbarrierWait:
    """A wait for a phase of an mbarrier."""

    barrier: Mbarrier
    offset: int
    parity: int

    def is_over(self) -> bool:
        """Return True if the phase has completed."""
        return self.barrier.has_passed(self.parity)

    def __str__(self) -> str:
        return (
            f"parity {self.parity} of the mbarrier at shared address {self.offset:#x} "
            f"({self.barrier})"
        )


@dataclass(frozen=True, slots=True)
class BarrierWait:
    """A wait at a barrier of a block; `everyone` means that all remaining warps take part."""

    block: Any  # a `Block`
    number: int
    generation: int
    everyone: bool

    @property
    def barrier(self) -> NamedBarrier:
        """The barrier."""
        found: NamedBarrier = self.block.named[self.number]
        return found

    def is_over(self) -> bool:
        """Return True if enough threads have arrived."""
        barrier = self.barrier
        if barrier.generation != self.generation:
            return True
        return self.everyone and barrier.threads >= self.block.live_threads

    def __str__(self) -> str:
        barrier = self.barrier
        return (
            f"barrier {self.number} of the block ({barrier.threads} of {barrier.expected} threads "
            "have arrived)"
        )


@dataclass(frozen=True, slots=True)
class ClusterWait:
    """A wait at the barrier of a cluster."""

    cluster: Any  # a `Cluster`
    generation: int

    def is_over(self) -> bool:
        """Return True if all warps have arrived."""
        return bool(self.cluster.generation != self.generation)

    def __str__(self) -> str:
        live = sum(not warp.ended for warp in self.cluster.warps)
        return f"the cluster barrier ({len(self.cluster.arrived)} of {live} warps have arrived)"


@dataclass(frozen=True, slots=True)
class RegistersWait:
    """A wait for registers that other warps of the block release."""

    block: Any  # a `Block`
    wanted: int
    held: int

    def is_over(self) -> bool:
        """Return True if the block has enough registers."""
        return bool(self.block.free_registers >= self.wanted - self.held)

    def __str__(self) -> str:
        return (
            f"setmaxnreg (set_max_registers) to raise the registers of each thread from "
            f"{self.held} to {self.wanted}: the other warps of the block have given back "
            f"{self.block.free_registers} of the {self.wanted - self.held} that it takes"
        )


@dataclass(frozen=True, slots=True)
class LoopWait:
    """Lanes repeat a loop that has no effect."""

    def is_over(self) -> bool:
        """Return False: the loop never ends."""
        return False

    def __str__(self) -> str:
        return "an infinite loop without any effect to end"


class Words(NamedTuple):
    """Words of a region: a view of it, their indices in the view, and their contents."""

    region: Region
    view: np.ndarray
    numbers: np.ndarray
    held: np.ndarray


@dataclass(frozen=True, slots=True)
class MemoryWait:
    """Lanes have read `words` and may read them again until they change."""

    place: int
    words: Sequence[Words]

    def is_over(self) -> bool:
        """Return True if any of the words has changed."""
        return any(bool((view[index] != held).any()) for _, view, index, held in self.words)

    def __str__(self) -> str:
        if not self.words:
            return "memory to change"
        region, view, index, held = self.words[0]
        offset = int(index.flat[0]) * view.itemsize
        return (
            f"{view.itemsize} bytes at offset {offset} of {region.label or 'global memory'} to "
            f"change, which are {int(held.flat[0])}"
        )


_EFFECTS = {
    "atom", "bar", "barrier", "call", "clusterlaunchcontrol", "cp", "mbarrier", "multimem", "red",
    "st", "stmatrix", "tcgen05", "wgmma",
}  # fmt: skip
"""Opcodes with effects that others may notice."""


class Rounds:
    """The rounds of one warp; a round ends when it reads memory that others may change."""

    __slots__ = ("_count", "_limit", "_registers", "_splits", "watched")

    def __init__(self) -> None:
        self.watched: list[Wait] = []  # read since the state was saved
        self._registers: list[np.ndarray] | None = None
        self._splits: tuple[Any, ...] = ()
        self._count = 0
        self._limit = 1

    def forget(self) -> None:
        """Start over, because the warp has changed something."""
        self._registers = None
        self._limit = 1

    def is_same_again(
        self, splits: Sequence[Any], registers: list[np.ndarray], waits: object
    ) -> bool:
        """Record the end of a round; return True if the state equals an earlier one.

        Args:
            splits: the splits of the warp.
            registers: its registers.
            waits: the memory that it has read at the end of this round.
        """
        if not isinstance(waits, Wait):
            self.forget()
            return False
        places = _places(splits)
        if self._registers is not None:
            self.watched.append(waits)
            self._count += 1
            if places == self._splits and _equal(self._registers, registers):
                return True
            if self._count < self._limit:
                return False
        # It may take several rounds to return to the same state, so double the number each time.
        self._limit = 1 if self._registers is None else 2 * self._limit
        self._registers, self._splits, self._count = list(registers), places, 0
        self.watched = []
        return False


def goes_in_circles(warp: Any, most: int) -> bool:
    """Execute up to `most` instructions of a warp; return True if it returns to its initial state.

    Returns False if one of the instructions has an effect that others may notice.
    """
    machine, instructions = warp.block.machine, warp.block.launch.program.kernel.instructions
    before, limit, left = machine.progress, 1, most
    while left > 0:
        splits, registers = _places(warp.splits), list(warp.registers)
        for _ in range(limit):
            places = {id(split): split.place for split in warp.splits}
            ran = machine.execute(warp, 1)
            if not ran or warp.ended or warp.yielded or machine.progress != before:
                return False
            place = places.get(id(warp.split))
            if place is None or instructions[place].parts[0] in _EFFECTS:
                return False
            if _places(warp.splits) == splits and _equal(registers, warp.registers):
                return True
        left -= limit
        limit *= 2
    return False


def _places(splits: Sequence[Any]) -> tuple[Any, ...]:
    return tuple((split.place, split.mask.tobytes(), split.stuck) for split in splits)


def _equal(some: list[np.ndarray], others: list[np.ndarray]) -> bool:
    changed = compress(zip(some, others, strict=True), map(is_not, some, others))
    return all(a.tobytes() == b.tobytes() for a, b in changed)
