"""`cp.async`, `cp.async.bulk` and `cp.async.bulk.tensor` (PTX ISA 9.0, 9.7.9.25).

A prefetch only adds to the count of requested bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from pallasc.emulator.instructions.builder import (
    PREDICATE,
    Builder,
    Read,
    immediate,
    refusal,
)
from pallasc.emulator.instructions.memory import lanes, places
from pallasc.emulator.machine.block import Asynchronous, Block, Range
from pallasc.emulator.machine.memory import (
    OFFSET_MASK,
    PARAMETERS,
    RANK_SHIFT,
    Fault,
    Region,
    TensorMaps,
    load,
    store,
)
from pallasc.emulator.machine.warp import Step, Warp
from pallasc.emulator.numbers.rounding import DTYPES
from pallasc.emulator.numbers.table import combined
from pallasc.emulator.ptx.syntax import Address, Immediate, Instruction, Operand, Register, Vector
from pallasc.emulator.tensors import tensor_maps
from pallasc.emulator.tensors.tensor_maps import Box
from pallasc.specs.artifacts.plan import MAP_BYTES, TensorMap


def commit(kind: str) -> Step:
    """Commit a group: the uncommitted operations of one kind that the active lanes have issued.

    A `cp.async` is one operation of several lanes, so its groups belong to the warp.
    """

    def run(w: Warp, place: int) -> int:
        groups, mask = w.groups[kind], w.mask
        if kind == "cp.async":
            mask = np.ones_like(mask)
        groups.committed.append((mask, [o for o in groups.open if mask[o.lane]]))
        groups.open = [o for o in groups.open if not mask[o.lane]]
        return place + 1

    return run


def wait(kind: str, left: int, *, commits: bool = False, reads_only: bool = False) -> Step:
    """Wait until all groups of the active lanes are complete, except the last `left` groups.

    Args:
        kind: "bulk", "cp.async" or "wgmma".
        left: the number of groups that need not be complete.
        commits: commit a group first.
        reads_only: wait only until the operations have read their sources.
    """
    committing = commit(kind)

    def run(w: Warp, place: int) -> int:
        if commits:
            committing(w, place)
        committed = w.groups[kind].committed
        own = [n for n, (mask, _) in enumerate(committed) if (mask & w.mask).any()]
        done = own[: max(len(own) - left, 0)]
        operations: list[Asynchronous] = [each for n in done for each in committed[n][1]]
        for operation in operations:
            if reads_only and operation.read is not None:
                operation.read()
            else:
                w.block.machine.finish(operation)
        if not reads_only:
            committed[:] = [each for n, each in enumerate(committed) if n not in done]
        w.observer.waited(w, place, operations, reads_only=reads_only)
        return place + 1

    return run


def put(shared: Region, offset: int, data: np.ndarray) -> None:
    """Write bytes to shared memory.

    Raises:
        Fault: the bytes are out of bounds.
    """
    if offset < 0 or offset + data.size > shared.size:
        raise Fault(
            "out-of-bounds",
            f"a write of {data.size} bytes at offset {offset} of shared memory, "
            f"which has {shared.size} bytes",
        )
    shared.data[offset : offset + data.size] = data


def add_to_group(w: Warp, place: int, operation: Asynchronous) -> None:
    """Issue an operation that is later committed to a group."""
    w.observer.issued(w, place, operation)
    if w.block.machine.policy.eagerness >= 1:
        w.block.machine.finish(operation)
    w.groups["bulk"].open.append(operation)


def store_operation(
    w: Warp,
    place: int,
    lane: int,
    block: Block,
    offset: int,
    size: int,
    write: Callable[[np.ndarray], None],
) -> Asynchronous:
    """Return an asynchronous copy out of shared memory.

    The copy reads its source when it completes, or earlier, when a lane waits for the read.
    """
    kept: list[np.ndarray] = []

    def read() -> None:
        if not kept:
            if offset < 0 or offset + size > block.shared.size:
                raise Fault(
                    "out-of-bounds",
                    f"an asynchronous copy of {size} bytes at offset {offset} of shared memory, "
                    f"which has {block.shared.size} bytes",
                )
            kept.append(block.shared.data[offset : offset + size].copy())

    def complete() -> None:
        read()
        write(kept[0])

    reads = [(block.shared, offset, size)]
    text = w.instruction(place)
    return Asynchronous(complete, "a bulk store", text, w.actor, lane, read=read, reads=reads)


_U4 = np.dtype("u4")


def lane_copies(instruction: Instruction, builder: Builder, parts: Sequence[str]) -> Step:
    """`cp.async.{ca,cg}`, `.commit_group`, `.wait_group` and `.wait_all`."""
    if parts[0] == "commit_group":
        return commit("cp.async")
    if parts[0] == "wait_all":
        return wait("cp.async", 0, commits=True)
    if parts[0] == "wait_group":
        return wait("cp.async", immediate(instruction))
    target, source, _, *more = instruction.operands
    size = immediate(instruction, 2)
    to, start = builder.address(target), builder.address(source)
    length = builder.read(more[0] if more else Immediate(size), _U4)
    if more and isinstance(more[0], Register) and more[0].type == "pred":
        ignored = builder.read(more[0], PREDICATE)
        length = lambda w: np.where(ignored(w), 0, size).astype(_U4)  # noqa: E731
    return _lane_copy(to, start, length, size)


def _lane_copy(to: Read, start: Read, length: Read, size: int) -> Step:
    """Copy `size` bytes: the first `length` are read from the source, the rest are zeros."""
    width = min(size, 8)
    count = size // width

    def run(w: Warp, place: int) -> int:
        targets = list(places(w, "shared", to(w), size))
        begin, lengths = start(w), np.minimum(length(w).astype(np.int64), size)
        whole = w.mask & (lengths == size)
        parts = np.flatnonzero(w.mask & (lengths > 0) & (lengths < size)).tolist()
        memory = w.block.machine.memory

        def complete() -> None:
            data = np.zeros((len(begin), size), np.uint8)
            values = data.view(f"u{width}")
            mask, full = w.mask, w.full
            w.mask, w.full = whole, bool(whole.all())
            for region, offsets, some in places(w, "global", begin, size):
                values[:] |= np.stack(load(region, offsets, some, width, count), axis=1)
            w.mask, w.full = mask, full
            for lane in parts:
                read = int(lengths[lane])
                region, offset = memory.find(int(begin[lane]), read)
                data[lane, :read] = region.data[offset:][:read]
            words = [np.ascontiguousarray(values[:, n]) for n in range(count)]
            for region, offsets, some in targets:
                store(region, offsets, some, width, words)

        lane = int(w.mask.argmax())
        operation = Asynchronous(complete, "cp.async", w.instruction(place), w.actor, lane)
        if w.observer.records:
            operation.writes = [
                (region, offsets if some is None else offsets[some], size)
                for region, offsets, some in targets
            ]
        w.observer.issued(w, place, operation)
        w.groups["cp.async"].open.append(operation)
        return place + 1

    return run


_I4 = np.dtype("i4")


def tensor(
    instruction: Instruction, builder: Builder, parts: Sequence[str], *, reduces: bool
) -> Step:
    """`cp.async.bulk.tensor` and `cp.reduce.async.bulk.tensor`, in both directions."""
    operands = instruction.operands[: -1 if "L2::cache_hint" in parts else None]
    if parts[1].startswith("shared"):
        return _tensor_load(instruction, builder, parts, operands)
    operation = next((p for p in parts if p in tensor_maps.REDUCTIONS), "")
    return _tensor_store(instruction, builder, parts, operands, operation if reduces else "")


class Located(NamedTuple):
    """A tensor map, the address of its array, and the box of the array that a lane copies."""

    map: TensorMap
    base: int
    box: Box


def _boxes(
    instruction: Instruction,
    builder: Builder,
    parts: Sequence[str],
    operand: Operand,
    more: list[Operand],
) -> Callable[[Warp, int, int], Located]:
    """Return a function that locates a lane's box, given the box's address in shared memory.

    If the instruction has im2col offsets, `_boxes` removes their operand from `more`.
    """
    if not isinstance(operand, Address):
        raise refusal(instruction)
    map_at = builder.address(operand)
    coordinates = scalars(builder, Vector(operand.coordinates), _I4)
    takes_offsets = "im2col" in parts and bool(more)
    offsets = scalars(builder, more.pop(0), np.dtype("u2")) if takes_offsets else None

    def located(w: Warp, lane: int, shared_address: int) -> Located:
        tensor_map, base = map_of(w, int(map_at(w)[lane]))
        where = coordinates(w, lane)
        if "tile::gather4" in parts or "tile::scatter4" in parts:
            box = tensor_maps.gather4(tensor_map, where[0], where[1:], shared_address)
        elif "im2col" in parts or "im2col_no_offs" in parts:
            inside = () if offsets is None else offsets(w, lane)
            box = tensor_maps.im2col(tensor_map, where, inside, shared_address)
        else:
            box = tensor_maps.tiled(tensor_map, where, shared_address)
        return Located(tensor_map, base, box)

    return located


def _tensor_load(
    instruction: Instruction, builder: Builder, parts: Sequence[str], operands: tuple[Operand, ...]
) -> Step:
    target, source, barrier, *more = operands
    located = _boxes(instruction, builder, parts, source, more)
    multicast = builder.read(more.pop(0), np.dtype("u2")) if "multicast::cluster" in parts else None
    in_pairs = "cta_group::2" in parts
    to, signal = builder.address(target), builder.address(barrier)

    def run(w: Warp, place: int) -> int:
        addresses, signals = to(w), signal(w)
        for lane in lanes(w):
            at = int(addresses[lane])
            found = located(w, lane, at & OFFSET_MASK)
            mask = None if multicast is None else int(multicast(w)[lane])
            blocks = destinations(w, at, mask)
            barriers = _signals(w, int(signals[lane]), mask, blocks, in_pairs=in_pairs)
            operation = _load_operation(w, place, lane, found, blocks, barriers)
            w.block.machine.fetches(w.block, found.box.bytes)
            w.block.machine.issue(w, place, operation)
        return place + 1

    return run


def _load_operation(
    w: Warp,
    place: int,
    lane: int,
    found: Located,
    blocks: Sequence[Block],
    barriers: Sequence[tuple[Block, int]],
) -> Asynchronous:
    memory, box = w.block.machine.memory, found.box

    def complete() -> None:
        region, offset = memory.find(found.base)
        data = tensor_maps.read_global(found.map, box, region.data[: region.size], offset)
        for block in blocks:
            put(block.shared, box.shared_address, data)
        for owner, offset in barriers:
            owner.mbarrier(owner.base + offset).complete(box.bytes)

    operation = Asynchronous(
        complete, "a tensor load", w.instruction(place), w.actor, lane, signals=barriers
    )
    if w.observer.records:
        operation.writes = [(block.shared, box.shared_address, box.bytes) for block in blocks]
        operation.reads = _rows(w, box, found.base)
    return operation


def _rows(w: Warp, box: Box, base: int) -> list[Range]:
    """Return the rows of a box in global memory, for the observer."""
    starts = box.global_rows
    if not box.global_row_bytes or not len(starts):
        return []
    memory = w.block.machine.memory
    found = [memory.find(target) for target in memory.targets(base)]
    return [(region, starts + offset, box.global_row_bytes) for region, offset in found]


def destinations(w: Warp, address: int, mask: int | None) -> list[Block]:
    """Return the block of a shared address, or the blocks in a mask."""
    cluster = w.block.cluster
    if mask is None:
        return [cluster.blocks_by_rank(address >> RANK_SHIFT)]
    return [cluster.blocks_by_rank(rank) for rank in range(16) if mask >> rank & 1]


def _signals(
    w: Warp, address: int, mask: int | None, targets: Sequence[Block], *, in_pairs: bool
) -> list[tuple[Block, int]]:
    """Return the mbarriers that a load signals, one per destination.

    A multicast load signals an mbarrier in each destination block. With `.cta_group::2`, it signals
    one block of each destination's pair: the block whose rank has the parity of the rank in the
    mbarrier's address. Other loads signal the block that this address names: the destination block
    or, with `.cta_group::2`, its peer.
    """
    blocks = targets
    if mask is None:
        blocks = destinations(w, address, None)
        if blocks[0].rank >> in_pairs != targets[0].rank >> in_pairs:
            raise Fault(
                "invalid-operand",
                f"the mbarrier is in block {blocks[0].rank} of the cluster, and the destination in "
                f"block {targets[0].rank}: they may differ only within a pair, with .cta_group::2",
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
    located = _boxes(instruction, builder, parts, target, [])
    start = builder.address(source)

    def run(w: Warp, place: int) -> int:
        addresses = start(w)
        for lane in lanes(w):
            at = int(addresses[lane])
            found = located(w, lane, at & OFFSET_MASK)
            block = w.block.cluster.blocks_by_rank(at >> RANK_SHIFT)
            write, box = _writer(w, found, operation), found.box
            copy = store_operation(w, place, lane, block, box.shared_address, box.bytes, write)
            if w.observer.records:
                copy.writes = _rows(w, box, found.base)
            add_to_group(w, place, copy)
        return place + 1

    return run


def _writer(w: Warp, found: Located, operation: str) -> Callable[[np.ndarray], None]:
    memory = w.block.machine.memory

    def write(data: np.ndarray) -> None:
        for address in memory.targets(found.base):
            region, offset = memory.find(address)
            content = region.data[: region.size]
            if operation:
                tensor_maps.reduce_global(
                    found.map, found.box, content, offset, data, operation=operation
                )
            else:
                tensor_maps.write_global(found.box, content, offset, data)

    return write


def map_of(w: Warp, address: int) -> tuple[TensorMap, int]:
    """Return the tensor map at an address, and the address of its array."""
    region, offset = w.block.launch.parameters, address - PARAMETERS
    if address < PARAMETERS:
        region, offset = w.block.machine.memory.find(address)
    maps: TensorMaps = w.block.machine.tensor_maps
    return maps.decode(region.data[offset : offset + MAP_BYTES].tobytes())


Scalars = Callable[[Warp, int], list[int]]


def scalars(builder: Builder, operand: Operand, dtype: np.dtype[np.generic]) -> Scalars:
    """Return a function that reads the elements of an operand in one lane."""
    reads = [builder.read(element, dtype) for element in builder.elements(operand)]
    return lambda w, lane: [int(read(w)[lane]) for read in reads]


def prefetch(instruction: Instruction, builder: Builder, parts: Sequence[str]) -> Step:
    """`cp.async.bulk.prefetch` to L2: counts the requested bytes, and checks the boxes."""
    source, *more = instruction.operands[: -1 if "L2::cache_hint" in parts else None]
    if parts[0] == "L2":
        return _prefetch_bytes(builder.address(source), builder.read(more[0], _U4))
    located = _boxes(instruction, builder, parts, source, more)

    def run(w: Warp, place: int) -> int:
        for lane in lanes(w):
            found = located(w, lane, 0)
            w.block.machine.fetches(w.block, found.box.bytes)
        return place + 1

    return run


def _prefetch_bytes(start: Read, size: Read) -> Step:
    def run(w: Warp, place: int) -> int:
        addresses, sizes = start(w), size(w)
        for lane in lanes(w):
            begin, length = int(addresses[lane]), int(sizes[lane])
            if (begin | length) % 16:
                raise Fault(
                    "misaligned", "the address or size of a bulk prefetch is not a multiple of 16"
                )
            if length:
                w.block.machine.memory.find(begin, length)
                w.block.machine.fetches(w.block, length)
        return place + 1

    return run


def cp(instruction: Instruction, builder: Builder) -> Step:
    """`cp.async.*` and `cp.reduce.async.bulk.*`."""
    parts = instruction.parts
    reduces = parts[1] == "reduce"
    rest = parts[2:] if reduces else parts[1:]
    if rest[1] != "bulk":
        return lane_copies(instruction, builder, rest[1:])
    rest = rest[2:]
    if rest[0] == "commit_group":
        return commit("bulk")
    if rest[0] == "wait_group":
        return wait("bulk", immediate(instruction), reads_only="read" in rest)
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
                continue  # a copy of no bytes may have any address
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
    dtype = DTYPES[kind]

    def change(old: np.ndarray, new: np.ndarray) -> np.ndarray:
        result: np.ndarray = combined(operation, old.view(dtype), new.view(dtype))
        return result.view(np.uint8)

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

    operation = Asynchronous(complete, "a bulk copy", w.instruction(place), w.actor, lane)
    operation.writes = [(target.shared, at & OFFSET_MASK, size)]
    operation.signals = [(owner, offset)]
    if spaces[1] == "shared":
        source = cluster.blocks_by_rank(begin >> RANK_SHIFT).shared
        operation.reads = [(source, begin & OFFSET_MASK, size)]
    else:
        operation.reads = _bytes(w, begin, size)
        machine.fetches(w.block, size)
    machine.issue(w, place, operation)
