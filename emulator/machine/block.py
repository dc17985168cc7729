"""Blocks and clusters, their asynchronous operations, and the events reported to an observer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from pallasc.emulator.machine.memory import RANK_SHIFT, RESERVED, SHARED, Actor, Fault, Region
from pallasc.emulator.machine.warp import LANES, Mbarrier, NamedBarrier, Warp
from pallasc.emulator.ptx.syntax import Instruction
from pallasc.emulator.tensors.tensor_memory import COLUMNS, TensorMemory

Dim3 = tuple[int, int, int]


class Block:
    """A block (CTA): shared memory, barriers and warps."""

    def __init__(self, cluster: Cluster, rank: int, index: Dim3) -> None:
        launch = cluster.launch
        self.cluster = cluster
        self.launch = launch
        self.machine = cluster.machine
        self.device = launch.device
        self.rank = rank
        self.index = index
        self.base = rank << RANK_SHIFT
        size = RESERVED + launch.static_shared + launch.dynamic_shared
        self.shared = Region(SHARED + self.base, size, "shared memory", self.machine.poison)
        self.mbarriers: dict[int, Mbarrier] = {}
        self.named = [NamedBarrier() for _ in range(16)]
        self.tensor_memory: TensorMemory | None = None
        self.tensor_work: deque[Any] = deque()  # pending tcgen05 operations, in order
        self.local: dict[int, Region] = {}
        self.free_registers = 0  # per lane of a warp, available to other warps
        self.warps = [self._warp(number) for number in range(-(-launch.threads // LANES))]

    def _warp(self, number: int) -> Warp:
        first = number * LANES
        live = np.arange(first, first + LANES) < self.launch.threads
        return Warp(self, number, live, self.launch.program.registers(self, first))

    def take_registers(self, warp: Warp, count: int) -> bool:
        """Give a warp `count` registers per thread; return False if the block lacks them."""
        if not self.launch.registers:
            return True  # the kernel's resources are unknown
        more = count - warp.register_count
        if more > self.free_registers:
            return False
        self.free_registers -= more
        warp.register_count = count
        self.machine.changed()
        return True

    @property
    def number(self) -> int:
        """The block's linear index in the grid; x varies fastest."""
        (x, y, z), (width, height, _) = self.index, self.launch.grid
        return int(x + width * (y + height * z))

    @property
    def live_warps(self) -> int:
        """The number of warps that have not ended."""
        return sum(not warp.ended for warp in self.warps)

    @property
    def live_threads(self) -> int:
        """The number of threads in the warps that have not ended."""
        return LANES * self.live_warps

    def mbarrier(self, address: int) -> Mbarrier:
        """Return the mbarrier at a shared-memory address, in this block or its cluster.

        Raises:
            Fault: no mbarrier was initialized there.
        """
        owner = self.cluster.blocks_by_rank(address >> RANK_SHIFT)
        found = owner.mbarriers.get(address & ((1 << RANK_SHIFT) - 1))
        if found is None:
            raise Fault("no-mbarrier", f"no mbarrier is initialized at shared address {address:#x}")
        return found


@dataclass(slots=True, eq=False)
class Cluster:
    """Blocks that run together and access each other's shared memory; a single block by default."""

    machine: Any  # a `Machine`, which imports this module
    launch: Any  # its `Launch`
    first: Dim3
    blocks: list[Block] = field(default_factory=list)
    generation: int = 0
    arrived: set[tuple[int, int]] = field(default_factory=set)

    def start(self) -> None:
        """Create the blocks."""
        x, y, z = self.launch.cluster
        for rank in range(x * y * z):
            inside = (rank % x, rank // x % y, rank // (x * y))
            index = tuple(a + b for a, b in zip(self.first, inside, strict=True))
            self.blocks.append(Block(self, rank, index))

    def blocks_by_rank(self, rank: int) -> Block:
        """Return the block of this rank.

        Raises:
            Fault: the cluster has no such rank.
        """
        if 0 <= rank < len(self.blocks):
            return self.blocks[rank]
        raise Fault(
            "out-of-bounds",
            f"an access to block {rank} of a cluster of {len(self.blocks)} blocks",
        )

    @property
    def warps(self) -> list[Warp]:
        """All warps of all blocks."""
        return [warp for block in self.blocks for warp in block.warps]

    @property
    def ended(self) -> bool:
        """True if every warp has ended."""
        return all(warp.ended for block in self.blocks for warp in block.warps)

    def arrive(self, warp: Warp) -> int:
        """Record a warp's arrival at the cluster's barrier; return the generation it arrived in."""
        generation = self.generation
        self.arrived.add((warp.block.rank, warp.index))
        self.check_arrivals()
        return generation

    def check_arrivals(self) -> None:
        """End the barrier's phase if all warps that have not ended have arrived."""
        live = {(w.block.rank, w.index) for w in self.warps if not w.ended}
        if self.arrived and live <= self.arrived:
            self.generation += 1
            self.arrived.clear()
            self.machine.changed()


Range = tuple[Region, "np.ndarray | int", int]
"""Byte ranges of a region: their start offsets, and the size of each range."""

Cells = tuple[TensorMemory, np.ndarray, "np.ndarray | range"]
"""Cells of tensor memory: every lane with every column of a range, or pairs from two arrays."""


def cell_numbers(cells: Cells) -> tuple[TensorMemory, np.ndarray]:
    """Return the memory, and the number of each cell, lane after lane."""
    memory, lanes, columns = cells
    if isinstance(columns, range):
        lanes, columns = lanes[:, None], np.arange(columns.start, columns.stop)
    return memory, (lanes * COLUMNS + columns).ravel()


@dataclass(slots=True, eq=False)
class Asynchronous:
    """An operation that was issued and completes later."""

    complete: Callable[[], None]
    what: str
    instruction: Instruction
    actor: Actor
    lane: int = 0
    read: Callable[[], None] | None = None  # reads the source, if that is a separate step
    done: bool = False
    reads: Sequence[Range] = ()  # this field and the following ones are for the observer
    writes: Sequence[Range] = ()
    cells_read: Sequence[Cells] = ()
    cells_written: Sequence[Cells] = ()
    registers: tuple[Sequence[int], Sequence[int]] = ((), ())  # written and read by wgmma
    signals: Sequence[tuple[Block, int]] = ()  # mbarriers that it signals: block, offset
    tag: Any = None  # the observer's data


AccessKind = Literal["read", "write", "atomic"]


class Observer:
    """Receives the events of warps and asynchronous units; subclasses override the handlers.

    `records` is True if the observer uses `Asynchronous.reads` and the fields after it, which take
    time to compute.
    """

    records = False

    def started(self, block: Block) -> None:
        """Handle the start of a block."""

    def ended(self, block: Block) -> None:
        """Handle the end of a block."""

    def finished(self) -> None:
        """Handle the end of the kernels on all devices."""

    def accessed(
        self,
        w: Warp,
        place: int,
        kind: AccessKind,
        region: Region,
        offsets: Any,
        mask: Any,
        size: int,
    ) -> None:
        """Handle an access that lanes are about to execute.

        Args:
            w: the warp.
            place: the index of the warp's instruction.
            kind: "read", "write" or "atomic".
            region: the memory.
            offsets: the start of each lane's bytes in it.
            mask: the lanes that take part; None for all.
            size: the bytes of each lane.
        """

    def wrote(self, w: Warp) -> None:
        """Handle the completion of a warp's write."""

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
