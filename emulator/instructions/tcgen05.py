"""`tcgen05`: tensor memory and asynchronous operations of the tensor core (PTX ISA 9.0, 9.7.16).

`tcgen05.st` writes to tensor memory when a warp waits for it. `tcgen05.ld` reads immediately: on a
GPU, the assembler makes instructions that use the loaded registers wait, and Mosaic's kernels rely
on that.

MMAs, copies and commits run when a warp waits for a commit, in the order in which the block issued
them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pallasc.emulator.instructions.barriers import fence, one_value
from pallasc.emulator.instructions.builder import PREDICATE, Builder, Read
from pallasc.emulator.instructions.copies import destinations, put
from pallasc.emulator.machine.block import Asynchronous, Block, Cells, Range
from pallasc.emulator.machine.memory import OFFSET_MASK
from pallasc.emulator.machine.warp import BLOCKED, LANES, Step, Warp
from pallasc.emulator.ptx.syntax import (
    Address,
    Immediate,
    Instruction,
    Operand,
    Vector,
    register_numbers,
)
from pallasc.emulator.tensors import tcgen05, tensor_memory
from pallasc.emulator.tensors.descriptors import CHUNK_BYTES
from pallasc.emulator.tensors.tcgen05_instructions import parse_mma
from pallasc.emulator.tensors.tensor_memory import TensorMemory

_U2, _U4, _U8 = np.dtype("u2"), np.dtype("u4"), np.dtype("u8")
_WARPS = 4  # of a warpgroup


def memory_of(block: Block) -> TensorMemory:
    """Return a block's tensor memory."""
    if block.tensor_memory is None:
        poison = int.from_bytes(bytes([block.machine.poison]) * 4, "little")
        block.tensor_memory = TensorMemory(poison)
    return block.tensor_memory


def alloc(instruction: Instruction, builder: Builder) -> Step:
    """`tcgen05.alloc`."""
    address = builder.address(instruction.operands[0])
    count = builder.read(instruction.operands[1], _U4)

    def run(w: Warp, place: int) -> int:
        columns = one_value(w, count(w), "the number of columns")
        found = memory_of(w.block).alloc(columns)
        if found is None:
            w.split.waits = f"{columns} free columns of tensor memory"
            return BLOCKED
        where = one_value(w, address(w), "an address") & OFFSET_MASK
        put(w.block.shared, where, np.array([found], _U4).view(np.uint8))
        w.observer.accessed(w, place, "write", w.block.shared, np.array([where]), None, 4)
        return place + 1

    return run


def dealloc(instruction: Instruction, builder: Builder) -> Step:
    """`tcgen05.dealloc`."""
    address = builder.read(instruction.operands[0], _U4)
    count = builder.read(instruction.operands[1], _U4)

    def run(w: Warp, place: int) -> int:
        columns = one_value(w, count(w), "the number of columns")
        memory_of(w.block).dealloc(one_value(w, address(w), "an address"), columns)
        w.block.machine.changed()
        return place + 1

    return run


def _relinquish(w: Warp, place: int) -> int:
    memory_of(w.block).relinquish_alloc_permit()
    return place + 1


def _split(operands: tuple[Operand, ...]) -> int:
    """Return the immediate operand, which only shape 16x32bx2 has; 0 for other shapes."""
    return next((o.bits for o in operands if isinstance(o, Immediate)), 0)


def load(instruction: Instruction, builder: Builder) -> Step:
    """`tcgen05.ld`; `.ld.red` also returns the minimum or maximum of a thread's values."""
    move = tensor_memory.parse_move(instruction.opcode)
    slots = register_numbers(instruction.operands[0])
    reduced = builder.write(instruction.operands[1], _U4) if move.reduction else None
    address = builder.address(instruction.operands[1 if reduced is None else 2])
    split = _split(instruction.operands)

    def run(w: Warp, place: int) -> int:
        where = one_value(w, address(w), "an address in tensor memory")
        memory = memory_of(w.block)
        if w.observer.records:
            operation = Asynchronous(_nothing, "tcgen05.ld", w.instruction(place), w.actor)
            operation.cells_read = _cells(memory, move, where, w.index, split)
            w.observer.issued(w, place, operation)
            w.tensor_loads.append(operation)
        found = tensor_memory.load(memory, where, w.index % _WARPS, move, split)
        for slot, value in zip(slots, found, strict=True):
            w.registers[slot] = value
        if reduced is not None:
            reduced(w, tensor_memory.reduce(move, found))
        return place + 1

    return run


