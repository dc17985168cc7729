"""`and`, `or`, `xor`, `not`, `cnot` and `lop3` (PTX ISA 9.0, 9.7.8.1 to 9.7.8.6)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from pallasc.emulator.numbers.arithmetic import Arithmetic, Array
from pallasc.emulator.numbers.mnemonic import PREDICATE, U32, Mnemonic, named

Function = Callable[..., Array]

_LOGIC: dict[str, Any] = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


def build_logic(mnemonic: Mnemonic) -> Arithmetic:
    """Build `and`, `or` and `xor`, also for predicates."""
    types = named("pred", "b16", "b32", "b64")
    dtype = types[mnemonic.type(*types)]
    mnemonic.finish()
    return Arithmetic((dtype, dtype), (dtype,), _LOGIC[mnemonic.base])


def build_not(mnemonic: Mnemonic) -> Arithmetic:
    """Build `not`."""
    types = named("pred", "b16", "b32", "b64")
    dtype = types[mnemonic.type(*types)]
    mnemonic.finish()
    return Arithmetic((dtype,), (dtype,), np.invert)


def build_cnot(mnemonic: Mnemonic) -> Arithmetic:
    """Build `cnot`: 1 for zero, else 0."""
    types = named("b16", "b32", "b64")
    dtype = types[mnemonic.type(*types)]
    mnemonic.finish()
    return Arithmetic((dtype,), (dtype,), lambda a: (a == 0).astype(dtype))


def _of_pair(table: int) -> Function:
    """Return the function of b and c with a 4-bit truth table, indexed by 2b + c."""
    functions: list[Function] = [
        lambda b, c: np.zeros_like(b),
        lambda b, c: ~(b | c),
        lambda b, c: ~b & c,
        lambda b, c: ~b,
        lambda b, c: b & ~c,
        lambda b, c: ~c,
        lambda b, c: b ^ c,
        lambda b, c: ~(b & c),
        lambda b, c: b & c,
        lambda b, c: ~(b ^ c),
        lambda b, c: c.copy(),
        lambda b, c: ~b | c,
        lambda b, c: b.copy(),
        lambda b, c: b | ~c,
        lambda b, c: b | c,
        lambda b, c: ~np.zeros_like(b),
    ]
    return functions[table]


@functools.lru_cache(maxsize=256)
def _of_three(table: int) -> Function:
    """Return the function of a, b and c with an 8-bit truth table, indexed by 4a + 2b + c."""
    without_a, with_a = _of_pair(table & 15), _of_pair(table >> 4)
    if table & 15 == table >> 4:
        return lambda a, b, c: without_a(b, c)
    return lambda a, b, c: (a & with_a(b, c)) | (~a & without_a(b, c))


def _looked_up(a: Array, b: Array, c: Array, table: Array) -> Array:
    return _of_three(int(table.flat[0]) & 255)(a, b, c)


def build_lop3(mnemonic: Mnemonic) -> Arithmetic:
    """Build `lop3`. The table, an immediate, is a fourth source with the same value in all lanes.

    `lop3.or.b32 d|p, a, b, c, table, q` has a second destination, `(d != 0) or q`.
    """
    mnemonic.type("b32")
    joined = mnemonic.choice("or", "and", default="") if mnemonic.parts else ""
    if not joined:
        mnemonic.finish()
        return Arithmetic((U32,) * 4, (U32,), _looked_up)
    mnemonic.destinations = 1
    mnemonic.finish()
    join = _LOGIC[joined]

    def apply(a: Array, b: Array, c: Array, table: Array, q: Array) -> tuple[Array, Array]:
        result = _looked_up(a, b, c, table)
        return result, join(result != 0, q)

    return Arithmetic((U32, U32, U32, U32, PREDICATE), (U32, PREDICATE), apply)


BUILDERS = {
    "and": build_logic,
    "or": build_logic,
    "xor": build_logic,
    "not": build_not,
    "cnot": build_cnot,
    "lop3": build_lop3,
}
KNOWN = [
    ("(and|or|xor|not).(pred|b16|b32|b64)", "exact"),
    ("cnot.(b16|b32|b64)", "exact"),
    ("lop3.b32", "any table"),
    ("lop3.(or|and).b32", "with a second destination"),
]
