"""Comparisons and selections against Python's own."""

from __future__ import annotations

import operator
import random

import pytest
from number_vectors import (
    BF16,
    F16,
    F32,
    F64,
    FORMATS,
    ORDERED,
    Ieee,
    bits,
    columns,
    compared,
    flush,
    raw,
    run,
    tuples,
)

JOINS = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}


FLOATS = [*ORDERED, *(f"{name}u" for name in ORDERED), "num", "nan"]


@pytest.mark.parametrize("name", list(FORMATS))
@pytest.mark.parametrize("comparison", FLOATS)
def test_floats_are_compared_with_nan(name: str, comparison: str):
    form = FORMATS[name]
    operands = tuples(form, 2, count=200)
    expected = [compared(comparison, form.decode(a), form.decode(b)) for a, b in operands]
    assert run(f"setp.{comparison}.{name}", *columns(operands, form.dtype)).tolist() == expected


def numbers(width: int) -> list[int]:
    generator = random.Random(1)
    top = 1 << (width - 1)
    return [0, 1, top - 1, top, top + 1, 2 * top - 1] + [
        generator.getrandbits(width) for _ in range(20)
    ]


@pytest.mark.parametrize("width", [16, 32, 64])
def test_integers_are_compared_by_their_type(width: int):
    pairs = [(a, b) for a in numbers(width) for b in numbers(width)]
    a, b = (list(column) for column in zip(*pairs, strict=True))
    half = 1 << (width - 1)
    for name, function in ORDERED.items():
        unsigned = [function(x, y) for x, y in pairs]
        signed = [function((x ^ half) - half, (y ^ half) - half) for x, y in pairs]
        assert run(f"setp.{name}.u{width}", a, b).tolist() == unsigned
        assert run(f"setp.{name}.s{width}", a, b).tolist() == signed
        if name in ("eq", "ne"):
            assert run(f"setp.{name}.b{width}", a, b).tolist() == unsigned
    for alias, name in (("lo", "lt"), ("ls", "le"), ("hi", "gt"), ("hs", "ge")):
        expected = [ORDERED[name](x, y) for x, y in pairs]
        assert run(f"setp.{alias}.u{width}", a, b).tolist() == expected


A, B, C = [1, 1, 2, 2], [1, 1, 1, 1], [0, 1, 0, 1]


@pytest.mark.parametrize("join", list(JOINS))
def test_a_predicate_is_joined(join: str):
    truth = [1, 1, 0, 0]
    expected = [JOINS[join](t, c) for t, c in zip(truth, C, strict=True)]
    inverse = [JOINS[join](1 - t, c) for t, c in zip(truth, C, strict=True)]
    assert raw(run(f"setp.eq.{join}.s32", A, B, C)) == expected
    p, q = run(f"setp.eq.{join}.s32", A, B, C, destinations=2)
    assert (raw(p), raw(q)) == (expected, inverse)
    one, half = 0x3C00, 0x3800
    p, q = run(f"setp.gt.{join}.f16x2", [one | half << 16] * 2, [half | one << 16] * 2, [0, 1])
    assert raw(p) == [JOINS[join](1, 0), JOINS[join](1, 1)]
    assert raw(q) == [JOINS[join](0, 0), JOINS[join](0, 1)]


def test_a_second_destination_is_the_inverse():
    p, q = run("setp.lt.f32", bits([0x3F800000, 0x7FFFFFFF], F32.dtype), [0, 0], destinations=2)
    assert (raw(p), raw(q)) == ([0, 0], [1, 1])


def test_flushed_comparisons_see_zeros():
    operands = tuples(F32, 2, count=50)
    expected = [
        compared("gt", F32.decode(flush(a, F32)), F32.decode(flush(b, F32))) for a, b in operands
    ]
    assert run("setp.gt.ftz.f32", *columns(operands, F32.dtype)).tolist() == expected


@pytest.mark.parametrize(("name", "form"), [("f16x2", F16), ("bf16x2", BF16)])
def test_packed_comparisons_have_one_result_a_half(name: str, form: Ieee):
    low, high = tuples(form, 2), tuples(form, 2, seed=12)
    a, b = (
        [x | y << 16 for x, y in zip(lows, highs, strict=True)]
        for lows, highs in zip(zip(*low, strict=True), zip(*high, strict=True), strict=True)
    )
    p, q = run(f"setp.leu.{name}", a, b)
    assert p.tolist() == [compared("leu", *map(form.decode, pair)) for pair in low]
    assert q.tolist() == [compared("leu", *map(form.decode, pair)) for pair in high]
    one = form.bias << form.mantissa
    expected = [
        one * compared("lt", *map(form.decode, x))
        | one * compared("lt", *map(form.decode, y)) << 16
        for x, y in zip(low, high, strict=True)
    ]
    assert raw(run(f"set.lt.{name}.{name}", a, b)) == expected


def test_set_writes_all_bits_or_one():
    assert raw(run("set.eq.u32.s32", [1, 2], [1, 1])) == [0xFFFFFFFF, 0]
    assert run("set.gt.s32.f32", bits([0x40000000, 0], F32.dtype), [0, 0]).tolist() == [-1, 0]
    assert run("set.lt.f32.u16", [1, 2], [2, 1]).tolist() == [1.0, 0.0]
    assert raw(run("set.ne.and.u32.u64", [1, 1], [2, 2], [0, 1])) == [0, 0xFFFFFFFF]
    assert raw(run("set.ne.bf16.bf16", [0x3F80, 0x7FC0], [0, 0])) == [0x3F80, 0]
    assert raw(run("set.neu.u16.f16", [0x3C00, 0x7E00], [0x3C00, 0])) == [0, 0xFFFF]
    assert raw(run("set.eq.u32.f16x2", [0x00010000], [0])) == [0xFFFF]
    assert run("set.gt.s32.bf16x2", [0x3F800000], [0]).tolist() == [-65536]
    assert raw(run("set.hi.f16.u64", [2**63, 1], [1, 1])) == [0x3C00, 0]
    assert raw(run("set.eq.xor.f16x2.f16x2", [0, 1], [0, 0], [0, 1])) == [0x3C003C00, 0x3C00]


@pytest.mark.parametrize("name", ["b16", "b32", "b64", "u16", "s32", "f32", "f64"])
def test_selp_moves_bits_without_looking_at_them(name: str):
    width = int(name[1:])
    a, b = [numbers(width)[n] for n in (3, 4)], [numbers(width)[n] for n in (5, 6)]
    nan = 2**width - 5
    assert raw(run(f"selp.{name}", [*a, nan], [*b, 0], [1, 0, 1])) == [a[0], b[1], nan]


def test_slct_asks_for_the_sign():
    a, b = [1, 2, 3, 4], [5, 6, 7, 8]
    assert raw(run("slct.u32.s32", a, b, [0, -1, 7, 2**31])) == [1, 6, 3, 8]
    # 0, -0, NaN, the smallest negative number.
    selectors = [0, 0x80000000, 0x7FC00000, 0x80000001]
    assert raw(run("slct.b64.f32", a, b, selectors)) == [1, 2, 7, 8]
    assert raw(run("slct.ftz.u16.f32", a, b, selectors)) == [1, 2, 7, 4]


def test_comparisons_of_f64_see_every_bit():
    a = [0x3FF0000000000000, 0x3FF0000000000001]
    assert run("setp.eq.f64", bits(a, F64.dtype), bits(a[:1] * 2, F64.dtype)).tolist() == [1, 0]
