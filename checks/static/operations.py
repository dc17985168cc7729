"""What each instruction of integers and predicates makes of symbolic values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from pallasc.checks.static.values import (
    Atoms,
    Constant,
    Value,
    add,
    as_mask,
    both,
    known,
    signed,
    times,
    unsigned,
    where,
)
from pallasc.emulator.ptx.syntax import (
    Address,
    Instruction,
    Operand,
    Pair,
    Register,
    Vector,
)

FLOATS = ("f16", "f32", "f64", "f16x2", "bf16", "bf16x2", "f32x2")


class State(Protocol):
    """The values of a kernel's registers at a place: `evaluate` keeps them."""

    atoms: Atoms
    threads: int
    thread_index: np.ndarray
    changing: set[str]

    def read(self, operand: Operand) -> Value:
        """Return the value of an operand."""

    def operand(self, operand: Operand) -> Any:
        """Return the value of an operand; of an address its sum, of a vector a list."""

    def invert(self, value: Value) -> Value:
        """Return the opposite of a predicate."""

    def set(self, operand: Operand, value: Value) -> None:
        """Set a register."""

    def unknown(self, instruction: Instruction, index: int) -> None:
        """Make results what this instruction gives for these operands."""


def registers_of(operand: Operand) -> list[Register]:
    """Return the registers that an operand consists of."""
    if isinstance(operand, Register):
        return [operand]
    if isinstance(operand, Vector):
        return [each for each in operand.elements if isinstance(each, Register)]
    if isinstance(operand, Pair):
        return [*registers_of(operand.first), *registers_of(operand.second)]
    return []


def _width(opcode: str) -> int:
    digits = opcode.rpartition(".")[2].lstrip("bsu")
    return int(digits) if digits.isdigit() else 32


Handler = Callable[[State, Instruction, int], None]


def _move(state: State, instruction: Instruction, index: int) -> None:
    target, source = instruction.operands[:2]
    if isinstance(source, Vector):
        # {low, high}
        parts = [state.read(each) for each in source.elements]
        if len(parts) == 2 and parts[1].is_known and instruction.opcode == "mov.b64":
            state.set(target, add(parts[0], times(parts[1], 1 << 32)))
            return
        state.set(target, state.atoms.value("result", index))
        return
    if isinstance(target, Vector):
        value = state.read(source)
        for place, each in enumerate(target.elements):
            state.set(each, state.atoms.value("part", place, operands=(value,)))
        return
    state.set(target, state.read(source))


def _convert(state: State, instruction: Instruction, index: int) -> None:
    if any(part in FLOATS or part[:2] in ("e4", "e5", "e2") for part in instruction.parts):
        state.unknown(instruction, index)
        return
    target, source = instruction.operands
    value = state.read(source)
    to, of = instruction.parts[-2:]
    if value.is_known:
        constant = value.constant
        bits = int(of[1:])
        constant = signed(constant, bits) if of[0] == "s" else unsigned(constant, bits)
        value = known(constant)
        if to[0] == "u" and int(to[1:]) < bits:
            value = known(unsigned(constant, int(to[1:])))
    state.set(target, value)


def _cvta(state: State, instruction: Instruction, index: int) -> None:
    state.set(instruction.operands[0], state.read(instruction.operands[1]))


def _add(state: State, instruction: Instruction, index: int) -> None:
    target, a, b = instruction.operands
    if ".cc" in instruction.opcode:
        state.unknown(instruction, index)
        return
    factor = -1 if instruction.opcode.startswith("sub") else 1
    state.set(target, add(state.read(a), state.read(b), factor))


def _multiply(state: State, instruction: Instruction, index: int) -> None:
    target, a, b, *rest = instruction.operands
    first, second = state.read(a), state.read(b)
    third = state.read(rest[0]) if rest else known(0)
    if "hi" in instruction.parts:
        bits = _width(instruction.opcode)
        number = (first.number, second.number)
        if rest or number[0] is None or number[1] is None:
            state.unknown(instruction, index)
            return
        cast = signed if instruction.parts[-1][0] == "s" else unsigned
        state.set(target, known(int(cast(number[0], bits)) * int(cast(number[1], bits)) >> bits))
        return
    if first.is_known and not second.is_known:
        first, second = second, first
    if second.is_known and isinstance(second.constant, int):
        # Wide ones take their sign from the type; a constant of PTX is written as it is meant.
        state.set(target, add(third, times(first, second.constant)))
    elif first.is_known and second.is_known:
        product = both(lambda x, y: x * y, first.constant, second.constant)
        state.set(target, add(third, known(product)))
    else:
        state.unknown(instruction, index)


