"""`mma.sync`: matrix products of one warp, from registers to registers.

PTX ISA 9.0, 9.7.14.5. A is m × k by rows, B is k × 8 by columns, C and D are m × 8. Registers are
uint32[registers, 32], or uint64[registers, 32] for f64. See `elements.multiply_add` for the
rounding of sums.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from pallasc.emulator.tensors.elements import decode_words, multiply_add
from pallasc.emulator.tensors.fragments import columns_of_b, matrix_of, registers_of, rows_of_a
from pallasc.emulator.tensors.misuse import unsupported

_OPCODE = re.compile(
    r"mma\.sync\.aligned\.m(?P<m>8|16)n8k(?P<k>\d+)\.row\.col(?P<satfinite>\.satfinite)?"
    r"\.(?P<d>\w+)\.(?P<a>\w+)\.(?P<b>\w+)\.(?P<c>\w+)"
)

_FORMS: tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[tuple[int, int], ...]], ...] = (
    (("f16",), ("f16", "f32"), ((16, 8), (16, 16))),
    (("bf16",), ("f32",), ((16, 8), (16, 16))),
    (("tf32",), ("f32",), ((16, 4), (16, 8))),
    (("e4m3", "e5m2"), ("f16", "f32"), ((16, 16), (16, 32))),
    (("s8", "u8"), ("s32",), ((8, 16), (16, 16), (16, 32))),
    (("s4", "u4"), ("s32",), ((8, 32), (16, 32), (16, 64))),
    (("f64",), ("f64",), ((8, 4), (16, 4), (16, 8), (16, 16))),
)
"""Types that A and B may mix, types of C and D, and (m, k)."""

_SHAPES = {
    (a, b, d): shapes
    for operands, accumulators, shapes in _FORMS
    for a, b in itertools.product(operands, repeat=2)
    for d in accumulators
}

_BITS = {"f64": 64, "tf32": 32, "f16": 16, "bf16": 16, "s4": 4, "u4": 4}


@dataclass(frozen=True, slots=True)
class Mma:
    """One form of the instruction: shape, types, and registers per thread of each matrix."""

    m: int
    n: int
    k: int
    d: str
    a: str
    b: str
    a_registers: int
    b_registers: int
    d_registers: int
    satfinite: bool


@lru_cache(maxsize=256)
def parse(opcode: str) -> Mma:
    """Parse the opcode with all its parts.

    Args:
        opcode: such as `mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32`.

    Raises:
        UnsupportedError: the opcode is not a form of `mma.sync`, or is not modeled.
    """
    found = _OPCODE.fullmatch(opcode)
    if found is None or found["c"] != found["d"]:
        raise unsupported(opcode)
    m, k, d, a, b = int(found["m"]), int(found["k"]), found["d"], found["a"], found["b"]
    if (m, k) not in _SHAPES.get((a, b, d), ()) or (found["satfinite"] and d != "s32"):
        raise unsupported(opcode)
    register_bits = 64 if d == "f64" else 32
    bits = _BITS.get(a, 8)
    return Mma(
        m=m,
        n=8,
        k=k,
        d=d,
        a=a,
        b=b,
        a_registers=m * k * bits // (32 * register_bits),
        b_registers=8 * k * bits // (32 * register_bits),
        d_registers=m * 8 // (64 if d == "f16" else 32),
        satfinite=bool(found["satfinite"]),
    )


def mma(form: Mma, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return the registers of D = A B + C.

    Args:
        form: the instruction.
        a: `form.a_registers` registers of 32 lanes.
        b: `form.b_registers` registers.
        c: `form.d_registers` registers.
    """
    row_tiles = form.m // 8
    left = decode_words(rows_of_a(np.asarray(a), row_tiles), form.a)
    right = decode_words(columns_of_b(np.asarray(b)), form.b)
    accumulator = matrix_of(np.asarray(c), form.d, row_tiles)
    product = multiply_add(left, right, accumulator, form.d, saturate=form.satfinite)
    return registers_of(product, row_tiles)
