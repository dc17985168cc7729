"""Finds loads that may read unwritten bytes: their values are only stored again, or unused.

A kernel may copy a buffer that is only partly filled, as Mosaic's profiler does. With lane
semantics, Mosaic lowers `ref[...] = value` to a swap, whose load of the old value is dead.
"""

from __future__ import annotations

from collections.abc import Iterator

from pallasc.emulator.numbers.table import BASES
from pallasc.emulator.ptx.syntax import Address, Instruction, Kernel, register_numbers

_LOADS = {"ld", "ldu", "ldmatrix"}
_MOVES = {"mov", "shr", "shl", "cvt", "prmt"}
"""Instructions that move bits: storing their results still copies the loaded bytes."""


def copying_loads(kernel: Kernel) -> dict[Instruction, bool]:
    """Map each load of the kernel to True if nothing is computed from its values."""
    uses: dict[int, list[Instruction]] = {}
    for instruction in kernel.instructions:
        for number in _sources(instruction):
            uses.setdefault(number, []).append(instruction)
    return {
        instruction: all(_is_harmless(n, uses) for n in register_numbers(instruction.operands[0]))
        for instruction in kernel.instructions
        if instruction.parts[0] in _LOADS
    }


def _is_harmless(register: int, uses: dict[int, list[Instruction]]) -> bool:
    """Return True if no result of a computation with the register has an effect."""
    start = (register, False)
    seen, left = {start}, [start]
    while left:
        number, is_computed = left.pop()
        for use in uses.get(number, ()):
            if use.parts[0] in ("st", "stmatrix"):
                if is_computed or number in _deciding(use):
                    return False
                continue
            if not _only_computes(use):
                return False
            computed = is_computed or use.parts[0] not in _MOVES or number in _deciding(use)
            results = {(n, computed) for n in register_numbers(use.operands[0])}
            left += results - seen
            seen |= results
    return True


def _only_computes(instruction: Instruction) -> bool:
    name = instruction.parts[0]
    return name in ("mov", "shfl", "mma") or (name in BASES and "cc" not in instruction.parts)


def _deciding(instruction: Instruction) -> Iterator[int]:
    """Yield the registers that determine an instruction's addresses and guard."""
    if instruction.guard is not None:
        yield instruction.guard.number
    for operand in instruction.operands:
        if isinstance(operand, Address):
            yield from register_numbers(operand)


def _sources(instruction: Instruction) -> list[int]:
    operands = instruction.operands
    results = 0 if instruction.parts[0] in ("st", "stmatrix", "red", "bra", "ret", "exit") else 1
    found = [number for operand in operands[results:] for number in register_numbers(operand)]
    if instruction.guard is not None:
        found.append(instruction.guard.number)
    return found
