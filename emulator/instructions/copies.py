"""`cp.async`, `cp.async.bulk` and `cp.async.bulk.tensor` (PTX ISA 9.0, 9.7.9.25)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np

from pallasc.emulator.instructions.builder import Builder, dtype_of, refusal
from pallasc.emulator.instructions.bulk_groups import (
    add_to_group,
    announce,
    commit,
    instruction_at,
    put,
    store_operation,
    wait,
)
from pallasc.emulator.instructions.lane_copies import lane_copies
from pallasc.emulator.instructions.memory import lanes
from pallasc.emulator.instructions.prefetches import prefetch
from pallasc.emulator.instructions.tensor_copies import tensor
from pallasc.emulator.machine.block import Asynchronous, Range
from pallasc.emulator.machine.memory import OFFSET_MASK, RANK_SHIFT, Fault
from pallasc.emulator.machine.warp import Step, Warp
from pallasc.emulator.ptx.syntax import Instruction
from pallasc.emulator.tensors.tensor_copies import combined

_U4 = np.dtype("u4")


def cp(instruction: Instruction, builder: Builder) -> Step:
    """`cp.async.*` and `cp.reduce.async.bulk.*`."""
    parts = instruction.parts
    reduces = parts[1] == "reduce"
    rest = parts[2:] if reduces else parts[1:]
    if rest[0] != "async":
        raise refusal(instruction)
    if rest[1] != "bulk":
        return lane_copies(instruction, builder, rest[1:])
    rest = rest[2:]
    if rest[0] == "commit_group":
        return commit
    if rest[0] == "wait_group":
        return wait(instruction, reads_only="read" in rest)
    if rest[0] == "prefetch":
        return prefetch(instruction, builder, rest[1:])
    if rest[0] == "tensor":
        return tensor(instruction, builder, rest[1:], reduces=reduces)
    return _bulk(instruction, builder, rest, reduces=reduces)


def _bulk(
    instruction: Instruction, builder: Builder, parts: Sequence[str], *, reduces: bool
) -> Step:
    spaces = [part.split("::")[0] for part in parts[:2]]
    change = _reduction(parts) if reduces else None
    operands = instruction.operands[: -1 if "L2::cache_hint" in parts else None]
    target, source, size, *barrier = operands
    to, start = builder.address(target), builder.address(source)
    count = builder.read(size, _U4)
    signal = builder.address(barrier[0]) if barrier else None

    def run(w: Warp, place: int) -> int:
        targets, sources, sizes = to(w), start(w), count(w)
        for lane in lanes(w):
            at, begin, length = int(targets[lane]), int(sources[lane]), int(sizes[lane])
            if (at | begin | length) % 16:
                raise Fault(
                    "misaligned", "an address or size of a bulk copy is not a multiple of 16"
                )
            if not length:
                continue  # it moves nothing, so its addresses do not matter
            if signal is None:
                block = w.block.cluster.blocks_by_rank(begin >> RANK_SHIFT)
                write = _byte_writer(w, at, length, change)
                offset = begin & OFFSET_MASK
                found = store_operation(w, place, lane, block, offset, length, write)
                found.writes = _bytes(w, at, length)
                add_to_group(w, place, found)
            else:
                _bulk_load(w, place, lane, spaces, at, begin, length, int(signal(w)[lane]))
        return place + 1

    return run


def _bytes(w: Warp, address: int, size: int) -> list[Range]:
    """Return ranges of global memory, for the observer."""
    memory = w.block.machine.memory
    return [(*memory.find(target, size), size) for target in memory.targets(address)]


Change = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _reduction(parts: Sequence[str]) -> Change:
    """Return the function by which `cp.reduce.async.bulk` combines old and incoming bytes."""
    *_, operation, kind = [part for part in parts if part != "noftz"]
    dtype = np.dtype(ml_dtypes.bfloat16) if kind == "bf16" else dtype_of(kind, floats=True)

    def change(old: np.ndarray, new: np.ndarray) -> np.ndarray:
        return combined(operation, old.view(dtype), new.view(dtype)).view(np.uint8)

    return change


def _byte_writer(
    w: Warp, address: int, size: int, change: Change | None
) -> Callable[[np.ndarray], None]:
    memory = w.block.machine.memory

    def write(data: np.ndarray) -> None:
        for target in memory.targets(address):
            region, offset = memory.find(target, size)
            held = region.data[offset:][:size]
            held[:] = data if change is None else change(held, data)

    return write


def _bulk_load(
    w: Warp,
    place: int,
    lane: int,
    spaces: Sequence[str],
    at: int,
    begin: int,
    size: int,
    signal: int,
) -> None:
    machine, cluster = w.block.machine, w.block.cluster
    target = cluster.blocks_by_rank(at >> RANK_SHIFT)
    owner, offset = cluster.blocks_by_rank(signal >> RANK_SHIFT), signal & OFFSET_MASK

    def complete() -> None:
        if spaces[1] == "shared":
            source = cluster.blocks_by_rank(begin >> RANK_SHIFT).shared
            first = begin & OFFSET_MASK
        else:
            source, first = machine.memory.find(begin, size)
        put(target.shared, at & OFFSET_MASK, source.data[first : first + size].copy())
        owner.mbarrier(signal).complete(size)

    operation = Asynchronous(complete, "a bulk copy", instruction_at(w, place), w.actor, int(lane))
    operation.writes = [(target.shared, at & OFFSET_MASK, size)]
    operation.signals = [(owner, offset)]
    if spaces[1] == "shared":
        operation.reads = [
            (cluster.blocks_by_rank(begin >> RANK_SHIFT).shared, begin & OFFSET_MASK, size)
        ]
    else:
        operation.reads = _bytes(w, begin, size)
        machine.fetches(w.block, size)
    announce(w, place, operation)
    machine.issue(operation)
