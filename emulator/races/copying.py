"""Loads whose values are only stored again: a copy of bytes, whatever they are.

A kernel may copy a buffer that it has filled in part, as Mosaic's profiler does; only who computes
with bytes that nothing has written goes wrong.
"""

from __future__ import annotations

from pallasc.emulator.ptx.syntax import (
    Instruction,
    Kernel,
    register_numbers,
)

_PASSES = {"mov", "shr", "shl", "cvt", "prmt"}  # they move bits about


def copying_loads(kernel: Kernel) -> dict[Instruction, bool]:
    """Return of each load of the kernel whether its values are only stored again."""
    uses: dict[int, list[Instruction]] = {}
    for instruction in kernel.instructions:
        for number in _sources(instruction):
            uses.setdefault(number, []).append(instruction)
    return {
        instruction: all(_is_stored(n, uses) for n in register_numbers(instruction.operands[0]))
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
            new = set(register_numbers(use.operands[0])) - seen
            seen |= new
            left += new
    return True


def _sources(instruction: Instruction) -> list[int]:
    operands = instruction.operands
    results = 0 if instruction.parts[0] in ("st", "red", "bra", "ret", "exit") else 1
    found = [number for operand in operands[results:] for number in register_numbers(operand)]
    if instruction.guard is not None:
        found.append(instruction.guard.number)
    return found
