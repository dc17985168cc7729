"""Matrix instructions of warps (`ldmatrix`, `stmatrix`, `mma.sync`) and warpgroups (`wgmma`).

`wgmma` starts an asynchronous matrix product of a warpgroup (PTX ISA 9.0, 9.7.15). Each of the four
warps computes its own 16 rows. The emulator reads the operands when a warp waits for the product;
until then, the accumulators hold NaN. A kernel that overwrites operands or reads results too early
thus gets wrong numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from pallasc.emulator.instructions.barriers import one_value
from pallasc.emulator.instructions.builder import (
    PREDICATE,
    Builder,
    Read,
    Write,
    immediate,
    refusal,
)
from pallasc.emulator.instructions.copies import commit, wait
from pallasc.emulator.instructions.memory import shared_block
from pallasc.emulator.machine.block import AccessKind, Asynchronous
from pallasc.emulator.machine.warp import LANES, Step, Warp
from pallasc.emulator.ptx.syntax import Instruction, Operand, Vector, register_numbers
from pallasc.emulator.tensors import matrices
from pallasc.emulator.tensors.descriptors import CHUNK_BYTES
from pallasc.emulator.tensors.matrices import WARP_ROWS, Product, matrix_of, registers_of

_U4 = np.dtype("u4")
_U8 = np.dtype("u8")


def ldmatrix(instruction: Instruction, builder: Builder) -> Step:
    """`ldmatrix.sync`."""
    target, source = instruction.operands
    move, rows = _located(instruction, builder, source)
    writes = _writes(builder, target, _U4)

    def run(w: Warp, place: int) -> int:
        for write, value in zip(writes, matrices.ldmatrix(move, *rows(w, place)), strict=True):
            write(w, value)
        return place + 1

    return run


def stmatrix(instruction: Instruction, builder: Builder) -> Step:
    """`stmatrix.sync`."""
    target, source = instruction.operands
    move, rows = _located(instruction, builder, target)
    reads = _reads(builder, source, _U4)

    def run(w: Warp, place: int) -> int:
        matrices.stmatrix(move, *rows(w, place), np.stack([read(w) for read in reads]))
        w.observer.wrote(w)
        return place + 1

    return run


Rows = Callable[[Warp, int], tuple[np.ndarray, np.ndarray]]


def _located(
    instruction: Instruction, builder: Builder, operand: Operand
) -> tuple[matrices.MatrixMove, Rows]:
    """Return the parsed opcode, and a function for shared memory and the lanes' offsets in it."""
    move = matrices.parse_move(instruction.opcode)
    address = builder.address(operand)

    def rows(w: Warp, place: int) -> tuple[np.ndarray, np.ndarray]:
        block, offsets = shared_block(w, address(w))
        kind: AccessKind = "write" if move.is_store else "read"
        at = matrices.row_addresses(move, offsets)
        w.observer.accessed(w, place, kind, block.shared, at, None, matrices.ROW_BYTES)
        return block.shared.data[: block.shared.size], offsets

    return move, rows


def mma(instruction: Instruction, builder: Builder) -> Step:
    """`mma.sync`."""
    form = matrices.parse_product(instruction.opcode)
    words = _U8 if form.d == "f64" else _U4
    target, *sources = instruction.operands
    writes = _writes(builder, target, words)
    a, b, c = (_reads(builder, source, words) for source in sources)

    def run(w: Warp, place: int) -> int:
        found = matrices.mma(form, _stack(w, a), _stack(w, b), _stack(w, c))
        for write, value in zip(writes, found, strict=True):
            write(w, value)
        return place + 1

    return run


def _stack(w: Warp, reads: list[Read]) -> np.ndarray:
    return np.stack([np.broadcast_to(read(w), (LANES,)) for read in reads])


def _reads(builder: Builder, operand: Operand, dtype: np.dtype[np.generic]) -> list[Read]:
    return [builder.read(element, dtype) for element in builder.elements(operand)]


def _writes(builder: Builder, operand: Operand, dtype: np.dtype[np.generic]) -> list[Write]:
    return [builder.write(element, dtype) for element in builder.elements(operand)]


_POISON = np.full(LANES, 0x7FFFFFFF, np.uint32)


@dataclass(slots=True)
class Accumulators:
    """Registers of D with pending products: the current sums, and the number of these products."""

    values: list[np.ndarray]
    products: int = 0
    matrix: np.ndarray | None = None  # in place of `values`, after the first product
    dtype: str = ""  # of `matrix`

    def as_matrix(self, dtype: str) -> np.ndarray:
        """Return the values as a matrix of this type."""
        if self.matrix is not None and self.dtype == dtype:
            return self.matrix
        return matrix_of(np.stack([value.view(np.uint32) for value in self.registers()]), dtype)

    def registers(self) -> list[np.ndarray]:
        """Return the values as registers."""
        return self.values if self.matrix is None else list(registers_of(self.matrix))


def build(instruction: Instruction, builder: Builder) -> Step:
    """`wgmma.*`."""
    kind = instruction.parts[1]
    if kind == "wait_group":
        return wait("wgmma", immediate(instruction))
    if kind == "commit_group":
        return commit("wgmma")
    return _fence if kind == "fence" else _multiply(instruction, builder)


