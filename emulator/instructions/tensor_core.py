"""`tcgen05`: tensor memory, and what the tensor core does on its own (PTX ISA 9.0, 9.7.16).

Products, copies and commits are done in the order in which a block issued them, when a warp waits
for a commit. Stores of tensor memory take place when they are waited for. Loads take place at once:
the assembler keeps whoever uses their registers waiting, and Mosaic counts on it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pallasc.emulator.instructions.builder import PREDICATE, Builder, Read, refusal
from pallasc.emulator.instructions.synchronisation import one_value
from pallasc.emulator.machine.asynchronous import Asynchronous, Cells, Range
from pallasc.emulator.machine.block import Block
from pallasc.emulator.machine.memory import RANK_SHIFT
from pallasc.emulator.machine.warp import BLOCKED, LANES, Step, Warp
from pallasc.emulator.ptx.syntax import (
    Address,
    Immediate,
    Instruction,
    Operand,
    Register,
    Vector,
)
from pallasc.emulator.tensors import tcgen05, tcgen05_copies, tcgen05_moves
from pallasc.emulator.tensors.tcgen05_instructions import MmaKind, parse_mma
from pallasc.emulator.tensors.tensor_memory import TensorMemory

_LOW = (1 << RANK_SHIFT) - 1
_U2, _U4, _U8 = np.dtype("u2"), np.dtype("u4"), np.dtype("u8")
_WARPS = 4  # of a warpgroup
_CHUNK_BYTES = 16


def build(instruction: Instruction, builder: Builder) -> Step:
    """`tcgen05.*`."""
    kind = instruction.parts[1]
    known: dict[str, Callable[[Instruction, Builder], Step]] = {
        "alloc": _alloc,
        "dealloc": _dealloc,
        "relinquish_alloc_permit": _relinquish,
        "ld": _load,
        "st": _store,
        "wait::ld": _wait,
        "wait::st": _wait,
        "fence::before_thread_sync": _fence,
        "fence::after_thread_sync": _fence,
        "mma": _mma,
        "cp": _cp,
        "commit": _commit,
    }
    if kind not in known:
        raise refusal(instruction)
    return known[kind](instruction, builder)


def memory_of(block: Block) -> TensorMemory:
    """Return a block's tensor memory."""
    if block.tensor_memory is None:
        block.tensor_memory = TensorMemory()
    return block.tensor_memory


def _group(instruction: Instruction) -> int:
    """Return how many blocks an instruction works on."""
    if "cta_group::1" in instruction.parts:
        return 1
    if "cta_group::2" in instruction.parts:
        return 2
    raise refusal(instruction)


def _blocks(w: Warp, group: int) -> list[Block]:
    """Return the block of a warp, or both blocks of its pair."""
    if group == 1:
        return [w.block]
    first = w.block.rank & ~1
    return [w.block.cluster.blocks_by_rank(first + n) for n in range(2)]


# Allocation.