def _nothing() -> None:
    """Complete a load, which has already executed."""


def _cells(
    memory: TensorMemory, move: tensor_memory.Move, address: int, warp: int, split: int
) -> list[Cells]:
    """Return the cells that a load or store accesses, for the observer."""
    lanes, columns = tensor_memory.accessed_cells(move, address, warp % _WARPS, split)
    found: list[Cells] = [(memory, lanes, columns)]
    if move.halves:
        found.append((memory, lanes, columns + 1))
    return found


def store(instruction: Instruction, builder: Builder) -> Step:
    """`tcgen05.st`."""
    move = tensor_memory.parse_move(instruction.opcode)
    address = builder.address(instruction.operands[0])
    reads = [builder.read(e, _U4) for e in builder.elements(instruction.operands[-1])]
    split = _split(instruction.operands)

    def run(w: Warp, place: int) -> int:
        where = one_value(w, address(w), "an address in tensor memory")
        values = np.stack([np.broadcast_to(read(w), (LANES,)) for read in reads])

        def complete() -> None:
            memory = memory_of(w.block)
            tensor_memory.store(memory, where, w.index % _WARPS, move, values, split)

        operation = Asynchronous(complete, "tcgen05.st", w.instruction(place), w.actor)
        if w.observer.records:
            operation.cells_written = _cells(memory_of(w.block), move, where, w.index, split)
            w.observer.issued(w, place, operation)
        if w.block.machine.policy.eagerness >= 1:
            w.block.machine.finish(operation)
        w.tensor_loads.append(operation)
        return place + 1

    return run


def wait(instruction: Instruction, builder: Builder) -> Step:
    """`tcgen05.wait::ld` and `::st`."""
    what = "tcgen05." + instruction.parts[1].removeprefix("wait::")

    def run(w: Warp, place: int) -> int:
        mine = [o for o in w.tensor_loads if o.what == what]
        w.tensor_loads = [o for o in w.tensor_loads if o.what != what]
        for operation in mine:
            w.block.machine.finish(operation)
        w.observer.waited(w, place, mine)
        return place + 1

    return run


def build(instruction: Instruction, builder: Builder) -> Step:
    """`tcgen05.*`."""
    kind = instruction.parts[1]
    known: dict[str, Callable[[Instruction, Builder], Step]] = {
        "alloc": alloc,
        "dealloc": dealloc,
        "relinquish_alloc_permit": lambda instruction, builder: _relinquish,
        "ld": load,
        "st": store,
        "wait::ld": wait,
        "wait::st": wait,
        "fence::before_thread_sync": fence,
        "fence::after_thread_sync": fence,
        "mma": _mma,
        "cp": _cp,
        "commit": _commit,
    }
    return known[kind](instruction, builder)


def _blocks(w: Warp, group: int) -> list[Block]:
    """Return the warp's block; for `.cta_group::2`, both blocks of its pair."""
    if group == 1:
        return [w.block]
    first = w.block.rank & ~1
    return [w.block.cluster.blocks_by_rank(first + n) for n in range(2)]