def _shift_left(state: State, instruction: Instruction, index: int) -> None:
    target, a, b = instruction.operands
    value, by = state.read(a), state.read(b)
    if by.is_known and isinstance(by.constant, int):
        bits = _width(instruction.opcode)
        shifted = times(value, 1 << by.constant) if by.constant < bits else known(0)
        if shifted.is_known:
            shifted = known(unsigned(shifted.constant, bits))
        state.set(target, shifted)
    elif value.is_known and by.is_known:
        state.set(target, known(both(lambda x, y: x << y, value.constant, by.constant)))
    else:
        state.unknown(instruction, index)


_BITWISE: dict[str, Callable[[Any, Any], Any]] = {
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "min": lambda x, y: (
        min(x, y) if isinstance(x, int) and isinstance(y, int) else np.minimum(x, y)
    ),
    "max": lambda x, y: (
        max(x, y) if isinstance(x, int) and isinstance(y, int) else np.maximum(x, y)
    ),
    "shr": lambda x, y: x >> y,
    "div": lambda x, y: x // y,
    "rem": lambda x, y: x % y,
}


def _bitwise(state: State, instruction: Instruction, index: int) -> None:
    target, a, b = instruction.operands[:3]
    first, second = state.read(a), state.read(b)
    name, last = instruction.parts[0], instruction.parts[-1]
    if last == "pred":
        if first.is_known and second.is_known:
            x, y = (as_mask(v.constant, state.threads) for v in (first, second))
            state.set(target, known(_BITWISE[name](x, y)))
        elif name == "and" and 0 in (first.number, second.number):
            state.set(target, known(0))
        else:
            state.unknown(instruction, index)
        return
    if first.is_known and second.is_known:
        bits = _width(instruction.opcode)
        cast = signed if last[0] == "s" else unsigned
        if name in ("div", "rem") and (last[0] == "s" or np.any(second.constant == 0)):
            state.unknown(instruction, index)
            return
        x = cast(first.constant, bits)
        y = second.constant if name == "shr" else cast(second.constant, bits)
        state.set(target, known(both(_BITWISE[name], x, y)))
        return
    if name == "or" and _is_disjoint(state.atoms, first, second):
        state.set(target, add(first, second))
        return
    state.unknown(instruction, index)


def _extract(state: State, instruction: Instruction, index: int) -> None:
    """Take bits out of a number without sign: the shift and the mask that this is."""
    target, source, place, count = instruction.operands
    value, low, length = state.read(source), state.read(place).number, state.read(count).number
    bits = _width(instruction.opcode)
    is_signed = not instruction.parts[-1].startswith("u")
    if is_signed or low is None or length is None or not low < low + length <= bits:
        state.unknown(instruction, index)
    elif value.is_known:
        mask = (1 << length) - 1
        number = unsigned(value.constant, bits)
        state.set(target, known(both(lambda x, y: x >> y & mask, number, low)))
    else:
        shifted = state.atoms.value("shr.u", operands=(value, known(low))) if low else value
        kept = known((1 << length) - 1)
        state.set(target, state.atoms.value("and.b", operands=(shifted, kept)))


def _is_disjoint(atoms: Atoms, a: Value, b: Value) -> bool:
    """Tell whether `a | b` is `a + b`: b is a constant without bits below 14, a has no others."""
    number = b.number
    if number is None or len(a.terms) != 1 or a.terms[0][1] != 1 or not isinstance(a.constant, int):
        return False
    atom = a.terms[0][0]
    if not str(atoms.kind(atom)).startswith("and."):
        return False
    mask = atoms.operands[atom][1].number
    return a.constant == 0 and mask is not None and mask & number == 0


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
    "lo": lambda x, y: x < y,
    "ls": lambda x, y: x <= y,
    "hi": lambda x, y: x > y,
    "hs": lambda x, y: x >= y,
}


