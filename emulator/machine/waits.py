"""Waits of warps, with a test for the end of the wait that does not run the warp."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from pallasc.emulator.machine.barriers import Mbarrier, NamedBarrier
from pallasc.emulator.machine.memory import Region


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
