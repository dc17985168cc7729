"""Warps, the barriers that they share, and their waits.

A warp is 32 lanes in lockstep, until they diverge. Diverged lanes are *splits*, each with its own
*place*: the index of its next instruction. The split that is farthest back runs first, so that
splits reconverge where their paths meet. A split that waits for the others lets them run first
(independent thread scheduling, PTX ISA 9.0, 3.1).

Barriers are `mbarrier` objects in shared memory and the named barriers of a block (PTX ISA 9.0,
9.7.13.15 and 9.7.13.1). The end of a wait can be tested without running the warp. A polling warp is
parked if it returns to the same places with the same registers and has changed nothing: it would
repeat the same instructions until one of the words that it has read changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import is_not
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from pallasc.emulator.machine.memory import Actor, Fault, Region, fault_of
from pallasc.emulator.ptx.syntax import Instruction
from pallasc.emulator.tensors.descriptors import OperandError

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
        """Add `count` bytes to those that the phase waits for (expect-tx)."""
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

    def arrive(self, threads: int, expected: int) -> bool:
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
        if self.threads > expected:
            raise Fault(
                "barrier-count", f"{self.threads} threads arrive at a barrier for {expected}"
            )
        if self.threads < expected:
            return False
        self.generation += 1
        self.threads = 0
        return True


@runtime_checkable
class Wait(Protocol):
    """A wait of lanes; `str()` returns the text after "waiting for"."""

    def is_over(self) -> bool:
        """Return True if the wait may be over; the lanes then run to check."""


@dataclass(frozen=True, slots=True)
class LanesWait:
    """Lanes wait for the other lanes of their warp."""

    what: str

    def is_over(self) -> bool:
        """Return False: only progress of the other lanes ends the wait."""
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
"""Opcodes with effects that other warps may notice."""


class Rounds:
    """Detects that a polling warp repeats itself.

    A round of the warp ends when it reads memory that other warps may change.
    """

    __slots__ = ("_count", "_limit", "_registers", "_splits", "watched")

    def __init__(self) -> None:
        self.watched: list[Wait] = []  # memory read since the state was saved
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
        # A loop may take several rounds to return to a state, so save one after 1, 2, 4, … rounds.
        self._limit = 1 if self._registers is None else 2 * self._limit
        self._registers, self._splits, self._count = list(registers), places, 0
        self.watched = []
        return False


def goes_in_circles(warp: Any, most: int) -> bool:
    """Execute up to `most` instructions of a warp; return True if it returns to its initial state.

    Returns False if one of the instructions has an effect that other warps may notice.
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


LANES = 32
_PATIENCE = 32  # yields of one split before the other splits of its warp go first

# Returned by a step instead of the next place:
BLOCKED = -1  # the lanes cannot continue; run the step again after a change
EXITED = -2  # the lanes have ended
PARTED = -3  # the lanes have diverged; `warp.splits` has their places
YIELDED = -4  # continue at `split.place` after a turn of the other warps

Step = Callable[["Warp", int], int]


class Split:
    """Lanes of a warp that are at the same place."""

    __slots__ = ("full", "mask", "place", "stuck", "token", "waits", "yields")

    def __init__(self, place: int, mask: npt.NDArray[np.bool_], yields: int = 0) -> None:
        self.place = place
        self.mask = mask
        self.full = bool(mask.all())
        self.stuck = False
        self.yields = yields
        self.token: Any = None  # state of the waiting instruction
        self.waits: object = ""  # the cause of the wait, described by str()


@dataclass(slots=True)
class Groups:
    """Asynchronous operations of one kind.

    Attributes:
        open: the operations that are in no group yet.
        committed: the groups that no warp has waited for, each with the lanes that committed it.
    """

    open: list[Any] = field(default_factory=list)
    committed: list[tuple[npt.NDArray[np.bool_], list[Any]]] = field(default_factory=list)


