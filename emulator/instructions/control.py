"""Arithmetic, moves, branches, exits, and data exchange between the lanes of a warp.

The numbers in docstrings are sections of the PTX ISA 9.0.
"""

from __future__ import annotations

import numpy as np

from pallasc.emulator.instructions.barriers import named_lanes
from pallasc.emulator.instructions.builder import (
    PREDICATE,
    Builder,
    DType,
    Read,
    Write,
    broadcast,
    dtype_of,
    immediate,
    refusal,
)
from pallasc.emulator.machine.memory import LOCAL, PARAMETERS, RANK_SHIFT, SHARED, Fault
from pallasc.emulator.machine.warp import BLOCKED, EXITED, LANES, RegistersWait, Step, Warp
from pallasc.emulator.numbers.integers import reads_carry, writes_carry
from pallasc.emulator.numbers.rounding import DTYPES, Arithmetic
from pallasc.emulator.numbers.table import find, reduce_values
from pallasc.emulator.ptx.syntax import Instruction, Label, Operand, Pair, Register, Vector


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


_U4 = np.dtype("u4")
_LANE_NUMBERS = np.arange(LANES)


def bra(instruction: Instruction, builder: Builder) -> Step:
    """`bra`: handles its own guard, because lanes may diverge (9.7.12.2)."""
    (label,) = instruction.operands
    if not isinstance(label, Label):
        raise refusal(instruction)
    target = label.target
    guard = instruction.guard
    if guard is None:
        return lambda w, place: target
    number, negated = guard.number, guard.negated

    def run(w: Warp, place: int) -> int:
        taken = w.registers[number]
        if negated:
            taken = ~taken
        if not w.full:
            taken = taken & w.mask
        count = np.count_nonzero(taken)
        if count == 0:
            return place + 1
        if count == (LANES if w.full else np.count_nonzero(w.mask)):
            return target
        return w.part(taken, target, place + 1)

    return run


def ret(instruction: Instruction, builder: Builder) -> Step:
    """`ret` and `exit` of a kernel (9.7.12.5, 9.7.12.6)."""
    if instruction.guard is None:
        return lambda w, place: EXITED
    number, negated = instruction.guard.number, instruction.guard.negated

    def run(w: Warp, place: int) -> int:
        leaving = ~w.registers[number] if negated else w.registers[number]
        leaving = leaving & w.mask
        if not leaving.any():
            return place + 1
        if (leaving == w.mask).all():
            return EXITED
        return w.part(leaving, len(builder.kernel.instructions), place + 1)

    return run


def trap(instruction: Instruction, builder: Builder) -> Step:
    """`trap` (9.7.19.3)."""

    def run(w: Warp, place: int) -> int:
        raise Fault("trap", "the kernel executes trap", instruction=instruction)

    return run


def mov(instruction: Instruction, builder: Builder) -> Step:
    """`mov`, also to and from vectors of narrower registers (9.7.9.3)."""
    kind = instruction.parts[-1]
    target, source = instruction.operands
    if kind == "b128":
        return _mov_wide(instruction, builder)
    dtype = dtype_of(kind)
    if isinstance(target, Vector):
        return _unpack(target, builder.read(source, dtype), builder, dtype)
    if isinstance(source, Vector):
        return _pack(source, builder.write(target, dtype), builder, dtype)
    read, write = builder.read(source, dtype), builder.write(target, dtype)

    def run(w: Warp, place: int) -> int:
        write(w, read(w))
        return place + 1

    return run


def _unpack(target: Vector, read: Read, builder: Builder, dtype: DType) -> Step:
    part = np.dtype(f"u{dtype.itemsize // len(target.elements)}")
    writes = [builder.write(element, part) for element in target.elements]

    def run(w: Warp, place: int) -> int:
        parts = np.ascontiguousarray(read(w)).view(part).reshape(LANES, -1)
        for number, write in enumerate(writes):
            write(w, np.ascontiguousarray(parts[:, number]))
        return place + 1

    return run


