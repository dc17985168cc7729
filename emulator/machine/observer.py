"""The interface of an observer: the events that a machine reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pallasc.emulator.machine.asynchronous import Asynchronous
from pallasc.emulator.machine.block import Block
from pallasc.emulator.machine.memory import Region
from pallasc.emulator.machine.warp import Warp


class Prefetch(NamedTuple):
    """The bytes of a prefetch: at an address, or a box of the tensor map there."""

    label: str
    address: int
    coordinates: tuple[int, ...]
    bytes: int


class Observer:
    """Receives the events of warps and asynchronous units; subclasses override the handlers."""

    def started(self, block: Block) -> None:
        """Handle the start of a block."""

    def ended(self, block: Block) -> None:
        """Handle the end of a block."""

    def finished(self) -> None:
        """Handle the end of the kernels on all devices."""

    def read(self, w: Warp, place: int, region: Region, offsets: Any, mask: Any, size: int) -> None:
        """Handle a read of `size` bytes per lane at offsets in a region; no mask means all."""

    def write(
        self, w: Warp, place: int, region: Region, offsets: Any, mask: Any, size: int
    ) -> None:
        """Handle a write that lanes are about to execute."""

    def wrote(self, w: Warp) -> None:
        """Handle the completion of a warp's write."""

    def atomic(
        self, w: Warp, place: int, region: Region, offsets: Any, mask: Any, size: int
    ) -> None:
        """Handle an atomic operation of lanes."""

    def issued(self, w: Warp, place: int, operation: Asynchronous) -> None:
        """Handle the start of an asynchronous operation."""

    def completing(self, operation: Asynchronous) -> None:
        """Handle an asynchronous operation that is about to complete."""

    def completed(self, operation: Asynchronous) -> None:
        """Handle a completed asynchronous operation."""

    def waited(
        self, w: Warp, place: int, operations: Sequence[Asynchronous], *, reads_only: bool = False
    ) -> None:
        """Handle a warp's wait for operations that it issued, or only for their reads."""

    def prefetched(self, w: Warp, place: int, prefetch: Prefetch) -> None:
        """Handle a prefetch by a lane of a warp."""

    def registers_fenced(self, w: Warp, place: int) -> None:
        """Handle wgmma.fence."""

    def registers_used(
        self, w: Warp, place: int, reads: Sequence[int], writes: Sequence[int]
    ) -> None:
        """Handle an instruction that uses registers of a wgmma."""

    def initialised(self, w: Warp, place: int, block: Block, offset: int) -> None:
        """Handle the initialization of an mbarrier, before it happens."""

    def leaving(self, w: Warp) -> None:
        """Handle the end of a warp, before its pending operations complete."""

    def arrived(
        self, w: Warp, place: int, barrier: tuple[Any, ...], *, releases: bool = True
    ) -> None:
        """Handle an arrival at a barrier, before it happens."""

    def passed(self, w: Warp, place: int, barrier: tuple[Any, ...]) -> None:
        """Handle the end of a wait for a barrier."""

    def fenced(self, w: Warp, place: int) -> None:
        """Handle a fence."""
