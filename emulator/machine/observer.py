"""The interface of an observer: the events of a machine that it is called with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pallasc.emulator.machine.asynchronous import Asynchronous
from pallasc.emulator.machine.block import Block
from pallasc.emulator.machine.memory import Region
from pallasc.emulator.machine.warp import Warp


class Prefetch(NamedTuple):
    """Bytes that a prefetch asks for: those at an address, or a box of a tensor map there."""

    label: str
    address: int
    coordinates: tuple[int, ...]
    bytes: int


class Observer:
    """Called with the events of warps and asynchronous units; does what its subclass does."""

    def started(self, block: Block) -> None:
        """Take note of a new block."""

    def ended(self, block: Block) -> None:
        """Take note that a block has ended."""

    def finished(self) -> None:
        """Take note that the kernels of all devices have ended."""

    def read(self, w: Warp, place: int, region: Region, offsets: Any, mask: Any, size: int) -> None:
        """Take note that lanes read `size` bytes at offsets of a region; no mask means all."""

    def write(
        self, w: Warp, place: int, region: Region, offsets: Any, mask: Any, size: int
    ) -> None:
        """Take note that lanes are about to write."""

    def wrote(self, w: Warp) -> None:
        """Take note that what a warp was about to write is in memory."""

    def atomic(
        self, w: Warp, place: int, region: Region, offsets: Any, mask: Any, size: int
    ) -> None:
        """Take note of an atomic operation of lanes."""

    def issued(self, w: Warp, place: int, operation: Asynchronous) -> None:
        """Take note of an asynchronous operation that begins."""

    def completing(self, operation: Asynchronous) -> None:
        """Take note that an asynchronous operation is about to complete."""

    def completed(self, operation: Asynchronous) -> None:
        """Take note that an asynchronous operation is complete."""

    def waited(
        self, w: Warp, place: int, operations: Sequence[Asynchronous], *, reads_only: bool = False
    ) -> None:
        """Take note that a warp has waited for what it issued, or for what that reads."""

    def prefetched(self, w: Warp, place: int, prefetch: Prefetch) -> None:
        """Take note that a lane of a warp prefetches."""

    def registers_fenced(self, w: Warp, place: int) -> None:
        """Take note of wgmma.fence."""

    def registers_used(
        self, w: Warp, place: int, reads: Sequence[int], writes: Sequence[int]
    ) -> None:
        """Take note that an instruction uses registers that wgmma works with."""

    def initialised(self, w: Warp, place: int, block: Block, offset: int) -> None:
        """Take note that an mbarrier is about to be initialised."""

    def leaving(self, w: Warp) -> None:
        """Take note that a warp has ended; what it left under way is not complete yet."""

    def arrived(
        self, w: Warp, place: int, barrier: tuple[Any, ...], *, releases: bool = True
    ) -> None:
        """Take note that a warp is about to arrive at a barrier."""

    def passed(self, w: Warp, place: int, barrier: tuple[Any, ...]) -> None:
        """Take note that a wait for a barrier is over."""

    def fenced(self, w: Warp, place: int) -> None:
        """Take note of a fence."""
