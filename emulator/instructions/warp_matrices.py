"""`ldmatrix`, `stmatrix` and `mma.sync`: matrices in the registers of one warp."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pallasc.emulator.instructions.builder import Builder, Read, Write
from pallasc.emulator.instructions.memory import shared_block
from pallasc.emulator.machine.warp import BLOCKED, LANES, Step, Warp
from pallasc.emulator.ptx.syntax import Instruction, Operand
from pallasc.emulator.tensors import mma as products
from pallasc.emulator.tensors import warp_matrices as moves

_U4 = np.dtype("u4")
_U8 = np.dtype("u8")


def ldmatrix(instruction: Instruction, builder: Builder) -> Step:
    """`ldmatrix.sync`."""
    target, source = instruction.operands
    move, rows = _located(instruction, builder, source)
    writes = _writes(builder, target, _U4)

    def run(w: Warp, place: int) -> int:
        if not w.together("ldmatrix"):
            return BLOCKED
        for write, value in zip(writes, moves.ldmatrix(move, *rows(w, place)), strict=True):
            write(w, value)
        return place + 1

    return run


def stmatrix(instruction: Instruction, builder: Builder) -> Step:
    """`stmatrix.sync`."""
    target, source = instruction.operands
    move, rows = _located(instruction, builder, target)
    reads = _reads(builder, source, _U4)

    def run(w: Warp, place: int) -> int:
        if not w.together("stmatrix"):
            return BLOCKED
        moves.stmatrix(move, *rows(w, place), np.stack([read(w) for read in reads]))
        if w.block.machine.observer is not None:
            w.block.machine.observer.wrote(w)
        return place + 1

    return run


Rows = Callable[[Warp, int], tuple[np.ndarray, np.ndarray]]


def _located(
    instruction: Instruction, builder: Builder, operand: Operand
) -> tuple[moves.MatrixMove, Rows]:
    """Return the form, and a function for the shared memory and the offsets that lanes address."""
    move = moves.parse(instruction.opcode)
    address = builder.address(operand)

    def rows(w: Warp, place: int) -> tuple[np.ndarray, np.ndarray]:
        block, offsets = shared_block(w, address(w))
        observer = w.block.machine.observer
        if observer is not None:
            tell = observer.write if move.is_store else observer.read
            at = moves.row_addresses(move, offsets)
            tell(w, place, block.shared, at, None, moves.ROW_BYTES)
        return block.shared.data[: block.shared.size], offsets

    return move, rows


def mma(instruction: Instruction, builder: Builder) -> Step:
    """`mma.sync`."""
    form = products.parse(instruction.opcode)
    words = _U8 if form.d == "f64" else _U4
    target, *sources = instruction.operands
    writes = _writes(builder, target, words)
    a, b, c = (_reads(builder, source, words) for source in sources)

    def run(w: Warp, place: int) -> int:
        if not w.together("mma.sync"):
            return BLOCKED
        found = products.mma(form, _stack(w, a), _stack(w, b), _stack(w, c))
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
