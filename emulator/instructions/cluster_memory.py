"""Access to the shared memory of other blocks: `st.async`, `red.async`, `mapa`.

PTX ISA 9.0, 9.7.9.13, 9.7.13.8 and 9.7.9.22.
"""

from __future__ import annotations

import numpy as np

from pallasc.emulator.instructions.builder import Builder, dtype_of, storage_of
from pallasc.emulator.instructions.bulk_groups import (
    announce,
    instruction_at,
    put,
)
from pallasc.emulator.instructions.memory import lanes
from pallasc.emulator.machine.block import Asynchronous, Block
from pallasc.emulator.machine.memory import OFFSET_MASK, RANK_SHIFT, SHARED, Fault
from pallasc.emulator.machine.warp import Step, Warp
from pallasc.emulator.numbers.atomics import find as find_atomic
from pallasc.emulator.ptx.syntax import Instruction

_U4 = np.dtype("u4")


def st_async(instruction: Instruction, builder: Builder) -> Step:
    """`st.async` and `red.async`: send each lane's value to a block of the cluster, and signal."""
    parts = instruction.parts
    reduces = parts[0] == "red"
    kind_name = parts[-1]
    operation = parts[-2] if reduces else ""
    change = find_atomic(operation, kind_name) if reduces else None
    kind = storage_of(dtype_of(kind_name))
    target, source, barrier = instruction.operands
    reads = [builder.read(element, kind) for element in builder.elements(source)]
    to, signal = builder.address(target), builder.address(barrier)
    width = kind.itemsize

    def run(w: Warp, place: int) -> int:
        machine, cluster = w.block.machine, w.block.cluster
        targets, signals = to(w) % SHARED, signal(w) % SHARED
        values = [read(w) for read in reads]
        for lane in lanes(w):
            at, bar = int(targets[lane]), int(signals[lane])
            block = cluster.blocks_by_rank(at >> RANK_SHIFT)
            content = [value[lane : lane + 1].copy() for value in values]
            owner = cluster.blocks_by_rank(bar >> RANK_SHIFT)

            def complete(
                block: Block = block,
                at: int = at & OFFSET_MASK,
                content: list[np.ndarray] = content,
                owner: Block = owner,
                bar: int = bar,
            ) -> None:
                for number, value in enumerate(content):
                    offset = at + number * width
                    if change is not None:
                        view = block.shared.views[width].view(change.dtype)
                        old = view[offset // width]
                        view[offset // width] = change.apply(old, value.view(change.dtype)[0])
                    else:
                        put(block.shared, offset, value.view(np.uint8))
                owner.mbarrier(bar).complete(width * len(content))

            what = "red.async" if reduces else "st.async"
            operation_found = Asynchronous(
                complete, what, instruction_at(w, place), w.actor, int(lane)
            )
            operation_found.writes = [(block.shared, at & OFFSET_MASK, width * len(content))]
            operation_found.signals = [(owner, bar & OFFSET_MASK)]
            announce(w, place, operation_found)
            machine.issue(operation_found)
        return place + 1

    return run


def getctarank(instruction: Instruction, builder: Builder) -> Step:
    """`getctarank`: the rank of the block that owns a shared-memory address (9.7.9.24)."""
    target, source = instruction.operands
    read, write = builder.read(source, np.dtype("i8")), builder.write(target, _U4)

    def run(w: Warp, place: int) -> int:
        write(w, ((read(w) & (SHARED - 1)) >> RANK_SHIFT).astype(_U4))
        return place + 1

    return run


def mapa(instruction: Instruction, builder: Builder) -> Step:
    """`mapa`: the corresponding address in another block of the cluster (9.7.9.22)."""
    kind = instruction.parts[-1]
    space = instruction.parts[1] if len(instruction.parts) == 3 else ""
    dtype = dtype_of(kind)
    target, source, rank = instruction.operands
    read, number = builder.read(source, np.dtype("i8")), builder.read(rank, _U4)
    write = builder.write(target, dtype)
    window = 0 if space else SHARED

    def run(w: Warp, place: int) -> int:
        ranks = number(w).astype(np.int64)
        used = ranks[w.mask]
        if (used >= len(w.block.cluster.blocks)).any():
            raise Fault(
                "out-of-bounds",
                f"mapa names block {int(used.max())} of a cluster of "
                f"{len(w.block.cluster.blocks)} blocks",
            )
        low = (read(w) - window) & OFFSET_MASK
        write(w, (low + (ranks << RANK_SHIFT) + window).astype(dtype))
        return place + 1

    return run
