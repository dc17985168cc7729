"""`cp.async.bulk.tensor`: copies of boxes by a tensor map (PTX ISA 9.0, 9.7.9.25.5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pallasc.emulator.instructions.builder import Builder, Read, refusal
from pallasc.emulator.instructions.bulk_groups import (
    add_to_group,
    announce,
    instruction_at,
    put,
    store_operation,
)
from pallasc.emulator.instructions.memory import lanes
from pallasc.emulator.machine.block import Asynchronous, Block, Range
from pallasc.emulator.machine.memory import OFFSET_MASK, PARAMETERS, RANK_SHIFT, Fault, TensorMaps
from pallasc.emulator.machine.warp import Step, Warp
from pallasc.emulator.ptx.syntax import Address, Instruction, Operand, Vector
from pallasc.emulator.tensors import tensor_copies, tensor_maps
from pallasc.emulator.tensors.tensor_maps import Box
from pallasc.specs.artifacts.plan import MAP_BYTES, TensorMap

_I4 = np.dtype("i4")


def tensor(
    instruction: Instruction, builder: Builder, parts: Sequence[str], *, reduces: bool
) -> Step:
    """`cp.async.bulk.tensor` and `cp.reduce.async.bulk.tensor`, in both directions."""
    operands = instruction.operands[: -1 if "L2::cache_hint" in parts else None]
    if parts[1].startswith("shared"):
        return _tensor_load(instruction, builder, parts, operands)
    operation = next((p for p in parts if p in tensor_copies.REDUCTIONS), "")
    return _tensor_store(instruction, builder, parts, operands, operation if reduces else "")


Boxes = Callable[[TensorMap, Sequence[int], int], Box]


def boxes(parts: Sequence[str]) -> Boxes:
    """Return the function that creates the box for a copy in this mode."""
    if "tile::gather4" in parts or "tile::scatter4" in parts:
        return lambda m, c, s: tensor_maps.gather4(m, c[0], c[1:], s)
    if "im2col" in parts or "im2col_no_offs" in parts:
        return lambda m, c, s: tensor_maps.im2col(m, c, (), s)
    return tensor_maps.tiled


def _tensor_load(
    instruction: Instruction, builder: Builder, parts: Sequence[str], operands: tuple[Operand, ...]
) -> Step:
    target, source, barrier, *more = operands
    box_of = boxes(parts)
    im2col = "im2col" in parts
    lanes_offsets = scalars(builder, more.pop(0), np.dtype("u2")) if im2col and more else None
    multicast = builder.read(more.pop(0), np.dtype("u2")) if "multicast::cluster" in parts else None
    if more:
        raise refusal(instruction)
    in_pairs = "cta_group::2" in parts
    to, signal = builder.address(target), builder.address(barrier)
    map_at, coordinates = map_and_coordinates(instruction, builder, source)

    def run(w: Warp, place: int) -> int:
        addresses, signals, maps = to(w), signal(w), map_at(w)
        for lane in lanes(w):
            tensor_map, base = map_of(w, int(maps[lane]))
            at = int(addresses[lane])
            where = [int(v) for v in coordinates(w, lane)]
            if lanes_offsets is not None:
                offsets = [int(v) for v in lanes_offsets(w, lane)]
                box = tensor_maps.im2col(tensor_map, where, offsets, at & OFFSET_MASK)
            else:
                box = box_of(tensor_map, where, at & OFFSET_MASK)
            mask = None if multicast is None else int(multicast(w)[lane])
            blocks = _destinations(w, at, mask)
            barriers = _signals(w, int(signals[lane]), mask, blocks, in_pairs=in_pairs)
            operation = _load_operation(w, place, lane, tensor_map, base, box, blocks, barriers)
            w.block.machine.fetches(w.block, box.bytes)
            announce(w, place, operation)
            w.block.machine.issue(operation)
        return place + 1

    return run


def _load_operation(
    w: Warp,
    place: int,
    lane: int,
    tensor_map: TensorMap,
    base: int,
    box: Box,
    blocks: Sequence[Block],
    barriers: Sequence[tuple[Block, int]],
) -> Asynchronous:
    machine = w.block.machine

    def complete() -> None:
        region, offset = machine.memory.find(base)
        data = tensor_copies.read_global(tensor_map, box, region.data[: region.size], offset)
        for block in blocks:
            put(block.shared, box.shared_address, data)
        for owner, offset in barriers:
            owner.mbarrier(owner.base + offset).complete(box.bytes)

    operation = Asynchronous(
        complete, "a tensor load", instruction_at(w, place), w.actor, int(lane)
    )
    operation.signals = list(barriers)
    if machine.observer is not None:
        operation.writes = [(block.shared, box.shared_address, box.bytes) for block in blocks]
        operation.reads = _rows(w, box, base)
    return operation


def _rows(w: Warp, box: Box, base: int) -> list[Range]:
    """Return the rows of a box in global memory, for the observer."""
    starts = box.global_rows
    if not box.global_row_bytes or not len(starts):
        return []
    memory = w.block.machine.memory
    found = [memory.find(target) for target in memory.targets(base)]
    return [(region, starts + offset, box.global_row_bytes) for region, offset in found]


def _destinations(w: Warp, address: int, mask: int | None) -> list[Block]:
    cluster = w.block.cluster
    if mask is None:
        return [cluster.blocks_by_rank(address >> RANK_SHIFT)]
    return [cluster.blocks_by_rank(rank) for rank in range(16) if mask >> rank & 1]


def _signals(
    w: Warp, address: int, mask: int | None, targets: Sequence[Block], *, in_pairs: bool
) -> list[tuple[Block, int]]:
    """Return the mbarriers that a load signals, one per destination.

    A multicast with `.cta_group::2` signals, in each destination's pair of blocks, the block with
    the same parity as the address's block; without it, the destination. Other loads signal the
    block of the address: the destination or, with `.cta_group::2`, its peer.
    """
    blocks = targets
    if mask is None:
        blocks = _destinations(w, address, None)
        if blocks[0].rank >> in_pairs != targets[0].rank >> in_pairs:
            raise Fault(
                "invalid-operand",
                f"the mbarrier is in block {blocks[0].rank} of the cluster, and the destination in "
                f"block {targets[0].rank}: only .cta_group::2 signals another block, of its pair",
            )
    elif in_pairs:
        parity = address >> RANK_SHIFT & 1
        blocks = [w.block.cluster.blocks_by_rank(b.rank & ~1 | parity) for b in targets]
    return [(block, address & OFFSET_MASK) for block in blocks]


def _tensor_store(
    instruction: Instruction,
    builder: Builder,
    parts: Sequence[str],
    operands: tuple[Operand, ...],
    operation: str,
) -> Step:
    target, source = operands
    box_of = boxes(parts)
    map_at, coordinates = map_and_coordinates(instruction, builder, target)
    start = builder.address(source)

    def run(w: Warp, place: int) -> int:
        addresses, maps = start(w), map_at(w)
        for lane in lanes(w):
            tensor_map, base = map_of(w, int(maps[lane]))
            at = int(addresses[lane])
            where = [int(v) for v in coordinates(w, lane)]
            box = box_of(tensor_map, where, at & OFFSET_MASK)
            block = w.block.cluster.blocks_by_rank(at >> RANK_SHIFT)
            write = _writer(w, tensor_map, base, box, operation)
            found = store_operation(w, place, lane, block, box.shared_address, box.bytes, write)
            if w.block.machine.observer is not None:
                found.writes = _rows(w, box, base)
            add_to_group(w, place, found)
        return place + 1

    return run


def _writer(
    w: Warp, tensor_map: TensorMap, base: int, box: Box, operation: str
) -> Callable[[np.ndarray], None]:
    memory = w.block.machine.memory

    def write(data: np.ndarray) -> None:
        for address in memory.targets(base):
            region, offset = memory.find(address)
            content = region.data[: region.size]
            if operation:
                tensor_copies.reduce_global(
                    tensor_map, box, content, offset, data, operation=operation
                )
            else:
                tensor_copies.write_global(tensor_map, box, content, offset, data)

    return write


def map_of(w: Warp, address: int) -> tuple[TensorMap, int]:
    """Return the tensor map at an address, and the address of its array."""
    region, offset = w.block.launch.parameters, address - PARAMETERS
    if address < PARAMETERS:
        region, offset = w.block.machine.memory.find(address)
    maps: TensorMaps = w.block.machine.tensor_maps
    return maps.decode(region.data[offset : offset + MAP_BYTES].tobytes())


Scalars = Callable[[Warp, int], list[int]]


def map_and_coordinates(
    instruction: Instruction, builder: Builder, operand: Operand
) -> tuple[Read, Scalars]:
    """Return functions for the address of the map, and for the coordinates of a lane."""
    if not isinstance(operand, Address) or not operand.coordinates:
        raise refusal(instruction)
    return builder.address(operand), scalars(builder, Vector(operand.coordinates), _I4)


def scalars(builder: Builder, operand: Operand, dtype: np.dtype[np.generic]) -> Scalars:
    """Return a function that reads the operands of one lane."""
    reads = [builder.read(element, dtype) for element in builder.elements(operand)]
    return lambda w, lane: [int(read(w)[lane]) for read in reads]
