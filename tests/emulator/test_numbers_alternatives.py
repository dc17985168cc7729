"""Comparisons, selections and conversions with every modifier and type that they may have."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest
from number_vectors import (
    BF16,
    F16,
    F32,
    F64,
    FORMATS,
    ORDERED,
    bits,
    compared,
    f32,
    flush,
    raw,
    result,
    rounded,
    run,
)
from opcode_patterns import Pattern

from pallasc.emulator.numbers.table import known_opcodes

ONE = {"f32": f32(1.0), "f16": 0x3C00, "bf16": 0x3F80, "f16x2": 0x3C00, "bf16x2": 0x3F80}
JOINS = {"and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b}
ALIASES = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
COMPARING = [p for p, _ in known_opcodes() if p.partition(".")[0] in ("set", "setp")]


def drawn(pattern: str) -> list[str]:
    """Return mnemonics that have all alternatives of a pattern, at random."""
    taken, generator, chosen = Pattern(pattern), random.Random(3), []
    left = taken.alternatives
    while left:
        opcode = taken.draw(generator)
        if taken.chosen(opcode) & left:
            left -= taken.chosen(opcode)
            chosen.append(opcode)
    return chosen


def width_of(kind: str) -> int:
    return {"bf16": 16, "pred": 1}.get(kind) or int(kind[1:])


def holds(comparison: str, kind: str, a: int, b: int, *, ftz: bool) -> bool:
    """Return what a comparison gives for patterns of a type."""
    form = FORMATS.get(kind)
    if form is not None:
        a, b = (flush(v, form) if ftz else v for v in (a, b))
        return compared(comparison, form.decode(a), form.decode(b))
    half = 1 << (width_of(kind) - 1)
    if kind[0] == "s":
        a, b = (a ^ half) - half, (b ^ half) - half
    return ORDERED[ALIASES.get(comparison, comparison)](a, b)


def operands(kind: str, count: int = 60) -> list[int]:
    """Return patterns, of which many are equal, subnormal, infinite or NaN."""
    generator = random.Random(kind)
    form = FORMATS.get(kind)
    width = width_of(kind)
    few = [0, 1, 2, (1 << width) - 1, 1 << (width - 1), (1 << (width - 1)) - 1]
    if form is not None:
        few += [form.infinity, form.infinity | form.sign, form.sign, form.sign | 1, form.nan]
    return [generator.choice([*few, generator.getrandbits(width)]) for _ in range(count)]


@pytest.mark.parametrize("pattern", COMPARING)
def test_comparisons_with_all_their_modifiers(pattern: str) -> None:
    for opcode in drawn(pattern):
        base, comparison, *modifiers, kind = opcode.split(".")
        to = modifiers.pop() if base == "set" else ""
        ftz = "ftz" in modifiers
        join = next((m for m in modifiers if m in JOINS), "")
        element, packed = kind.removesuffix("x2"), kind.endswith("x2")
        parts = 2 if packed else 1
        columns = [operands(element), operands(element)[::-1]]
        columns[1][::5] = columns[0][::5]  # some that are equal
        halves = [[columns[0], columns[1]], [columns[1], columns[0][::-1]]][:parts]
        given = [
            [sum(half[n][i] << 16 * at for at, half in enumerate(halves)) for i in range(60)]
            for n in range(2)
        ]
        third = [[i % 2 for i in range(60)]] if join else []
        found = run(opcode, *given, *third)
        truths = []
        for a_column, b_column in halves:
            truth = [
                int(holds(comparison, element, a, b, ftz=ftz))
                for a, b in zip(a_column, b_column, strict=True)
            ]
            joined = zip(truth, *third, strict=True)
            truths.append([JOINS[join](t, c) for t, c in joined] if join else truth)
        if base == "setp":
            several = found if packed else (found,)
            assert [raw(each) for each in several] == truths, opcode
            continue
        assert raw(found) == words(truths, to, packed=packed), opcode


def words(truths: list[list[int]], to: str, *, packed: bool) -> list[int]:
    """Return what `set` writes: 1.0 or all bits, in each half where there are two."""
    one = ONE.get(to)
    if packed:
        half = 0xFFFF if one is None else one
        return [low * half | high * half << 16 for low, high in zip(*truths, strict=True)]
    value = (1 << width_of(to)) - 1 if one is None else one
    return [truth * value for truth in truths[0]]


@pytest.mark.parametrize(
    "kind", ["b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", "f32", "f64"]
)
def test_selections_of_every_type(kind: str) -> None:
    width = width_of(kind)
    a, b = (operands(f"u{width}", 8)[::step] for step in (1, -1))
    assert raw(run(f"selp.{kind}", a, b, [1, 0] * 4)) == [(b if n % 2 else a)[n] for n in range(8)]
    signs = [0, 1, -1, 5, -(2**31), 2**31 - 1, 0, -7]
    expected = [a[n] if sign >= 0 else b[n] for n, sign in enumerate(signs)]
    assert raw(run(f"slct.{kind}.s32", a, b, signs)) == expected
    floats = [0, F32.sign, 1, F32.sign | 1, F32.infinity, F32.infinity | F32.sign, F32.nan, 7]
    for ftz in ("", ".ftz"):
        seen = [flush(v, F32) if ftz else v for v in floats]
        expected = [a[n] if F32.decode(v) >= 0 else b[n] for n, v in enumerate(seen)]
        assert raw(run(f"slct{ftz}.{kind}.f32", a, b, floats)) == expected


@pytest.mark.parametrize("name", ["f32x2", "f16x2", "bf16x2"])
def test_halves_with_every_rounding(name: str) -> None:
    form = FORMATS[name.removesuffix("x2")]
    width = 8 * form.dtype.itemsize
    patterns = [p for p, _ in known_opcodes() if p.startswith(("(add|sub|mul)", "fma"))]
    for opcode in [o for p in patterns if name in p for o in drawn(p) if o.endswith(f".{name}")]:
        base, *modifiers, _ = opcode.split(".")
        count = 3 if base == "fma" else 2
        low = [operands(name.removesuffix("x2"))[n:] for n in range(count)]
        rows = list(zip(*low, strict=False))
        turned = rows[::-1]
        given = [
            [x[n] | y[n] << width for x, y in zip(rows, turned, strict=True)] for n in range(count)
        ]
        expected = [
            result(base, x, form, modifiers) | result(base, y, form, modifiers) << width
            for x, y in zip(rows, turned, strict=True)
        ]
        assert raw(run(opcode, *given)) == expected, opcode


@pytest.mark.parametrize("opcode", [
    "add.rn.sat.f32.bf16", "sub.rp.sat.f32.f16", "fma.rm.f32.bf16", "fma.rz.f32.bf16",
    "fma.rn.sat.f32.bf16", "fma.rp.sat.f32.f16",
])  # fmt: skip
def test_mixed_precision_rounds_and_saturates(opcode: str) -> None:
    base, *modifiers, _, name = opcode.split(".")
    narrow = FORMATS[name]
    count = 2 if base == "fma" else 1
    narrows = [operands(name)[n : 40 + n] for n in range(count)]
    wide = operands("f32")[:40]
    expected = [
        result(base, (*[f32(narrow.decode(v)) for v in values], w), F32, modifiers)
        for *values, w in zip(*narrows, wide, strict=True)
    ]
    assert raw(run(opcode, *[bits(v, narrow.dtype) for v in narrows], wide)) == expected


def test_modifiers_of_single_instructions() -> None:
    a, b = [F64.encode(3), F64.encode(5)], [F64.encode(7), F64.encode(9)]
    assert raw(run("add.f64", a, b)) == [F64.encode(10), F64.encode(14)]
    tiny, two, one = 1, f32(2.0), f32(1.0)
    infinity = F32.infinity
    assert raw(run("div.approx.ftz.f32", [two, tiny, one], [one, one, tiny])) == [two, 0, infinity]
    assert raw(run("sqrt.rn.ftz.f32", [f32(4.0), tiny, F32.sign | tiny])) == [two, 0, F32.sign]
    assert raw(run("ex2.approx.ftz.bf16x2", [0x3F800000])) == [0x40003F80]
    assert raw(run("lg2.approx.ftz.f32", [f32(8.0), tiny])) == [f32(3.0), infinity | F32.sign]
    assert raw(run("tanh.approx.f16x2", [0x7C00FC00, 0x80000000])) == [0x3C00BC00, 0x80000000]


def test_conversions_that_saturate() -> None:
    values = [-1.0, 0.25, 1.5, math.nan, math.inf]
    clamped = [0.0, 0.25, 1.0, 0.0, 1.0]
    wide = [rounded(v, F64, "rn") for v in values]
    narrow = [rounded(v, BF16, "rn") for v in values]
    assert raw(run("cvt.rzi.sat.u16.f32", [f32(-3.5), f32(70000.0), f32(7.9)])) == [0, 65535, 7]
    big = [rounded(v, F64, "rn") for v in (1e30, -1e30, 2.5)]
    assert run("cvt.rpi.sat.s64.f64", big).tolist() == [2**63 - 1, -(2**63), 3]
    assert raw(run("cvt.f64.f64", wide[:3])) == wide[:3]
    for opcode, given, form in [
        ("cvt.sat.f32.bf16", narrow, F32),
        ("cvt.sat.f64.bf16", narrow, F64),
        ("cvt.rz.sat.f32.f64", wide, F32),
        ("cvt.rn.ftz.sat.f32.f64", wide, F32),
        ("cvt.rp.sat.bf16.f64", wide, BF16),
        ("cvt.rm.sat.f16.f64", wide, F16),
    ]:
        assert raw(run(opcode, given)) == [rounded(v, form, "rn") for v in clamped], opcode
    tiny = F64.encode(Fraction(1, 2**140))
    assert raw(run("cvt.rn.ftz.f32.f64", [tiny])) == [0]
    assert raw(run("cvt.rn.f32.f64", [tiny])) == [1 << 9]


def test_narrow_numbers_from_bf16_and_packed_integers() -> None:
    # 1.5 and -2.0: e3m2 has 1 01.1 and clamps negative numbers to zero with .relu.
    packed = [0x3FC0 << 16 | 0xC000]
    assert raw(run("cvt.rn.satfinite.e3m2x2.bf16x2", packed)) == [0x0E30]
    assert raw(run("cvt.rn.satfinite.relu.e3m2x2.bf16x2", packed)) == [0x0E00]
    a, b, c = [70, -5, 3], [-70, 5, -1], [0xAABBCCDD] * 3
    assert raw(run("cvt.pack.sat.s4.s32.b32", a, b, c)) == [0xBBCCDD78, 0xBBCCDDB5, 0xBBCCDD3F]
    assert raw(run("cvt.pack.sat.u2.s32.b32", a, b, c)) == [0xABBCCDDC, 0xABBCCDD3, 0xABBCCDDC]
