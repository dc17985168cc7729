"""Tensor memory: allocations, and moves between it and registers (PTX ISA 9.0, 9.7.16).

Stores execute when they are waited for. Loads execute immediately: the assembler makes users of
their registers wait, and Mosaic relies on it.
"""

from __future__ import annotations

import numpy as np

from pallasc.emulator.instructions.builder import Builder, refusal
from pallasc.emulator.instructions.bulk_groups import instruction_at, put
from pallasc.emulator.instructions.synchronisation import one_value
from pallasc.emulator.machine.block import Asynchronous, Block, Cells
from pallasc.emulator.machine.memory import OFFSET_MASK
from pallasc.emulator.machine.warp import BLOCKED, LANES, Step, Warp
from pallasc.emulator.ptx.syntax import Immediate, Instruction, Operand, Register, Vector
from pallasc.emulator.tensors import tcgen05_moves
from pallasc.emulator.tensors.tensor_memory import TensorMemory

_U4 = np.dtype("u4")
_WARPS = 4  # of a warpgroup


def memory_of(block: Block) -> TensorMemory:
    """Return a block's tensor memory."""
    if block.tensor_memory is None:
        poison = int.from_bytes(bytes([block.machine.poison]) * 4, "little")
        block.tensor_memory = TensorMemory(poison)
    return block.tensor_memory


def group_of(instruction: Instruction) -> int:
    """Return the number of blocks that an instruction works on."""
    if "cta_group::1" in instruction.parts:
        return 1
    if "cta_group::2" in instruction.parts:
        return 2
    raise refusal(instruction)


def alloc(instruction: Instruction, builder: Builder) -> Step:
    """`tcgen05.alloc`."""
    group_of(instruction)
    address = builder.address(instruction.operands[0])
    count = builder.read(instruction.operands[1], _U4)

    def run(w: Warp, place: int) -> int:
        if not w.together("tcgen05.alloc"):
            return BLOCKED
        columns = one_value(w, count(w), "the number of columns")
        found = memory_of(w.block).alloc(columns)
        if found is None:
            w.split.waits = f"{columns} free columns of tensor memory"
            return BLOCKED
        where = one_value(w, address(w), "an address") & OFFSET_MASK
        put(w.block.shared, where, np.array([found], _U4).view(np.uint8))
        observer = w.block.machine.observer
        if observer is not None:
            observer.write(w, place, w.block.shared, np.array([where]), None, 4)
        return place + 1

    return run


def dealloc(instruction: Instruction, builder: Builder) -> Step:
    """`tcgen05.dealloc`."""
    group_of(instruction)
    address = builder.read(instruction.operands[0], _U4)
    count = builder.read(instruction.operands[1], _U4)

    def run(w: Warp, place: int) -> int:
        if not w.together("tcgen05.dealloc"):
            return BLOCKED
        columns = one_value(w, count(w), "the number of columns")
        memory_of(w.block).dealloc(one_value(w, address(w), "an address"), columns)
        w.block.machine.changed()
        return place + 1

    return run


def relinquish(instruction: Instruction, builder: Builder) -> Step:
    """`tcgen05.relinquish_alloc_permit`."""

    def run(w: Warp, place: int) -> int:
        if not w.together("tcgen05.relinquish_alloc_permit"):
            return BLOCKED
        memory_of(w.block).relinquish_alloc_permit()
        return place + 1

    return run


def _slots(instruction: Instruction, operand: Operand) -> list[int]:
    elements = operand.elements if isinstance(operand, Vector) else (operand,)
    slots = [element.number for element in elements if isinstance(element, Register)]
    if len(slots) != len(elements):
        raise refusal(instruction)
    return slots


def _split(operands: tuple[Operand, ...]) -> int:
    """Return the immediate after the address, which shape 16x32bx2 has, or 0."""
    return next((o.bits for o in operands if isinstance(o, Immediate)), 0)


def load(instruction: Instruction, builder: Builder) -> Step:
    """`tcgen05.ld`; `.ld.red` also returns the minimum or maximum of a thread's values."""
    move = tcgen05_moves.parse_move(instruction.opcode)
    slots = _slots(instruction, instruction.operands[0])
    reduced = builder.write(instruction.operands[1], _U4) if move.reduction else None
    address = builder.address(instruction.operands[1 if reduced is None else 2])
    split = _split(instruction.operands)

    def run(w: Warp, place: int) -> int:
        if not w.together("tcgen05.ld"):
            return BLOCKED
        where = one_value(w, address(w), "an address in tensor memory")
        memory = memory_of(w.block)
        observer = w.block.machine.observer
        if observer is not None:
            operation = Asynchronous(_nothing, "tcgen05.ld", instruction_at(w, place), w.actor)
            operation.cells_read = _cells(memory, move, where, w.index, split)
            observer.issued(w, place, operation)
            w.tensor_loads.append(operation)
        found = tcgen05_moves.load(memory, where, w.index % _WARPS, move, split)
        for slot, value in zip(slots, found, strict=True):
            w.registers[slot] = value
        if reduced is not None:
            reduced(w, tcgen05_moves.reduce(move, found))
        return place + 1

    return run


def _nothing() -> None:
    """Complete a load, which has already executed."""


def _cells(
    memory: TensorMemory, move: tcgen05_moves.Move, address: int, warp: int, split: int
) -> list[Cells]:
    """Return the cells that a load or store accesses, for the observer."""
    lanes, columns = tcgen05_moves.accessed_cells(move, address, warp % _WARPS, split)
    found: list[Cells] = [(memory, lanes, columns)]
    if move.halves:
        found.append((memory, lanes, columns + 1))
    return found


def store(instruction: Instruction, builder: Builder) -> Step:
    """`tcgen05.st`."""
    move = tcgen05_moves.parse_move(instruction.opcode)
    address = builder.address(instruction.operands[0])
    reads = [builder.read(e, _U4) for e in builder.elements(instruction.operands[-1])]
    split = _split(instruction.operands)

    def run(w: Warp, place: int) -> int:
        if not w.together("tcgen05.st"):
            return BLOCKED
        where = one_value(w, address(w), "an address in tensor memory")
        values = np.stack([np.broadcast_to(read(w), (LANES,)) for read in reads])

        def complete() -> None:
            memory = memory_of(w.block)
            tcgen05_moves.store(memory, where, w.index % _WARPS, move, values, split)

        operation = Asynchronous(complete, "tcgen05.st", instruction_at(w, place), w.actor)
        observer = w.block.machine.observer
        if observer is not None:
            operation.cells_written = _cells(memory_of(w.block), move, where, w.index, split)
            observer.issued(w, place, operation)
        if w.block.machine.policy.eagerness >= 1:
            w.block.machine.finish(operation)
        w.tensor_loads.append(operation)
        return place + 1

    return run


def wait(instruction: Instruction, builder: Builder) -> Step:
    """`tcgen05.wait::ld` and `::st`."""
    what = "tcgen05." + instruction.parts[1].removeprefix("wait::")

    def run(w: Warp, place: int) -> int:
        if not w.together("tcgen05.wait"):
            return BLOCKED
        mine = [o for o in w.tensor_loads if o.what == what]
        w.tensor_loads = [o for o in w.tensor_loads if o.what != what]
        for operation in mine:
            w.block.machine.finish(operation)
        observer = w.block.machine.observer
        if observer is not None:
            observer.waited(w, place, mine)
        return place + 1

    return run
