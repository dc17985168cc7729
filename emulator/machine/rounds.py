"""Detects warps in a loop in which nothing changes: they wait for others.

A warp that returns to the same place with the same registers, without having changed anything, will
keep doing so until something that it has read changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from operator import is_not
from typing import Any

import numpy as np

from pallasc.emulator.machine.waits import Wait

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
