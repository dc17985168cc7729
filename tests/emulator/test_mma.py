"""`mma.sync`, with fragments put together by the formulas of the manual, element by element."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pallasc.emulator.tensors import matrices

BITS = {"f64": 64, "tf32": 32, "f16": 16, "bf16": 16, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8,
        "s4": 4, "u4": 4, "f32": 32, "s32": 32}  # fmt: skip
NUMPY_TYPES: dict[str, Any] = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "f64": np.float64,
    "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "f32": np.float32,
    "s32": np.int32,
}  # fmt: skip


def opcode(m: int, k: int, d: str, a: str, b: str, extra: str = "") -> str:
    return f"mma.sync.aligned.m{m}n8k{k}.row.col{extra}.{d}.{a}.{b}.{d}"


def a_place(lane: int, i: int, m: int, k: int, a: str) -> tuple[int, int]:
    """Where element `a_i` of a lane lies, after "Matrix Fragments" of each shape."""
    group, within = lane >> 2, lane % 4
    if m == 8:
        # m8n8k4 of f64, m8n8k16 of 8 bits, m8n8k32 of 4 bits: one register.
        return group, within * (k // 4) + i
    if a == "f64":
        return group + 8 * (i % 2), within + 4 * (i // 2)
    if a == "tf32":
        return group + 8 * (i in (1, 3)), within + (4 if i >= 2 else 0)
    if a in ("f16", "bf16"):
        low = i < 2 or 4 <= i < 6
        return group + (0 if low else 8), within * 2 + (i & 1) + (8 if i >= 4 else 0)
    if BITS[a] == 8:
        low = i < 4 or 8 <= i < 12
        return group + (0 if low else 8), within * 4 + (i & 3) + (16 if i >= 8 else 0)
    low = i < 8 or 16 <= i < 24
    return group + (0 if low else 8), within * 8 + (i & 7) + (32 if i >= 16 else 0)


def b_place(lane: int, i: int, k: int, b: str) -> tuple[int, int]:
    """Row and column of element `b_i` of a lane."""
    group, within = lane >> 2, lane % 4
    if b in ("f64", "tf32"):
        return within + 4 * i, group
    if b in ("f16", "bf16"):
        return within * 2 + (i & 1) + (8 if i >= 2 else 0), group
    if BITS[b] == 8:
        return within * 4 + (i & 3) + (16 if i >= 4 else 0), group
    return within * 8 + (i & 7) + (32 if i >= 8 else 0), group


def c_place(lane: int, i: int) -> tuple[int, int]:
    """Row and column of element `c_i` of a lane."""
    return (lane >> 2) + 8 * (i >> 1), lane % 4 * 2 + (i & 1)


def random_matrix(rows: int, columns: int, dtype: str, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    if dtype[0] in "su" and dtype != "s32":
        low = -(1 << BITS[dtype] - 1) if dtype[0] == "s" else 0
        return random.integers(low, low + (1 << BITS[dtype]), (rows, columns))
    values = random.normal(size=(rows, columns)) * (1000 if dtype == "s32" else 1)
    if dtype == "tf32":
        bits = values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)
        return bits.view(np.float32)
    return values.astype(NUMPY_TYPES[dtype])


def bits_of(value: Any, dtype: str) -> int:
    if dtype[0] in "su" and dtype != "s32":
        return int(value) % (1 << BITS[dtype])
    return int(value.view(f"u{BITS[dtype] // 8}"))


def fragment(matrix: np.ndarray, dtype: str, registers: int, place: Any) -> np.ndarray:
    """Pack elements into the registers of 32 lanes, the lowest bits first."""
    width = 64 if dtype == "f64" else 32
    words = [[0] * 32 for _ in range(registers)]
    per_register = width // BITS[dtype]
    for lane, i in itertools.product(range(32), range(registers * per_register)):
        register, position = divmod(i, per_register)
        words[register][lane] |= bits_of(matrix[place(lane, i)], dtype) << position * BITS[dtype]
    return np.array(words, np.uint64 if width == 64 else np.uint32)


CASES = [
    (m, k, d, a, b)
    for operands, accumulators, shapes in [
        (("f16",), ("f16", "f32"), ((16, 8), (16, 16))),
        (("bf16",), ("f32",), ((16, 8), (16, 16))),
        (("tf32",), ("f32",), ((16, 4), (16, 8))),
        (("e4m3", "e5m2"), ("f16", "f32"), ((16, 16), (16, 32))),
        (("s8", "u8"), ("s32",), ((8, 16), (16, 16), (16, 32))),
        (("s4", "u4"), ("s32",), ((8, 32), (16, 32), (16, 64))),
        (("f64",), ("f64",), ((8, 4), (16, 4), (16, 8), (16, 16))),
    ]
    for a, b in itertools.product(operands, repeat=2)
    for d in accumulators
    for m, k in shapes
]


@pytest.mark.parametrize(("m", "k", "d", "a", "b"), CASES)
def test_a_product_of_fragments(m: int, k: int, d: str, a: str, b: str):
    form = matrices.parse_mma(opcode(m, k, d, a, b))
    left, right = random_matrix(m, k, a, 1), random_matrix(k, 8, b, 2)
    before = random_matrix(m, 8, d, 3)
    lane_bits = 32 * (64 if d == "f64" else 32)
    a_registers, b_registers = m * k * BITS[a] // lane_bits, 8 * k * BITS[b] // lane_bits
    d_registers = m * 8 // (64 if d == "f16" else 32)
    registers = matrices.mma(
        form,
        fragment(left, a, a_registers, lambda lane, i: a_place(lane, i, m, k, a)),
        fragment(right, b, b_registers, lambda lane, i: b_place(lane, i, k, b)),
        fragment(before, d, d_registers, c_place),
    )
    exact = left.astype(np.float64) @ right.astype(np.float64) + before.astype(np.float64)
    rounding = {"s32": 0, "f32": 2.0**-24, "f16": 2.0**-11, "f64": 2.0**-50}[d]
    assert registers.shape == (d_registers, 32)
    width = 64 if d == "f64" else 32
    per_register = width // (16 if d == "f16" else BITS[d])
    seen = set()
    for lane, i in itertools.product(range(32), range(d_registers * per_register)):
        row, column = c_place(lane, i)
        seen.add((row, column))
        register, position = divmod(i, per_register)
        bits = int(registers[register, lane]) >> position * BITS[d] & (1 << BITS[d]) - 1
        found = float(np.array(bits, f"u{BITS[d] // 8}").view(NUMPY_TYPES[d]))
        scale = max(abs(exact[row, column]), 2.0**-8)
        assert abs(found - exact[row, column]) <= rounding * scale * (1 + 1e-6)
    assert len(seen) == m * 8


@pytest.mark.parametrize("satfinite", [False, True])
def test_integers_wrap_or_saturate(satfinite: bool):
    form = matrices.parse_mma(opcode(16, 32, "s32", "u8", "s8", ".satfinite" if satfinite else ""))
    a = np.full((4, 32), 0xFFFFFFFF, np.uint32)
    b = np.full((2, 32), 0x7F7F7F7F, np.uint32)
    c = np.full((4, 32), 0x7FFFFFFF, np.uint32)
    exact = 32 * 255 * 127 + 0x7FFFFFFF
    wanted = 0x7FFFFFFF if satfinite else exact % (1 << 32)
    assert (matrices.mma(form, a, b, c) == wanted).all()
