"""A warp: 32 lanes in lockstep, until they diverge.

Diverged lanes are *splits*, each with a separate place in the code. The split that is farthest back
runs first, so that splits reconverge where their paths meet. A split that waits for the others lets
them run first (independent thread scheduling, PTX ISA 9.0, 3.1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pallasc.emulator.machine.memory import Actor, Fault, fault_of
from pallasc.emulator.machine.waits import LanesWait, LoopWait, Rounds, Wait
from pallasc.emulator.tensors.matrices import OperandError

LANES = 32
_PATIENCE = 32  # yields of one split before the other splits of its warp go first

# Returned by a step instead of the number of the next instruction:
BLOCKED = -1  # it cannot continue; run it again after a change
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
        self.circles = False  # it repeats a loop without any effect
        self.idle = 0.0  # turns without a change in the machine
        self.seen = 0  # the machine's progress when it last reread memory
        self.clock = 0
        self.actor = Actor(block.device, block.index, index)
        self.bulk_open: list[Any] = []  # uncommitted asynchronous bulk copies
        self.bulk_groups: list[Any] = []
        self.copies_open: list[Any] = []  # of cp.async
        self.copies: list[list[Any]] = []
        self.accumulators: dict[tuple[int, ...], Any] = {}  # of wgmma, by their registers
        self.wgmma_open: list[Any] = []
        self.wgmma_groups: list[list[Any]] = []
        self.tensor_loads: list[Any] = []
        self.cluster_phase: int | None = None
        self.register_count: int = block.launch.registers  # of each lane

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
        """Return True if running it would change nothing, because none of its waits is over."""
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
        """Park the warp, unless only running it can show that a wait of its lanes is over."""
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
        """Return True if all live lanes are here, as `.sync` and `.aligned` require.

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
