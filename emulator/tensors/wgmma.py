"""`wgmma.mma_async`: matrix products of a warpgroup, 128 threads of four consecutive warps.

PTX ISA 9.0, 9.7.15.5.2. A (m × k) comes from registers or shared memory, B (k × n) from shared
memory; D is m × n. Here B is held as [n, k], as listed by `operand_addresses`. See
`elements.multiply_add` for the rounding of sums.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from pallasc.emulator.tensors.descriptors import decode_descriptor, matrix_addresses, read_matrix
from pallasc.emulator.tensors.elements import ELEMENT_BYTES, decode, multiply_add
from pallasc.emulator.tensors.fragments import matrix_of, registers_of, rows_of_a
from pallasc.emulator.tensors.misuse import unsupported

_OPCODE = re.compile(
    r"wgmma\.mma_async\.sync\.aligned\.m64n(?P<n>\d+)k(?P<k>\d+)(?P<satfinite>\.satfinite)?"
    r"\.(?P<d>\w+)\.(?P<a>\w+)\.(?P<b>\w+)"
)
_FLOAT_N = frozenset(range(8, 257, 8))
_INTEGER_N = frozenset((8, 24, *range(16, 257, 16)))
_K_BYTES = 32
_PAIRS = {
    ("f16", "f16"): ("f16", "f32"),
    ("bf16", "bf16"): ("f32",),
    ("tf32", "tf32"): ("f32",),
    **{(a, b): ("f16", "f32") for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")},
    **{(a, b): ("s32",) for a in ("s8", "u8") for b in ("s8", "u8")},
}
"""Types of A and B, and the matching types of D."""


@dataclass(frozen=True, slots=True)
class Wgmma:
    """One form of the instruction: shape, types, and registers per thread.

    `a_registers` is 0 if A is in shared memory.
    """

    m: int
    n: int
    k: int
    d: str
    a: str
    b: str
    d_registers: int
    a_registers: int
    satfinite: bool

    @property
    def takes_scales(self) -> bool:
        """True if immediates that negate A and B follow."""
        return self.d != "s32"

    @property
    def takes_transposes(self) -> bool:
        """True if immediates follow that select the contiguous dimension of an operand.

        There is one for B, preceded by one for A if A is in shared memory.
        """
        return ELEMENT_BYTES[self.a] == 2


@lru_cache(maxsize=256)
def parse(opcode: str, *, a_in_registers: bool = False) -> Wgmma:
    """Parse the opcode with all its parts.

    Args:
        opcode: such as `wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16`.
        a_in_registers: True if the operand A is a list of registers.

    Raises:
        UnsupportedError: the opcode is not a form of `wgmma.mma_async`, or is not modeled.
    """
    found = _OPCODE.fullmatch(opcode)
    if found is None:
        raise unsupported(opcode)
    n, k, d, a, b = int(found["n"]), int(found["k"]), found["d"], found["a"], found["b"]
    if d not in _PAIRS.get((a, b), ()) or k * ELEMENT_BYTES[a] != _K_BYTES:
        raise unsupported(opcode)
    integers = d == "s32"
    if n not in (_INTEGER_N if integers else _FLOAT_N) or (found["satfinite"] and not integers):
        raise unsupported(opcode)
    return Wgmma(
        m=64,
        n=n,
        k=k,
        d=d,
        a=a,
        b=b,
        d_registers=n // 4 if d == "f16" else n // 2,
        a_registers=4 if a_in_registers else 0,
        satfinite=bool(found["satfinite"]),
    )


def operand_addresses(
    w: Wgmma, descriptor: int, which: str, *, transposed: bool = False
) -> np.ndarray:
    """Return int64[rows, k]: the address in shared memory of each element of an operand.

    Args:
        w: the instruction.
        descriptor: its matrix descriptor.
        which: "a", whose rows are the matrix's rows, or "b", whose rows are the matrix's columns.
        transposed: the immediate `imm-trans-a` or `imm-trans-b`: M or N is contiguous.

    Raises:
        UnsupportedError: the descriptor is not modeled, or transposed elements do not have 16 bits.
    """
    rows, dtype = (w.m, w.a) if which == "a" else (w.n, w.b)
    if transposed and not w.takes_transposes:
        raise unsupported(f"wgmma with a transposed operand of type {dtype}")
    return matrix_addresses(
        decode_descriptor(descriptor),
        rows=rows,
        k=w.k,
        element_bytes=ELEMENT_BYTES[dtype],
        transposed=transposed,
    )


def read_operand(
    w: Wgmma, shared: np.ndarray, descriptor: int, which: str, *, transposed: bool = False
) -> np.ndarray:
    """Return float64[rows, k]: an operand from shared memory; arguments as `operand_addresses`.

    Raises:
        OperandError: the operand exceeds shared memory.
        UnsupportedError: as for `operand_addresses`.
    """
    dtype = w.a if which == "a" else w.b
    addresses = operand_addresses(w, descriptor, which, transposed=transposed)
    return decode(read_matrix(shared, addresses, ELEMENT_BYTES[dtype]), dtype)


def a_from_registers(w: Wgmma, registers: np.ndarray) -> np.ndarray:
    """Return float64[64, k]: the operand A from uint32[4, 128]."""
    words = rows_of_a(registers)
    return decode(words.view(f"u{ELEMENT_BYTES[w.a]}"), w.a)


def accumulators_to_matrix(w: Wgmma, registers: np.ndarray) -> np.ndarray:
    """Return D[64, n] in its type from uint32[w.d_registers, 128]."""
    return matrix_of(registers, w.d)


def matrix_to_accumulators(matrix: np.ndarray) -> np.ndarray:
    """Return uint32[registers, 128] from D[64, n], which is float32, float16 or int32."""
    return registers_of(matrix)


def multiply(
    a: np.ndarray,
    b: np.ndarray,
    w: Wgmma,
    *,
    accumulator: np.ndarray | None = None,
    negate: bool = False,
) -> np.ndarray:
    """Return D[m, n] in its type.

    Args:
        a: float64[m, k].
        b: float64[n, k].
        w: the instruction.
        accumulator: the previous D, if `scale-d` is true.
        negate: True if exactly one of `imm-scale-a` and `imm-scale-b` is -1.
    """
    return multiply_add(-a if negate else a, b, accumulator, w.d, saturate=w.satfinite)
