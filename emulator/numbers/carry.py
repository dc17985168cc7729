"""Multi-word arithmetic, with the carry flag as operand (PTX ISA 9.0, 9.7.2).

The flag is a register that is never named as an operand. Here it is the last source of instructions
that read it, and the second result of those that write it, 0 or 1 in each lane. For subtraction it
is the borrow.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pallasc.emulator.numbers.arithmetic import Arithmetic, Array
from pallasc.emulator.numbers.integers import low_or_high_product
from pallasc.emulator.numbers.mnemonic import INTEGERS, U32, U64, Mnemonic

READERS = ("addc", "subc", "madc")

KNOWN = [
    ("(add|sub).cc.(u32|s32|u64|s64)", "carry out"),
    ("(addc|subc)[.cc].(u32|s32|u64|s64)", "carry in, and out with .cc"),
    ("mad.(lo|hi).cc.(u32|s32|u64|s64)", "carry out"),
    ("madc.(lo|hi)[.cc].(u32|s32|u64|s64)", "carry in, and out with .cc"),
]


def writes_carry(opcode: str) -> bool:
    """Return True if an instruction sets the carry flag."""
    return "cc" in opcode.split(".")


def reads_carry(opcode: str) -> bool:
    """Return True if an instruction reads the carry flag."""
    return opcode.partition(".")[0] in READERS


def _sum(a: Array, b: Array, carry: Array) -> tuple[Array, Array]:
    partial = a + b
    total = partial + carry
    return total, ((partial < a) | (total < partial)).astype(np.uint32)


def _difference(a: Array, b: Array, borrow: Array) -> tuple[Array, Array]:
    partial = a - b
    total = partial - borrow
    return total, ((a < b) | (partial < borrow)).astype(np.uint32)


def build(mnemonic: Mnemonic) -> Arithmetic:
    """Build `add`, `sub` and `mad` with `.cc`, and `addc`, `subc` and `madc`."""
    dtype = INTEGERS[mnemonic.type("u32", "s32", "u64", "s64")]
    word = U32 if dtype.itemsize == 4 else U64
    reads, writes = reads_carry(mnemonic.opcode), mnemonic.flag("cc")
    multiplies = mnemonic.base.startswith("mad")
    part = mnemonic.choice("lo", "hi") if multiplies else ""
    mnemonic.finish()
    combine = _difference if mnemonic.base.startswith("sub") else _sum
    product = low_or_high_product(dtype, part) if multiplies else None

    def apply(*operands: Array) -> Any:
        *values, last = operands
        carry = last.astype(word) if reads else np.zeros(last.shape, word)
        if not reads:
            values.append(last)
        if product is not None:
            first, second, *values = values
            values.insert(0, product(first, second))
        left, right = (value.view(word) for value in values)
        result, out = combine(left, right, carry)
        return (result.view(dtype), out) if writes else result.view(dtype)

    sources = (dtype,) * (3 if multiplies else 2) + ((U32,) if reads else ())
    return Arithmetic(sources, (dtype, U32) if writes else (dtype,), apply)
