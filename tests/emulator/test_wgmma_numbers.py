"""`wgmma`: products and sums against exact ones; which forms there are."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from wgmma_operands import D_TYPES, encode, opcode, random_matrix

from pallasc.emulator.tensors import matrices

FLOATS = [
    ("f32", "f16", "f16"),
    ("f32", "bf16", "bf16"),
    ("f32", "tf32", "tf32"),
    ("f32", "e4m3", "e5m2"),
    ("f16", "f16", "f16"),
    ("f16", "e5m2", "e4m3"),
]


@pytest.mark.parametrize(("d", "a", "b"), FLOATS)
@pytest.mark.parametrize("n", [8, 40, 256])
def test_floats_are_multiplied_exactly_and_rounded_once(d: str, a: str, b: str, n: int):
    w = matrices.parse_wgmma(opcode(n, d, a, b))
    left, right = random_matrix(64, w.k, a), random_matrix(n, w.k, b, seed=1)
    before = np.random.default_rng(2).normal(size=(64, n)).astype(D_TYPES[d])
    wide = left.astype(np.float64), right.astype(np.float64)
    found = matrices.multiply(*wide, w, accumulator=before)
    assert found.dtype == D_TYPES[d]
    negated = matrices.multiply(*wide, w, accumulator=before, negate=True)
    alone = matrices.multiply(*wide, w)
    for row, column in [(0, 0), (5, n - 1), (63, 3)]:
        products = sum(
            Fraction(float(x)) * Fraction(float(y))
            for x, y in zip(wide[0][row], wide[1][column], strict=True)
        )
        old = Fraction(float(before[row, column]))
        for result, wanted in [
            (found, products + old),
            (negated, old - products),
            (alone, products),
        ]:
            error = abs(Fraction(float(result[row, column])) - wanted)
            limit = np.spacing(np.abs(result[row, column])).astype(np.float64) / 2
            assert error <= Fraction(float(limit)) * (1 + Fraction(1, 1000))


@pytest.mark.parametrize(("a", "b"), [*itertools.product(["s8", "u8"], repeat=2)])
@pytest.mark.parametrize("satfinite", [False, True])
def test_integers_are_exact_and_wrap_or_saturate(a: str, b: str, satfinite: bool):
    code = opcode(16, "s32", a, b).replace(".s32.", ".satfinite.s32." if satfinite else ".s32.")
    w = matrices.parse_wgmma(code)
    left, right = random_matrix(64, 32, a), random_matrix(16, 32, b, seed=1)
    limits = np.iinfo(np.int32)
    before = np.zeros((64, 16), np.int32)
    before[0], before[1] = limits.max - 5, limits.min + 5
    found = matrices.multiply(
        left.astype(np.float64), right.astype(np.float64), w, accumulator=before
    )
    overflows = 0
    for row, column in itertools.product(range(64), range(16)):
        exact = int(before[row, column]) + sum(
            int(x) * int(y) for x, y in zip(left[row], right[column], strict=True)
        )
        overflows += not limits.min <= exact <= limits.max
        if satfinite:
            wanted = min(max(exact, limits.min), limits.max)
        else:
            wanted = (exact + (1 << 31)) % (1 << 32) - (1 << 31)
        assert found[row, column] == wanted
    assert overflows


def test_infinities_and_nan_are_floats_like_others():
    w = matrices.parse_wgmma(opcode(8, "f32", "f16"))
    left, right = np.zeros((64, 16)), np.ones((8, 16))
    left[0, 0], left[1, :2] = np.inf, (np.inf, -np.inf)
    left[2, 0], left[3, 0], right[7, 0] = np.nan, 1, 1e39
    found = matrices.multiply(left, right, w)
    assert found[0, 0] == np.inf
    assert np.isnan(found[1:3, 0]).all()
    assert found[3, 7] == np.inf
    assert found[3, 0] == 1


def test_tf32_ignores_the_low_bits():
    w = matrices.parse_wgmma(opcode(8, "f32", "tf32"))
    shared = np.zeros(4096, np.uint8)
    shared.view(np.uint32)[:1024] = 0x3F801FFF
    found = matrices.read_operand(w, shared, encode(0, 128, 256, 0), "b")
    assert (found == 1).all()


def test_every_shape_and_type_of_the_manual_is_known():
    for (d, a, b), n in itertools.product(FLOATS, range(8, 257, 8)):
        w = matrices.parse_wgmma(opcode(n, d, a, b))
        assert (w.n, w.d_registers) == (n, n // 4 if d == "f16" else n // 2)
    for n in (8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256):
        assert matrices.parse_wgmma(opcode(n, "s32", "u8", "s8")).n == n
