"""Arithmetic, logic, comparisons and conversions: `emulator/numbers` on registers."""

from __future__ import annotations

from pallasc.emulator.instructions.builder import Builder, refusal
from pallasc.emulator.machine.warp import Step, Warp
from pallasc.emulator.numbers.carry import reads_carry, writes_carry
from pallasc.emulator.numbers.table import Arithmetic, find
from pallasc.emulator.ptx.syntax import Instruction, Operand, Pair


def build(instruction: Instruction, builder: Builder) -> Step | None:
    """Return the step of an arithmetic instruction; None for any other instruction."""
    operation = _found(instruction)
    if operation is None:
        return None
    results, sources = _split(instruction, operation, builder)
    reads = [builder.read(o, d) for o, d in zip(sources, operation.sources, strict=True)]
    writes = [builder.write(o, d) for o, d in zip(results, operation.results, strict=False)]
    apply = operation.apply
    if len(writes) == 1 and len(operation.results) == 1:
        return _one_result(apply, reads, writes[0])

    def run(w: Warp, place: int) -> int:
        values = apply(*[read(w) for read in reads])
        for write, value in zip(writes, values, strict=False):
            write(w, value)
        return place + 1

    return run


def _found(instruction: Instruction) -> Arithmetic | None:
    opcode, operands = instruction.opcode, instruction.operands
    if operands and isinstance(operands[0], Pair):
        return find(opcode, destinations=2)
    if len(operands) == 4 and opcode.partition(".")[0] in ("min", "max"):
        return find(opcode, sources=3)
    return find(opcode)


def _split(
    instruction: Instruction, operation: Arithmetic, builder: Builder
) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
    destination, *sources = instruction.operands
    if isinstance(destination, Pair):
        results: tuple[Operand, ...] = (destination.first, destination.second)
    else:
        results = (destination,)
    if reads_carry(instruction.opcode):
        sources.append(builder.carry())
    if writes_carry(instruction.opcode):
        results += (builder.carry(),)
    if len(sources) != len(operation.sources) or len(results) > len(operation.results):
        raise refusal(instruction, f"{len(sources)} operands")
    return results, tuple(sources)


def _one_result(apply, reads, write) -> Step:  # type: ignore[no-untyped-def]
    if len(reads) == 1:
        (first,) = reads

        def unary(w: Warp, place: int) -> int:
            write(w, apply(first(w)))
            return place + 1

        return unary
    if len(reads) == 2:
        first, second = reads

        def binary(w: Warp, place: int) -> int:
            write(w, apply(first(w), second(w)))
            return place + 1

        return binary

    def many(w: Warp, place: int) -> int:
        write(w, apply(*[read(w) for read in reads]))
        return place + 1

    return many