def _fence(w: Warp, place: int) -> int:
    w.observer.registers_fenced(w, place)
    return place + 1


def _registers(instruction: Instruction, operand: Operand) -> tuple[int, ...]:
    if not isinstance(operand, Vector):
        raise refusal(instruction)
    return tuple(register_numbers(operand))


def _multiply(instruction: Instruction, builder: Builder) -> Step:
    target, a, b, keeps, *more = instruction.operands
    slots = _registers(instruction, target)
    a_slots = _registers(instruction, a) if isinstance(a, Vector) else ()
    form = matrices.parse_product(instruction.opcode)
    if len(slots) != form.d_registers:
        raise refusal(instruction, f"{len(slots)} accumulators")
    a_at = None if a_slots else builder.read(a, _U8)
    b_at, keep = builder.read(b, _U8), builder.read(keeps, PREDICATE)
    numbers = [immediate(instruction, 4 + n) for n in range(len(more))]
    flags = _immediates(numbers, a_in_registers=bool(a_slots))

    def run(w: Warp, place: int) -> int:
        product = _Product(w, form, slots, a_slots, *flags)
        if a_at is not None:
            product.a = one_value(w, a_at(w), "the descriptor of A")
        product.b = one_value(w, b_at(w), "the descriptor of B")
        product.keep = bool(one_value(w, keep(w), "the predicate of wgmma"))
        operation = Asynchronous(product.finish, "wgmma", w.instruction(place), w.actor)
        product.tell(operation, place)
        product.start()
        w.groups["wgmma"].open.append(operation)
        return place + 1

    return run


def _immediates(numbers: list[int], *, a_in_registers: bool) -> tuple[bool, bool, bool]:
    """Return three flags: negate, A is transposed, B is transposed."""
    if not numbers:
        return False, False, False
    scale_a, scale_b, *transposes = numbers
    if a_in_registers:
        transposes = [0, *transposes]
    a, b = [*transposes, 0, 0][:2]
    return scale_a * scale_b < 0, bool(a), bool(b)


@dataclass(slots=True)
class _Product:
    warp: Warp
    form: Product
    slots: tuple[int, ...]
    a_slots: tuple[int, ...]
    negate: bool
    a_transposed: bool
    b_transposed: bool
    a: int = 0
    b: int = 0
    keep: bool = True

    def start(self) -> None:
        """Save the accumulators; their registers hold NaN until the product is finished."""
        w = self.warp
        held = w.accumulators.get(self.slots)
        if held is None:
            held = Accumulators([w.registers[slot] for slot in self.slots])
            w.accumulators[self.slots] = held
            for slot in self.slots:
                w.registers[slot] = _POISON
        held.products += 1

    def finish(self) -> None:
        """Compute the product; after the last pending product, write the accumulators back."""
        w = self.warp
        held = w.accumulators[self.slots]
        before = held.as_matrix(self.form.d) if self.keep else None
        b = self._operand("b", self.b, transposed=self.b_transposed)
        product = matrices.multiply(self._a(), b, self.form, accumulator=before, negate=self.negate)
        held.matrix, held.dtype = product, self.form.d
        held.products -= 1
        if not held.products:
            del w.accumulators[self.slots]
            for slot, value in zip(self.slots, held.registers(), strict=True):
                w.registers[slot] = value.view(w.registers[slot].dtype)

    def _a(self) -> np.ndarray:
        if self.a_slots:
            values = np.stack([self.warp.registers[slot] for slot in self.a_slots])
            return matrices.a_from_registers(self.form, values.view(np.uint32))
        row = self.warp.index % 4 * WARP_ROWS
        return self._operand("a", self.a, transposed=self.a_transposed, first_row=row)

    def _operand(self, which: str, descriptor: int, **options: Any) -> np.ndarray:
        shared = self.warp.block.shared
        content = shared.data[: shared.size]
        return matrices.read_operand(self.form, content, descriptor, which, **options)

    def tell(self, operation: Asynchronous, place: int) -> None:
        """Notify the observer of the data that the product will read."""
        if self.warp.observer.records:
            shared = self.warp.block.shared
            b = _chunks(self.form, self.b, "b", self.b_transposed, None)
            operation.reads = [(shared, *b)]
            if not self.a_slots:
                row = self.warp.index % 4 * WARP_ROWS
                a = _chunks(self.form, self.a, "a", self.a_transposed, row)
                operation.reads.append((shared, *a))
            operation.registers = (self.slots, self.a_slots)
            self.warp.observer.issued(self.warp, place, operation)


@lru_cache(maxsize=4096)
def _chunks(
    form: Product, descriptor: int, which: str, transposed: bool, row: int | None
) -> tuple[np.ndarray | int, int]:
    """Return the start addresses of an operand's chunks, and their size.

    With `row`, return only the chunks of A's 16 rows from this row on. If all chunks are
    contiguous, they are returned as one.
    """
    starts = np.unique(
        matrices.operand_chunks(form, descriptor, which, transposed=transposed, first_row=row)
    )
    first, size = int(starts[0]), CHUNK_BYTES * len(starts)
    if int(starts[-1]) - first + CHUNK_BYTES == size:
        return first, size
    return starts, CHUNK_BYTES