def _cp(instruction: Instruction, builder: Builder) -> Step:
    copy = tcgen05.parse_copy(instruction.opcode)
    address = builder.address(instruction.operands[0])
    source = builder.read(instruction.operands[1], _U8)

    def run(w: Warp, place: int) -> int:
        where = one_value(w, address(w), "an address in tensor memory")
        descriptor = one_value(w, source(w), "a descriptor")
        blocks = _blocks(w, copy.group)

        def complete() -> None:
            tcgen05.execute_copy(
                copy, where, descriptor, _shared(blocks), [memory_of(b) for b in blocks]
            )

        operation = Asynchronous(complete, "tcgen05.cp", w.instruction(place), w.actor)
        if w.observer.records:
            chunks = tcgen05.copied_chunks(copy, descriptor)
            operation.reads = _chunks(blocks, chunks)
            cells = tcgen05.written_cells(copy, where)
            operation.cells_written = [(memory_of(b), *c) for b in blocks for c in cells]
        w.block.machine.issue(w, place, operation, w.block.tensor_work)
        return place + 1

    return run


def _shared(blocks: list[Block]) -> list[np.ndarray]:
    return [block.shared.data[: block.shared.size] for block in blocks]


def _commit(instruction: Instruction, builder: Builder) -> Step:
    address = builder.address(instruction.operands[0])
    multicast = "multicast::cluster" in instruction.parts
    mask = builder.read(instruction.operands[1], _U2) if multicast else None

    def run(w: Warp, place: int) -> int:
        where = one_value(w, address(w), "the address of an mbarrier")
        bits = None if mask is None else one_value(w, mask(w), "the mask of blocks")
        owners = destinations(w, where, bits)

        def complete() -> None:
            for owner in owners:
                owner.mbarrier(owner.base + (where & OFFSET_MASK)).arrive()

        operation = Asynchronous(complete, "tcgen05.commit", w.instruction(place), w.actor)
        operation.signals = [(owner, where & OFFSET_MASK) for owner in owners]
        w.block.machine.issue(w, place, operation, w.block.tensor_work)
        return place + 1

    return run


def _mma(instruction: Instruction, builder: Builder) -> Step:
    kind = parse_mma(instruction.opcode)
    d, a, b, *more = instruction.operands
    in_memory = isinstance(a, Address)
    reads: dict[str, Read] = {
        "d": builder.address(d),
        "a": builder.address(a) if in_memory else builder.read(a, _U8),
        "b": builder.read(b, _U8),
    }
    if kind.sparse:
        reads["metadata"] = builder.address(more.pop(0))
    reads["idesc"] = builder.read(more.pop(0), _U4)
    if kind.scale_vector:
        reads["a_scales"] = builder.address(more.pop(0))
        reads["b_scales"] = builder.address(more.pop(0))
    disabled: list[Read] = []
    if isinstance(more[0], Vector):
        disabled = [builder.read(element, _U4) for element in builder.elements(more.pop(0))]
    reads["enable"] = builder.read(more.pop(0), PREDICATE)
    if more:
        reads["scale"] = builder.read(more.pop(0), _U4)

    def run(w: Warp, place: int) -> int:
        values: dict[str, Any] = {n: one_value(w, read(w), n) for n, read in reads.items()}
        lanes = [one_value(w, read(w), "a mask") for read in disabled]
        operands = tcgen05.Mma(kind=kind, a_in_memory=in_memory, disabled=lanes, **values)
        blocks = _blocks(w, kind.group)
        memories = [memory_of(block) for block in blocks]

        def complete() -> None:
            tcgen05.mma(operands, _shared(blocks), memories)

        operation = Asynchronous(complete, "tcgen05.mma", w.instruction(place), w.actor)
        if w.observer.records:
            operation.reads = _chunks(blocks, tcgen05.operand_chunks(operands))
            results, read = tcgen05.tensor_memory_cells(operands)
            operation.cells_read = [(m, *cells) for m in memories for cells in read]
            operation.cells_written = [(m, *cells) for m in memories for cells in results]
        w.block.machine.issue(w, place, operation, w.block.tensor_work)
        return place + 1

    return run


def _chunks(blocks: list[Block], chunks: np.ndarray) -> list[Range]:
    return [(block.shared, np.asarray(chunks).ravel(), CHUNK_BYTES) for block in blocks]
