"""Asynchronous copies: bulk copies, tensor copies, and those of lanes.

PTX ISA 9.0, 9.7.9.25 (`cp.async`, `cp.async.bulk`, `cp.async.bulk.tensor`), 9.7.9.13 (`st.async`)
and 9.7.13.8 (`red.async`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pallasc.emulator.instructions.builder import Builder, Read, dtype_of, refusal, storage_of
from pallasc.emulator.instructions.memory import lanes, places
from pallasc.emulator.machine.block import Block
from pallasc.emulator.machine.faults import Fault
from pallasc.emulator.machine.machine import Asynchronous, Range
from pallasc.emulator.machine.memory import RANK_SHIFT, SHARED, Region, load, store
from pallasc.emulator.machine.tensor_maps import TensorMaps
from pallasc.emulator.machine.warp import Step, Warp
from pallasc.emulator.numbers.atomics import find as find_atomic
from pallasc.emulator.ptx.syntax import Address, Immediate, Instruction, Operand, Vector
from pallasc.emulator.tensors import tensor_copies, tensor_maps
from pallasc.emulator.tensors.tensor_maps import Box
from pallasc.specs.artifacts.plan import MAP_BYTES, TensorMap

_LOW = (1 << RANK_SHIFT) - 1
_U4 = np.dtype("u4")
_I4 = np.dtype("i4")


@dataclass(frozen=True, slots=True)
class Group:
    """Operations that lanes committed together."""

    mask: np.ndarray  # bool[32]
    operations: tuple[Asynchronous, ...]


def cp(instruction: Instruction, builder: Builder) -> Step:
    """`cp.async.*` and `cp.reduce.async.bulk.*`."""
    parts = instruction.parts
    reduces = parts[1] == "reduce"
    rest = parts[2:] if reduces else parts[1:]
    if rest[0] != "async":
        raise refusal(instruction)
    if rest[1] != "bulk":
        return _lane_copies(instruction, builder, rest[1:])
    rest = rest[2:]
    if rest[0] == "commit_group":
        return _commit
    if rest[0] == "wait_group":
        return _wait(instruction, reads_only="read" in rest)
    if rest[0] == "prefetch":
        return lambda w, place: place + 1
    if rest[0] == "tensor":
        return _tensor(instruction, builder, rest[1:], reduces=reduces)
    return _bulk(instruction, builder, rest, reduces=reduces)


# Groups.


def _commit(w: Warp, place: int) -> int:
    mine = tuple(o for o in w.bulk_open if w.mask[o.lane])
    w.bulk_open = [o for o in w.bulk_open if o not in mine]
    w.bulk_groups.append(Group(w.mask, mine))
    return place + 1


def _wait(instruction: Instruction, *, reads_only: bool) -> Step:
    (count,) = instruction.operands
    if not isinstance(count, Immediate):
        raise refusal(instruction)
    left = count.bits

    def run(w: Warp, place: int) -> int:
        groups: list[Group] = [g for g in w.bulk_groups if (g.mask & w.mask).any()]
        done = groups[: len(groups) - left] if left else groups
        for group in done:
            for operation in group.operations:
                if reads_only and operation.read is not None:
                    operation.read()
                else:
                    w.block.machine.finish(operation)
            if not reads_only:
                w.bulk_groups.remove(group)
        observer = w.block.machine.observer
        if observer is not None:
            operations = [operation for group in done for operation in group.operations]
            observer.waited(w, place, operations, reads_only=reads_only)
        return place + 1

    return run


# Tensor copies.


def _tensor(
    instruction: Instruction, builder: Builder, parts: Sequence[str], *, reduces: bool
) -> Step:
    known = {
        "global", "shared::cta", "shared::cluster", "tile", "im2col", "tile::gather4",
        "tile::scatter4", "mbarrier::complete_tx::bytes", "multicast::cluster", "bulk_group",
        "cta_group::1", "cta_group::2", "L2::cache_hint", "im2col_no_offs",
        "add", "min", "max", "inc", "dec", "and", "or", "xor",
    }  # fmt: skip
    if set(parts[1:]) - known:
        raise refusal(instruction)
    if "L2::cache_hint" in parts:
        instruction_operands = instruction.operands[:-1]
    else:
        instruction_operands = instruction.operands
    operands = tuple(instruction_operands)
    if parts[1].startswith("shared"):
        return _tensor_load(instruction, builder, parts, operands)
    operation = next((p for p in parts if p in tensor_copies.REDUCTIONS), "")
    return _tensor_store(instruction, builder, parts, operands, operation if reduces else "")


Boxes = Callable[[TensorMap, Sequence[int], int], Box]


def _boxes(parts: Sequence[str], offsets: Callable[[Warp, int], Sequence[int]] | None) -> Boxes:
    """Return the function that makes the box of a copy of this mode."""
    if "tile::gather4" in parts or "tile::scatter4" in parts:
        return lambda m, c, s: tensor_maps.gather4(m, c[0], c[1:], s)
    return tensor_maps.tiled


def _tensor_load(
    instruction: Instruction, builder: Builder, parts: Sequence[str], operands: tuple[Operand, ...]
) -> Step:
    target, source, barrier, *more = operands
    box_of = _boxes(parts, None)
    im2col = "im2col" in parts
    lanes_offsets = _scalars(builder, more.pop(0), np.dtype("u2")) if im2col and more else None
    multicast = builder.read(more.pop(0), np.dtype("u2")) if "multicast::cluster" in parts else None
    if more:
        raise refusal(instruction)
    to, signal = builder.address(target), builder.address(barrier)
    map_at, coordinates = _map_and_coordinates(instruction, builder, source)

    def run(w: Warp, place: int) -> int:
        addresses, signals, maps = to(w), signal(w), map_at(w)
        for lane in lanes(w):
            tensor_map, base = _map(w, int(maps[lane]))
            at = int(addresses[lane])
            where = [int(v) for v in coordinates(w, lane)]
            if lanes_offsets is not None:
                offsets = [int(v) for v in lanes_offsets(w, lane)]
                box = tensor_maps.im2col(tensor_map, where, offsets, at & _LOW)
            else:
                box = box_of(tensor_map, where, at & _LOW)
            mask = None if multicast is None else int(multicast(w)[lane])
            blocks = _destinations(w, at, mask)
            barriers = _signals(w, int(signals[lane]), mask)
            operation = _load_operation(w, place, lane, tensor_map, base, box, blocks, barriers)
            _announce(w, place, operation)
            w.block.machine.issue(operation)
        return place + 1

    return run


def _announce(w: Warp, place: int, operation: Asynchronous) -> None:
    observer = w.block.machine.observer
    if observer is not None:
        observer.issued(w, place, operation)


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
        region = machine.memory.find(base)
        data = tensor_copies.read_global(
            tensor_map, box, region.data[: region.size], base - region.base
        )
        for block in blocks:
            _put(block.shared, box.shared_address, data)
        for owner, offset in barriers:
            owner.mbarrier(owner.base + offset).complete(box.bytes)

    operation = Asynchronous(complete, "a tensor load", _at(w, place), w.actor, int(lane))
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
    found = [(memory.find(target), target) for target in memory.targets(base)]
    return [
        (region, starts + (target - region.base), box.global_row_bytes) for region, target in found
    ]


def _put(shared: Region, offset: int, data: np.ndarray) -> None:
    if offset < 0 or offset + data.size > shared.size:
        raise Fault(
            "out-of-bounds",
            f"an asynchronous copy of {data.size} bytes to offset {offset} leaves shared memory, "
            f"which has {shared.size} bytes",
        )
    shared.data[offset : offset + data.size] = data


def _at(w: Warp, place: int) -> Instruction:
    instruction: Instruction = w.block.launch.program.kernel.instructions[place]
    return instruction


def _destinations(w: Warp, address: int, mask: int | None) -> list[Block]:
    cluster = w.block.cluster
    if mask is None:
        return [cluster.blocks_by_rank(address >> RANK_SHIFT)]
    return [cluster.blocks_by_rank(rank) for rank in range(16) if mask >> rank & 1]


def _signals(w: Warp, address: int, mask: int | None) -> list[tuple[Block, int]]:
    return [(block, address & _LOW) for block in _destinations(w, address, mask)]


def _tensor_store(
    instruction: Instruction,
    builder: Builder,
    parts: Sequence[str],
    operands: tuple[Operand, ...],
    operation: str,
) -> Step:
    if "bulk_group" not in parts:
        raise refusal(instruction)
    target, source = operands
    box_of = _boxes(parts, None)
    map_at, coordinates = _map_and_coordinates(instruction, builder, target)
    start = builder.address(source)

    def run(w: Warp, place: int) -> int:
        addresses, maps = start(w), map_at(w)
        for lane in lanes(w):
            tensor_map, base = _map(w, int(maps[lane]))
            at = int(addresses[lane])
            where = [int(v) for v in coordinates(w, lane)]
            box = box_of(tensor_map, where, at & _LOW)
            block = w.block.cluster.blocks_by_rank(at >> RANK_SHIFT)
            write = _writer(w, tensor_map, base, box, operation)
            found = _store_operation(w, place, lane, block, box.shared_address, box.bytes, write)
            if w.block.machine.observer is not None:
                found.writes = _rows(w, box, base)
            _group(w, place, found)
        return place + 1

    return run


def _group(w: Warp, place: int, operation: Asynchronous) -> None:
    _announce(w, place, operation)
    if w.block.machine.policy.eagerness >= 1:
        w.block.machine.finish(operation)
    w.bulk_open.append(operation)


def _writer(
    w: Warp, tensor_map: TensorMap, base: int, box: Box, operation: str
) -> Callable[[np.ndarray], None]:
    memory = w.block.machine.memory

    def write(data: np.ndarray) -> None:
        for address in memory.targets(base):
            region = memory.find(address)
            content, offset = region.data[: region.size], address - region.base
            if operation:
                tensor_copies.reduce_global(
                    tensor_map, box, content, offset, data, operation=operation
                )
            else:
                tensor_copies.write_global(tensor_map, box, content, offset, data)

    return write


def _store_operation(
    w: Warp,
    place: int,
    lane: int,
    block: Block,
    offset: int,
    size: int,
    write: Callable[[np.ndarray], None],
) -> Asynchronous:
    """Return a copy out of shared memory, which a wait for reads makes read its source."""
    kept: list[np.ndarray] = []

    def read() -> None:
        if not kept:
            if offset < 0 or offset + size > block.shared.size:
                raise Fault(
                    "out-of-bounds",
                    f"an asynchronous copy of {size} bytes at offset {offset} leaves shared "
                    f"memory, which has {block.shared.size} bytes",
                )
            kept.append(block.shared.data[offset : offset + size].copy())

    def complete() -> None:
        read()
        write(kept[0])

    operation = Asynchronous(complete, "a bulk store", _at(w, place), w.actor, int(lane), read=read)
    operation.reads = [(block.shared, offset, size)]
    return operation


def _map(w: Warp, address: int) -> tuple[TensorMap, int]:
    region, offset = w.block.machine.opaque(w.block.launch, address)
    maps: TensorMaps = w.block.machine.tensor_maps
    return maps.decode(region.data[offset : offset + MAP_BYTES].tobytes())


Scalars = Callable[[Warp, int], list[int]]


def _map_and_coordinates(
    instruction: Instruction, builder: Builder, operand: Operand
) -> tuple[Read, Scalars]:
    if not isinstance(operand, Address) or not operand.coordinates:
        raise refusal(instruction)
    return builder.address(operand), _scalars(builder, Vector(operand.coordinates), _I4)


def _scalars(builder: Builder, operand: Operand, dtype: np.dtype[np.generic]) -> Scalars:
    reads = [builder.read(element, dtype) for element in builder.elements(operand)]
    return lambda w, lane: [int(read(w)[lane]) for read in reads]


# Bulk copies of plain bytes.


def _bulk(
    instruction: Instruction, builder: Builder, parts: Sequence[str], *, reduces: bool
) -> Step:
    spaces = [part.split("::")[0] for part in parts[:2]]
    known = {"bulk_group", "mbarrier::complete_tx::bytes", "L2::cache_hint", "multicast::cluster"}
    if reduces or set(parts[2:]) - known or "multicast::cluster" in parts:
        raise refusal(instruction)
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
                raise Fault("misaligned", "a bulk copy needs addresses and sizes of 16 bytes")
            if signal is None:
                block = w.block.cluster.blocks_by_rank(begin >> RANK_SHIFT)
                write = _byte_writer(w, at, length)
                offset = begin & _LOW
                found = _store_operation(w, place, lane, block, offset, length, write)
                found.writes = _bytes(w, at, length)
                _group(w, place, found)
            else:
                _bulk_load(w, place, lane, spaces, at, begin, length, int(signal(w)[lane]))
        return place + 1

    return run


def _bytes(w: Warp, address: int, size: int) -> list[Range]:
    """Return bytes of global memory, for the observer."""
    memory = w.block.machine.memory
    found = [(memory.find(target, size), target) for target in memory.targets(address)]
    return [(region, target - region.base, size) for region, target in found]


def _byte_writer(w: Warp, address: int, size: int) -> Callable[[np.ndarray], None]:
    memory = w.block.machine.memory

    def write(data: np.ndarray) -> None:
        for target in memory.targets(address):
            region = memory.find(target, size)
            region.data[target - region.base :][:size] = data

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
    owner, offset = cluster.blocks_by_rank(signal >> RANK_SHIFT), signal & _LOW

    def complete() -> None:
        if spaces[1] == "shared":
            source = cluster.blocks_by_rank(begin >> RANK_SHIFT).shared
            first = begin & _LOW
        else:
            source = machine.memory.find(begin, size)
            first = begin - source.base
        _put(target.shared, at & _LOW, source.data[first : first + size].copy())
        owner.mbarrier(signal).complete(size)

    operation = Asynchronous(complete, "a bulk copy", _at(w, place), w.actor, int(lane))
    operation.writes = [(target.shared, at & _LOW, size)]
    operation.signals = [(owner, offset)]
    if spaces[1] == "shared":
        operation.reads = [(cluster.blocks_by_rank(begin >> RANK_SHIFT).shared, begin & _LOW, size)]
    else:
        operation.reads = _bytes(w, begin, size)
    _announce(w, place, operation)
    machine.issue(operation)


# Copies of lanes: cp.async.


def _lane_copies(instruction: Instruction, builder: Builder, parts: Sequence[str]) -> Step:
    if parts[0] == "commit_group":
        return _commit_lanes
    if parts[0] in ("wait_group", "wait_all"):
        (count,) = instruction.operands or (Immediate(0),)
        if not isinstance(count, Immediate):
            raise refusal(instruction)
        return _wait_lanes(count.bits, everything=parts[0] == "wait_all")
    if parts[0] not in ("ca", "cg") or [p.split("::")[0] for p in parts[1:3]] != [
        "shared",
        "global",
    ]:
        raise refusal(instruction)
    target, source, size, *more = instruction.operands
    if (
        not isinstance(size, Immediate)
        or len(more) > 1
        or set(parts[3:]) - {"L2::64B", "L2::128B", "L2::256B"}
    ):
        raise refusal(instruction)
    to, start = builder.address(target), builder.address(source)
    length = builder.read(more[0] if more else size, _U4)
    return _lane_copy(to, start, length, size.bits)


def _lane_copy(to: Read, start: Read, length: Read, size: int) -> Step:
    width = min(size, 8)
    count = size // width

    def run(w: Warp, place: int) -> int:
        targets = list(places(w, "shared", to(w), size))
        begin, lengths = start(w), length(w).astype(np.int64)
        keep = w.mask & (lengths > 0)
        mask = w.mask

        def complete() -> None:
            w_mask, w_full = w.mask, w.full
            w.mask, w.full = keep, bool(keep.all())
            values = [np.zeros(len(begin), np.dtype(f"u{width}")) for _ in range(count)]
            for region, offsets, some in places(w, "global", begin, size):
                found = load(region, offsets, some, width, count)
                values = [v | f for v, f in zip(values, found, strict=True)]
            w.mask, w.full = w_mask, w_full
            for region, offsets, some in targets:
                store(region, offsets, some, width, values)

        if (lengths[mask] != size).any() and (lengths[mask] % size).any():
            raise Fault("cp-async-size", "cp.async with a part of its size is not modelled")
        operation = Asynchronous(complete, "cp.async", _at(w, place), w.actor)
        if w.block.machine.observer is not None:
            operation.writes = [
                (region, offsets if some is None else offsets[some], size)
                for region, offsets, some in targets
            ]
        _announce(w, place, operation)
        w.copies_open.append(operation)
        return place + 1

    return run


def _commit_lanes(w: Warp, place: int) -> int:
    w.copies.append(w.copies_open)
    w.copies_open = []
    return place + 1


def _wait_lanes(left: int, *, everything: bool) -> Step:
    def run(w: Warp, place: int) -> int:
        if everything:
            _commit_lanes(w, place)
        done = w.copies[: len(w.copies) - left] if left else list(w.copies)
        for group in done:
            for operation in group:
                w.block.machine.finish(operation)
        w.copies = w.copies[len(done) :]
        observer = w.block.machine.observer
        if observer is not None:
            observer.waited(w, place, [operation for group in done for operation in group])
        return place + 1

    return run


# Stores and reductions to the shared memory of other blocks.


def st_async(instruction: Instruction, builder: Builder) -> Step:
    """`st.async` and `red.async`: a lane's value goes to a block of the cluster and signals it."""
    parts = instruction.parts
    reduces = parts[0] == "red"
    kind_name = parts[-1]
    vector = [p for p in parts if p in ("v2", "v4")]
    operation = parts[-2] if reduces else ""
    known = {
        "async",
        "relaxed",
        "weak",
        "cluster",
        "shared::cluster",
        "mbarrier::complete_tx::bytes",
    }
    if set(parts[1:-1]) - known - set(vector) - {operation}:
        raise refusal(instruction)
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
                at: int = at & _LOW,
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
                        _put(block.shared, offset, value.view(np.uint8))
                owner.mbarrier(bar).complete(width * len(content))

            what = "red.async" if reduces else "st.async"
            operation_found = Asynchronous(complete, what, _at(w, place), w.actor, int(lane))
            operation_found.writes = [(block.shared, at & _LOW, width * len(content))]
            operation_found.signals = [(owner, bar & _LOW)]
            _announce(w, place, operation_found)
            machine.issue(operation_found)
        return place + 1

    return run


def mapa(instruction: Instruction, builder: Builder) -> Step:
    """`mapa`: the address of the same place in another block of the cluster (9.7.9.22)."""
    kind = instruction.parts[-1]
    space = instruction.parts[1] if len(instruction.parts) == 3 else ""
    if space not in ("", "shared::cluster") or kind not in ("u32", "u64"):
        raise refusal(instruction)
    dtype = dtype_of(kind)
    target, source, rank = instruction.operands
    read, number = builder.read(source, np.dtype("i8")), builder.read(rank, _U4)
    write = builder.write(target, dtype)
    window = 0 if space else SHARED

    def run(w: Warp, place: int) -> int:
        ranks = number(w).astype(np.int64)
        used = ranks[w.mask]
        if (used >= len(w.block.cluster.blocks)).any():
            raise Fault("out-of-bounds", f"mapa asks for block {int(used.max())} of the cluster")
        low = (read(w) - window) & _LOW
        write(w, (low + (ranks << RANK_SHIFT) + window).astype(dtype))
        return place + 1

    return run
