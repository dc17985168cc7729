"""The PTX integer instructions that decide a thread's control flow, on Python integers.

A register holds its bits as a nonnegative integer; a predicate holds 0 or 1. The semantics follow
the PTX ISA 9.0, 9.7.1, 9.7.6 to 9.7.9.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

Operation = Callable[..., int]

_TYPE = re.compile(r"([usb])(8|16|32|64)")
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lo": lambda a, b: a < b,
    "ls": lambda a, b: a <= b,
    "hi": lambda a, b: a > b,
    "hs": lambda a, b: a >= b,
}
_BOOLEANS: dict[str, Callable[[int, int], int]] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}


@cache
def operation(opcode: str) -> Operation | None:
    """Return a function from an opcode's source operands to its result; None if unsupported.

    The function raises ZeroDivisionError on division by zero.
    """
    name, *rest = opcode.split(".")
    if opcode == "mov.pred":
        return lambda a: int(a != 0)
    if name in ("mov", "cvta"):
        return lambda a: a
    if name == "selp":
        return lambda a, b, p: a if p else b
    if rest == ["pred"]:
        return _BOOLEANS.get(name) or ((lambda a: 1 - a) if name == "not" else None)
    kind = _TYPE.fullmatch(rest[-1]) if rest else None
    if kind is None:
        return None
    bits, signed = int(kind[2]), kind[1] == "s"
    if name == "setp":
        return _comparison(rest[:-1], bits, signed=signed)
    if name == "cvt":
        return _conversion(rest[:-1], bits, signed=signed)
    if name in ("mul", "mad"):
        return _product(name, rest[:-1], bits, signed=signed)
    return _plain(name, bits, signed=signed) if len(rest) == 1 else None


def _value(bits: int, *, signed: bool) -> Callable[[int], int]:
    """Return a function that reads the low `bits` of a register as a number."""
    mask, half = (1 << bits) - 1, 1 << (bits - 1)
    if signed:
        return lambda a: ((a & mask) ^ half) - half
    return lambda a: a & mask


def _plain(name: str, bits: int, *, signed: bool) -> Operation | None:
    mask, value = (1 << bits) - 1, _value(bits, signed=signed)
    table: dict[str, Operation] = {
        "add": lambda a, b: (a + b) & mask,
        "sub": lambda a, b: (a - b) & mask,
        "neg": lambda a: -a & mask,
        "not": lambda a: ~a & mask,
        "abs": lambda a: abs(value(a)) & mask,
        "and": lambda a, b: a & b & mask,
        "or": lambda a, b: (a | b) & mask,
        "xor": lambda a, b: (a ^ b) & mask,
        "min": lambda a, b: min(value(a), value(b)) & mask,
        "max": lambda a, b: max(value(a), value(b)) & mask,
        "shl": lambda a, b: (a << b) & mask if b < bits else 0,
        "shr": lambda a, b: (value(a) >> min(b, bits)) & mask,
        "div": lambda a, b: _quotient(value(a), value(b)) & mask,
        "rem": lambda a, b: (value(a) - value(b) * _quotient(value(a), value(b))) & mask,
    }
    return table.get(name)


def _quotient(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _product(name: str, modes: list[str], bits: int, *, signed: bool) -> Operation | None:
    value = _value(bits, signed=signed)
    if modes not in (["lo"], ["hi"], ["wide"]):
        return None
    shift = bits if modes == ["hi"] else 0
    mask = (1 << (2 * bits if modes == ["wide"] else bits)) - 1
    if name == "mul":
        return lambda a, b: (value(a) * value(b) >> shift) & mask
    return lambda a, b, c: ((value(a) * value(b) >> shift) + c) & mask


def _comparison(modes: list[str], bits: int, *, signed: bool) -> Operation | None:
    compare, value = _COMPARISONS.get(modes[0]) if modes else None, _value(bits, signed=signed)
    if compare is None:
        return None
    if len(modes) == 1:
        return lambda a, b: int(compare(value(a), value(b)))
    combine = _BOOLEANS.get(modes[1])
    if combine is None:
        return None
    return lambda a, b, p: combine(int(compare(value(a), value(b))), p)


def _conversion(modes: list[str], bits: int, *, signed: bool) -> Operation | None:
    """Return a conversion from integers of `bits` to another type."""
    target = _TYPE.fullmatch(modes[0]) if len(modes) == 1 else None
    if target is None:
        return None
    mask, value = (1 << int(target[2])) - 1, _value(bits, signed=signed)
    return lambda a: value(a) & mask