class Warp:
    """One warp of a block; `registers` are arrays over its lanes."""

    def __init__(
        self,
        block: Any,  # a `Block`, which imports this module
        index: int,
        live: npt.NDArray[np.bool_],
        registers: list[np.ndarray],
    ) -> None:
        self.block = block
        self.observer = block.machine.observer
        self.index = index
        self.begun = self.live = live
        self.registers = registers
        self.split = Split(0, live.copy())
        self.splits = [self.split]
        self.mask = self.split.mask
        self.full = self.split.full
        self.ended = False
        self.yielded = False  # True if its last turn ended by rereading memory
        self.parked: Sequence[Wait] = ()  # the warp cannot continue before one of these is over
        self.rounds = Rounds()
        self.circles = False  # the warp repeats a loop without any effect
        self.idle = 0.0  # turns without a change in the machine
        self.seen = 0  # the machine's progress when the warp last reread memory
        self.clock = 0
        self.actor = Actor(block.device, block.index, index)
        self.groups = {kind: Groups() for kind in ("bulk", "cp.async", "wgmma")}
        self.accumulators: dict[tuple[int, ...], Any] = {}  # of wgmma, by their registers
        self.tensor_loads: list[Any] = []
        self.cluster_phase: int | None = None
        self.register_count: int = block.launch.registers  # of each lane

    def instruction(self, place: int) -> Instruction:
        """Return the instruction at a place; the last instruction at the end of the kernel."""
        code: Sequence[Instruction] = self.block.launch.program.kernel.instructions
        return code[min(place, len(code) - 1)]

    def run(self, code: Sequence[Step], budget: int) -> bool:
        """Run until the warp is blocked, ended or yielded, or `budget` instructions have run.

        Returns:
            True if any instruction was completed.
        """
        for split in self.splits:
            split.stuck = False
        start = budget
        self.yielded = False
        while budget > 0 and not self.ended:
            chosen = self._choose()
            if chosen is None:
                self._park()
                break
            split = chosen
            self.split, self.mask, self.full = split, split.mask, split.full
            alone = len(self.splits) == 1
            place = split.place
            try:
                while budget > 0:
                    after = code[place](self, place)
                    if after < 0:
                        break
                    place = after
                    budget -= 1
                    if not alone:
                        break
            except (Fault, OperandError) as error:
                split.place = place
                fault = fault_of(error)
                fault.actor = fault.actor or self.actor
                fault.place = place
                raise fault from None
            if after == PARTED:
                budget -= 1
                continue
            if after >= 0:
                split.place = place
                if not alone:
                    self._join()
            elif after == BLOCKED:
                split.place = place
                split.stuck = True
            elif after == YIELDED:
                budget -= 1
                split.yields += 1
                self.yielded = True
                if not alone:
                    self._join()
                break
            else:
                budget -= 1
                self.splits.remove(split)
                self.live = self.live & ~split.mask
                self.ended = not self.splits
                for other in self.splits:
                    other.stuck = False
        self.clock += start - budget
        return budget < start

    def is_parked(self) -> bool:
        """Return True if the warp is parked and none of its waits is over."""
        for wait in self.parked:
            if wait.is_over():
                self.parked = ()
                return False
        return bool(self.parked)

    def ends_round(self) -> bool:
        """Record a turn that changed nothing; return True if all further turns will be the same."""
        if not self.rounds.is_same_again(self.splits, self.registers, self.split.waits):
            return False
        self._park(self.split)
        return bool(self.parked)

    def park_in_loop(self) -> None:
        """Make the warp wait, because it repeats a loop without any effect."""
        self.split.waits = LoopWait()
        self.parked = [self.split.waits]

    def _park(self, round_of: Split | None = None) -> None:
        """Park the warp, unless the end of a wait can only be detected by running the warp."""
        found = list(self.rounds.watched) if round_of is not None else []
        for split in self.splits:
            if split is round_of:
                continue
            if not (split.stuck and isinstance(split.waits, Wait)):
                return
            found.append(split.waits)
        self.parked = found

    def _choose(self) -> Split | None:
        """Return the runnable split that is farthest back.

        A split that keeps rereading memory lets the others go first, as it may be waiting for them.
        """
        ready = [split for split in self.splits if not split.stuck]
        if len(ready) < 2:
            return ready[0] if ready else None
        return min(ready, key=lambda split: (split.yields // _PATIENCE, split.place))

    def _join(self) -> None:
        """Merge the splits that are at the same place and are not in a wait."""
        joined: list[Split] = []
        for split in self.splits:
            at = next((n for n, other in enumerate(joined) if _can_join(other, split)), None)
            if at is None:
                joined.append(split)
            else:
                other = joined[at]
                yields = max(other.yields, split.yields)
                joined[at] = Split(split.place, other.mask | split.mask, yields)
        self.splits = joined

    def part(self, taken: npt.NDArray[np.bool_], target: int, following: int) -> int:
        """Send lanes `taken` to `target`, the others to `following`; return the step's result."""
        here = self.split
        at = self.splits.index(here)
        self.splits[at : at + 1] = [
            Split(target, here.mask & taken, here.yields),
            Split(following, here.mask & ~taken, here.yields),
        ]
        self._join()
        return PARTED

    def together(self, what: str, named: npt.NDArray[np.bool_] | None = None) -> bool:
        """Return True if all live lanes are at this instruction, as `.sync` and `.aligned` require.

        With a mask `named`, only the lanes in the mask are required.
        """
        if self.full:
            return True
        missing = self.live & ~self.mask
        if not (missing if named is None else missing & named).any():
            # A barrier of the block does not need lanes that have ended.
            if named is None and not what.startswith("bar") and (self.begun & ~self.mask).any():
                raise Fault(
                    "not-aligned",
                    f"{np.count_nonzero(self.mask)} lanes of a warp execute {what}, which all its "
                    "lanes must execute together; the others have ended",
                )
            return True
        self.split.waits = LanesWait(what)
        return False


def _can_join(one: Split, other: Split) -> bool:
    return one.place == other.place and one.token is None and other.token is None