def _pack(source: Vector, write: Write, builder: Builder, dtype: DType) -> Step:
    part = np.dtype(f"u{dtype.itemsize // len(source.elements)}")
    reads = [builder.read(element, part) for element in source.elements]

    def run(w: Warp, place: int) -> int:
        parts = np.stack([read(w) for read in reads], axis=1)
        write(w, np.ascontiguousarray(parts).view(dtype).reshape(LANES))
        return place + 1

    return run


def _mov_wide(instruction: Instruction, builder: Builder) -> Step:
    """`mov.b128`: from a 128-bit register to two 64-bit registers, or back."""
    target, source = instruction.operands
    word = np.dtype("u8")
    if isinstance(target, Vector) and isinstance(source, Register):
        number = source.number
        return _unpack(target, lambda w: w.registers[number], builder, np.dtype("c16"))
    if not isinstance(source, Vector) or not isinstance(target, Register):
        raise refusal(instruction)
    slot = target.number
    reads = [builder.read(element, word) for element in source.elements]

    def pack(w: Warp, place: int) -> int:
        value = np.stack([read(w) for read in reads], axis=1)
        w.registers[slot] = np.where(w.mask[:, None], value, w.registers[slot])
        return place + 1

    return pack


def cvta(instruction: Instruction, builder: Builder) -> Step:
    """`cvta`: converts between an address in a state space and a generic address (9.7.9.20).

    Addresses of global memory and parameters are already generic.
    """
    to_space = instruction.parts[1] == "to"
    space = instruction.parts[2 if to_space else 1].split("::")[0]
    window = {"shared": SHARED, "local": LOCAL}.get(space, 0)
    dtype = dtype_of(instruction.parts[-1])
    target, source = instruction.operands
    read, write = builder.read(source, np.dtype("i8")), builder.write(target, dtype)
    shift = -window if to_space else window

    def run(w: Warp, place: int) -> int:
        value = read(w)
        write(w, (value + shift if shift else value).astype(dtype))
        return place + 1

    return run


def elect(instruction: Instruction, builder: Builder) -> Step:
    """`elect.sync d|p, mask`: elects the lowest active lane (9.7.13.14)."""
    pair, mask = instruction.operands
    if not isinstance(pair, Pair):
        raise refusal(instruction)
    lane, chosen = builder.write(pair.first, _U4), builder.write(pair.second, PREDICATE)
    together = named_lanes("elect.sync", mask, builder)

    def run(w: Warp, place: int) -> int:
        if not together(w):
            return BLOCKED
        leader = int(np.argmax(w.mask))
        lane(w, broadcast(leader, _U4))
        chosen(w, np.equal(_LANE_NUMBERS, leader))
        return place + 1

    return run


def shfl(instruction: Instruction, builder: Builder) -> Step:
    """`shfl.sync.mode.b32 d[|p], a, b, c, membermask` (9.7.9.6)."""
    mode = instruction.parts[2]
    target, source, by, clamp, mask = instruction.operands
    first, second = (target.first, target.second) if isinstance(target, Pair) else (target, None)
    write = builder.write(first, _U4)
    write_inside = None if second is None else builder.write(second, PREDICATE)
    value, distance, limits = (builder.read(o, _U4) for o in (source, by, clamp))
    together = named_lanes("shfl.sync", mask, builder)

    def run(w: Warp, place: int) -> int:
        if not together(w):
            return BLOCKED
        lane, inside = _source_lanes(mode, distance(w), limits(w))
        write(w, value(w)[lane])
        if write_inside is not None:
            write_inside(w, inside)
        return place + 1

    return run


def _source_lanes(mode: str, distance, limits):  # type: ignore[no-untyped-def]
    b = (distance & 31).astype(np.int64)
    segment = ((limits >> 8) & 31).astype(np.int64)
    least = _LANE_NUMBERS & segment
    most = least | ((limits & 31).astype(np.int64) & ~segment)
    if mode == "up":
        lane = _LANE_NUMBERS - b
        inside = lane >= most
    else:
        if mode == "down":
            lane = _LANE_NUMBERS + b
        elif mode == "bfly":
            lane = _LANE_NUMBERS ^ b
        else:
            lane = least | (b & ~segment)
        inside = lane <= most
    return np.where(inside, lane, _LANE_NUMBERS), inside