def _alloc(instruction: Instruction, builder: Builder) -> Step:
    _group(instruction)
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
        where = one_value(w, address(w), "an address") & _LOW
        observer = w.block.machine.observer
        if observer is not None:
            observer.write(w, place, w.block.shared, np.array([where]), None, 4)
        w.block.shared.views[4][where // 4] = found
        return place + 1

    return run


def _dealloc(instruction: Instruction, builder: Builder) -> Step:
    _group(instruction)
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


def _relinquish(instruction: Instruction, builder: Builder) -> Step:
    def run(w: Warp, place: int) -> int:
        if not w.together("tcgen05.relinquish_alloc_permit"):
            return BLOCKED
        memory_of(w.block).relinquish_alloc_permit()
        return place + 1

    return run


# Registers.


def _slots(instruction: Instruction, operand: Operand) -> list[int]:
    elements = operand.elements if isinstance(operand, Vector) else (operand,)
    slots = [element.number for element in elements if isinstance(element, Register)]
    if len(slots) != len(elements):
        raise refusal(instruction)
    return slots


def _split(operands: tuple[Operand, ...]) -> int:
    """Return the immediate that the shape 16x32bx2 has, or 0."""
    last = operands[-1]
    return last.bits if isinstance(last, Immediate) else 0


def _load(instruction: Instruction, builder: Builder) -> Step:
    move = tcgen05_moves.parse_move(instruction.opcode)
    if move.reduction:
        raise refusal(instruction)
    slots = _slots(instruction, instruction.operands[0])
    address = builder.address(instruction.operands[1])
    split = _split(instruction.operands)

    def run(w: Warp, place: int) -> int:
        if not w.together("tcgen05.ld"):
            return BLOCKED
        where = one_value(w, address(w), "an address in tensor memory")
        memory = memory_of(w.block)
        observer = w.block.machine.observer
        if observer is not None:
            operation = Asynchronous(_nothing, "tcgen05.ld", _at(w, place), w.actor)
            operation.cells_read = _cells(memory, move, where, w.index, split)
            observer.issued(w, place, operation)
            w.tensor_loads.append(operation)
        found = tcgen05_moves.load(memory, where, w.index % _WARPS, move, split)
        for slot, value in zip(slots, found, strict=True):
            w.registers[slot] = value
        return place + 1

    return run


def _nothing() -> None:
    """Complete a load, which has taken place."""


def _cells(
    memory: TensorMemory, move: tcgen05_moves.Move, address: int, warp: int, split: int
) -> list[Cells]:
    """Return the cells that a load or store touches, for the observer."""
    lanes, columns = tcgen05_moves.accessed_cells(move, address, warp % _WARPS, split)
    found: list[Cells] = [(memory, lanes, columns)]
    if move.halves:
        found.append((memory, lanes, columns + 1))
    return found


def _store(instruction: Instruction, builder: Builder) -> Step:
    move = tcgen05_moves.parse_move(instruction.opcode)
    address = builder.address(instruction.operands[0])
    reads = [builder.read(e, _U4) for e in builder.elements(instruction.operands[1])]
    split = _split(instruction.operands)

    def run(w: Warp, place: int) -> int:
        if not w.together("tcgen05.st"):
            return BLOCKED
        where = one_value(w, address(w), "an address in tensor memory")
        values = np.stack([np.broadcast_to(read(w), (LANES,)) for read in reads])

        def complete() -> None:
            memory = memory_of(w.block)
            tcgen05_moves.store(memory, where, w.index % _WARPS, move, values, split)

        operation = Asynchronous(complete, "tcgen05.st", _at(w, place), w.actor)
        observer = w.block.machine.observer
        if observer is not None:
            operation.cells_written = _cells(memory_of(w.block), move, where, w.index, split)
            observer.issued(w, place, operation)
        if w.block.machine.policy.eagerness >= 1:
            w.block.machine.finish(operation)
        w.tensor_loads.append(operation)
        return place + 1

    return run


def _at(w: Warp, place: int) -> Instruction:
    instruction: Instruction = w.block.launch.program.kernel.instructions[place]
    return instruction


def _wait(instruction: Instruction, builder: Builder) -> Step:
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


def _fence(instruction: Instruction, builder: Builder) -> Step:
    def run(w: Warp, place: int) -> int:
        observer = w.block.machine.observer
        if observer is not None:
            observer.fenced(w, place)
        return place + 1

    return run


# What the tensor core does.


def _issue(w: Warp, place: int, operation: Asynchronous) -> None:
    observer = w.block.machine.observer
    if observer is not None:
        observer.issued(w, place, operation)
    if w.block.machine.policy.eagerness >= 1:
        w.block.machine.finish(operation)
    else:
        w.block.tensor_work.append(operation)


def _cp(instruction: Instruction, builder: Builder) -> Step:
    copy = tcgen05_copies.parse_copy(instruction.opcode)
    address = builder.address(instruction.operands[0])
    source = builder.read(instruction.operands[1], _U8)

    def run(w: Warp, place: int) -> int:
        where = one_value(w, address(w), "an address in tensor memory")
        descriptor = one_value(w, source(w), "a descriptor")
        blocks = _blocks(w, copy.group)

        def complete() -> None:
            tcgen05_copies.execute_copy(
                copy, where, descriptor, _shared(blocks), [memory_of(b) for b in blocks]
            )

        operation = Asynchronous(complete, "tcgen05.cp", _at(w, place), w.actor)
        if w.block.machine.observer is not None:
            chunks = tcgen05_copies.copied_chunks(copy, descriptor)
            operation.reads = _chunks(blocks, chunks)
            cells = tcgen05_copies.written_cells(copy, where)
            operation.cells_written = [(memory_of(b), *c) for b in blocks for c in cells]
        _issue(w, place, operation)
        return place + 1

    return run


def _shared(blocks: list[Block]) -> list[np.ndarray]:
    return [block.shared.data[: block.shared.size] for block in blocks]


def _commit(instruction: Instruction, builder: Builder) -> Step:
    known = {"mbarrier::arrive::one", "shared::cluster", "multicast::cluster", "b64"}
    group = _group(instruction)
    if set(instruction.parts[2:]) - known - {f"cta_group::{group}"}:
        raise refusal(instruction)
    address = builder.address(instruction.operands[0])
    multicast = "multicast::cluster" in instruction.parts
    mask = builder.read(instruction.operands[1], _U2) if multicast else None

    def run(w: Warp, place: int) -> int:
        where = one_value(w, address(w), "the address of an mbarrier")
        cluster = w.block.cluster
        if mask is None:
            owners = [cluster.blocks_by_rank(where >> RANK_SHIFT)]
        else:
            bits = one_value(w, mask(w), "the mask of blocks")
            owners = [cluster.blocks_by_rank(r) for r in range(16) if bits >> r & 1]

        def complete() -> None:
            for owner in owners:
                owner.mbarrier(owner.base + (where & _LOW)).arrive()

        operation = Asynchronous(complete, "tcgen05.commit", _at(w, place), w.actor)
        operation.signals = [(owner, where & _LOW) for owner in owners]
        _issue(w, place, operation)
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
    disabled = None
    if isinstance(more[0], Vector):
        disabled = [builder.read(element, _U4) for element in builder.elements(more.pop(0))]
    reads["enable"] = builder.read(more.pop(0), PREDICATE)
    if more:
        reads["scale"] = builder.read(more.pop(0), _U4)
    if more:
        raise refusal(instruction)

    def run(w: Warp, place: int) -> int:
        values = {name: one_value(w, read(w), name) for name, read in reads.items()}
        lanes = [] if disabled is None else [one_value(w, r(w), "a mask") for r in disabled]
        product = _Product(kind, _blocks(w, kind.group), values, lanes, in_memory)
        operation = Asynchronous(product.finish, "tcgen05.mma", _at(w, place), w.actor)
        if w.block.machine.observer is not None:
            product.tell(operation)
        _issue(w, place, operation)
        return place + 1

    return run


class _Product:
    """One product, with the values of its operands."""

    __slots__ = ("blocks", "disabled", "in_memory", "kind", "values")

    def __init__(
        self,
        kind: MmaKind,
        blocks: list[Block],
        values: dict[str, int],
        disabled: list[int],
        in_memory: bool,
    ) -> None:
        self.kind, self.blocks, self.values = kind, blocks, values
        self.disabled, self.in_memory = disabled, in_memory

    def finish(self) -> None:
        """Compute."""
        values = self.values
        tcgen05.mma(
            self.kind,
            values["idesc"],
            values["d"],
            values["a"],
            self.in_memory,
            values["b"],
            _shared(self.blocks),
            [memory_of(block) for block in self.blocks],
            bool(values["enable"]),
            metadata_address=values.get("metadata"),
            a_scales_address=values.get("a_scales"),
            b_scales_address=values.get("b_scales"),
            disable_output_lane=self.disabled,
            scale_input_d=values.get("scale", 0),
        )

    def tell(self, operation: Asynchronous) -> None:
        """Note for the observer what is read and written."""
        values = self.values
        chunks = tcgen05.operand_chunks(
            self.kind, values["idesc"], values["a"], self.in_memory, values["b"]
        )
        operation.reads = _chunks(self.blocks, chunks)
        results, operands = tcgen05.tensor_memory_cells(
            self.kind,
            values["idesc"],
            values["d"],
            a_address=values["a"] if self.in_memory else None,
            metadata_address=values.get("metadata"),
            a_scales_address=values.get("a_scales"),
            b_scales_address=values.get("b_scales"),
        )
        memories = [memory_of(block) for block in self.blocks]
        operation.cells_read = [
            (m, lanes, columns) for m in memories for lanes, columns in operands
        ]
        operation.cells_written = [
            (m, lanes, columns) for m in memories for lanes, columns in results
        ]


def _chunks(blocks: list[Block], chunks: np.ndarray) -> list[Range]:
    return [(block.shared, np.asarray(chunks).ravel(), _CHUNK_BYTES) for block in blocks]