def _compare(state: State, instruction: Instruction, index: int) -> None:
    target, a, b, *rest = instruction.operands
    comparison, *_, kind = instruction.parts[1:]
    first, second = state.read(a), state.read(b)
    if kind[0] == "f" or comparison not in _COMPARE or isinstance(target, Pair):
        _opaque_compare(state, instruction, target, first, second, rest)
        return
    if not (first.is_known and second.is_known):
        _opaque_compare(state, instruction, target, first, second, rest)
        return
    bits = _width(instruction.opcode)
    cast = signed if kind[0] == "s" else unsigned
    if comparison in ("eq", "ne"):
        cast = unsigned
    held: Constant = both(
        _COMPARE[comparison], cast(first.constant, bits), cast(second.constant, bits)
    )
    value = known(held)
    if rest:
        value = _joined(state, instruction.parts[2], value, state.read(rest[0]))
    state.set(target, value)


def _joined(state: State, name: str, a: Value, b: Value) -> Value:
    if a.is_known and b.is_known:
        x, y = (as_mask(v.constant, state.threads) for v in (a, b))
        return known(_BITWISE[name](x, y))
    for value in (a, b):
        if name == "and" and value.is_known and not np.any(value.constant):
            return known(0)
    return state.atoms.value("joined", name, operands=(a, b))


def _opaque_compare(
    state: State,
    instruction: Instruction,
    target: Operand,
    a: Value,
    b: Value,
    rest: list[Operand],
) -> None:
    name = f"setp.{instruction.parts[1]}"
    if instruction.parts[1] not in ("eq", "ne"):
        name += f".{instruction.parts[-1]}"  # the order of numbers is that of a type
    value = state.atoms.value(name, operands=(a, b))
    if rest:
        value = _joined(state, instruction.parts[2], value, state.read(rest[0]))
    for register in registers_of(target):
        state.set(register, value)


def _select(state: State, instruction: Instruction, index: int) -> None:
    target, a, b, condition = instruction.operands
    held, first, second = state.read(condition), state.read(a), state.read(b)
    if held.is_known and isinstance(held.constant, int):
        state.set(target, first if held.constant else second)
    elif held.is_known and first.is_known and second.is_known:
        state.set(target, known(where(held.constant, first.constant, second.constant)))
    else:
        state.unknown(instruction, index)


def _shuffle(state: State, instruction: Instruction, index: int) -> None:
    target, source, lane, *_ = instruction.operands
    value, from_lane = state.read(source), state.read(lane).number
    if "idx" in instruction.parts and value.is_known and from_lane is not None:
        constant = value.constant
        if not isinstance(constant, int):
            constant = constant[(state.thread_index & ~31) + from_lane % 32]
        value = known(constant)
        if isinstance(target, Pair):
            state.set(target.first, value)
            state.set(target.second, known(1))
        else:
            state.set(target, value)
        return
    for register in registers_of(target):
        state.set(register, state.atoms.value("result", index, register.name))


def _elect(state: State, instruction: Instruction, index: int) -> None:
    target = instruction.operands[0]
    if isinstance(target, Pair):
        state.set(target.first, state.atoms.value("result", index))
        state.set(target.second, known(state.thread_index % 32 == 0))


def _load(state: State, instruction: Instruction, index: int) -> None:
    target, address = instruction.operands[:2]
    if instruction.opcode.startswith("ld.param") and isinstance(address, Address):
        place = state.operand(address)
        state.set(target, state.atoms.value("parameter", operands=(place,)))
        return
    for register in registers_of(target):
        if register.name in state.changing:
            state.set(register, state.atoms.value("result", index, register.name))


def _invert(state: State, instruction: Instruction, index: int) -> None:
    if instruction.opcode == "not.pred":
        state.set(instruction.operands[0], state.invert(state.read(instruction.operands[1])))
    else:
        state.unknown(instruction, index)


HANDLERS: dict[str, Handler] = {
    "mov": _move, "cvt": _convert, "cvta": _cvta, "add": _add, "sub": _add, "mul": _multiply,
    "mad": _multiply, "shl": _shift_left, "shr": _bitwise, "and": _bitwise, "or": _bitwise,
    "xor": _bitwise, "min": _bitwise, "max": _bitwise, "div": _bitwise, "rem": _bitwise,
    "setp": _compare, "selp": _select, "shfl": _shuffle, "elect": _elect, "ld": _load,
    "not": _invert, "bfe": _extract,
}  # fmt: skip