def vote(instruction: Instruction, builder: Builder) -> Step:
    """`vote.sync.{all,any,uni,ballot}` (9.7.13.10)."""
    mode = instruction.parts[2]
    target, source, mask = instruction.operands
    read = builder.read(source, PREDICATE)
    write = builder.write(target, _U4 if mode == "ballot" else PREDICATE)
    together = named_lanes("vote.sync", mask, builder)

    def run(w: Warp, place: int) -> int:
        if not together(w):
            return BLOCKED
        values = read(w)
        voted = values[w.mask]
        if mode == "ballot":
            bits = int(np.sum((values & w.mask).astype(np.uint64) << _LANE_NUMBERS.astype("u8")))
            write(w, broadcast(bits, _U4))
        else:
            answer = {"all": voted.all(), "any": voted.any()}.get(
                mode, voted.all() or not voted.any()
            )
            write(w, np.full(LANES, bool(answer)))
        return place + 1

    return run


def redux(instruction: Instruction, builder: Builder) -> Step:
    """`redux.sync` (9.7.13.12)."""
    operation, kind = instruction.parts[2], instruction.parts[-1]
    dtype = DTYPES[kind]
    target, source, mask = instruction.operands
    read, write = builder.read(source, dtype), builder.write(target, dtype)
    together = named_lanes("redux.sync", mask, builder)
    nan, absolute = "NaN" in instruction.parts, "abs" in instruction.parts

    def run(w: Warp, place: int) -> int:
        if not together(w):
            return BLOCKED
        values = read(w)[w.mask]
        result = reduce_values(operation, kind, values[:, None], nan=nan, absolute=absolute)
        write(w, np.full(LANES, result, dtype))
        return place + 1

    return run


def activemask(instruction: Instruction, builder: Builder) -> Step:
    """`activemask.b32` (9.7.13.11)."""
    write = builder.write(instruction.operands[0], _U4)

    def run(w: Warp, place: int) -> int:
        bits = int(np.sum(w.mask.astype("u8") << _LANE_NUMBERS.astype("u8")))
        write(w, broadcast(bits, _U4))
        return place + 1

    return run


def nothing(instruction: Instruction, builder: Builder) -> Step:
    """Instructions without effect here: hints, and orderings that the machine guarantees anyway."""
    return lambda w, place: place + 1


def setmaxnreg(instruction: Instruction, builder: Builder) -> Step:
    """`setmaxnreg`: a warp waits until its block has the requested registers (9.7.19.5)."""
    count = immediate(instruction)

    def run(w: Warp, place: int) -> int:
        if not w.block.take_registers(w, count):
            w.split.waits = RegistersWait(w.block, count, w.register_count)
            return BLOCKED
        return place + 1

    return run


def isspacep(instruction: Instruction, builder: Builder) -> Step:
    """`isspacep.space p, a` (9.7.9.19); `.shared` is the block's own shared memory."""
    space = instruction.parts[1]
    target, source = instruction.operands
    low, high = {
        "shared::cluster": (SHARED, SHARED + (1 << 32)),
        "local": (LOCAL, SHARED),
        "param": (PARAMETERS, LOCAL),
        "param::entry": (PARAMETERS, LOCAL),
        "global": (0, PARAMETERS),
    }.get(space, (SHARED, SHARED + (1 << RANK_SHIFT)))
    is_own = space in ("shared", "shared::cta")
    read, write = builder.read(source, np.dtype("i8")), builder.write(target, PREDICATE)

    def run(w: Warp, place: int) -> int:
        value = read(w) - (w.block.base if is_own else 0)
        write(w, (value >= low) & (value < high))
        return place + 1

    return run
