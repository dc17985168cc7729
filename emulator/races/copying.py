"""Loads whose values are only stored again: a copy of bytes, whatever they are.

A kernel may copy a buffer that it has filled in part, as Mosaic's profiler does; only who computes
with bytes that nothing has written goes wrong.
"""

from __future__ import annotations

from pallasc.emulator.ptx.syntax import (
    Address,
    Instruction,
    Kernel,
    Operand,
    Pair,
    Register,
    Vector,
)

_PASSES = {"mov", "shr", "shl", "cvt", "prmt"}  # they move bits about


def copying_loads(kernel: Kernel) -> dict[Instruction, bool]:
    """Return of each load of the kernel whether its values are only stored again."""
    uses: dict[int, list[Instruction]] = {}
    for instruction in kernel.instructions:
        for number in _sources(instruction):
            uses.setdefault(number, []).append(instruction)
    return {
        instruction: all(_is_stored(n, uses) for n in numbers_of(instruction.operands[0]))
        for instruction in kernel.instructions
        if instruction.parts[0] == "ld"
    }


def _is_stored(register: int, uses: dict[int, list[Instruction]]) -> bool:
    seen = {register}
    left = [register]
    while left:
        for use in uses.get(left.pop(), ()):
            if use.parts[0] == "st":
                continue
            if use.parts[0] not in _PASSES:
                return False
            new = set(numbers_of(use.operands[0])) - seen
            seen |= new
            left += new
    return True


def _sources(instruction: Instruction) -> list[int]:
    operands = instruction.operands
    results = 0 if instruction.parts[0] in ("st", "red", "bra", "ret", "exit") else 1
    found = [number for operand in operands[results:] for number in numbers_of(operand)]
    if instruction.guard is not None:
        found.append(instruction.guard.number)
    return found


def numbers_of(operand: Operand) -> list[int]:
    """Return the numbers of the registers in an operand."""
    if isinstance(operand, Register):
        return [operand.number]
    inner: tuple[Operand, ...] = ()
    if isinstance(operand, Vector):
        inner = operand.elements
    elif isinstance(operand, Pair):
        inner = (operand.first, operand.second)
    elif isinstance(operand, Address):
        inner = (operand.base, *operand.coordinates)
    return [number for element in inner for number in numbers_of(element)]
