"""Conversions against rational numbers and patterns worked out by hand."""

from __future__ import annotations

import functools
import itertools
import math
import random
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from number_vectors import (
    BF16,
    F16,
    F32,
    FORMATS,
    TF32,
    Ieee,
    edges,
    f32,
    raw,
    rounded,
    run,
    some,
)

INTEGERS = ["u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64"]
MODES = ("rn", "rz", "rm", "rp")


def limits(name: str) -> tuple[int, int]:
    width = int(name[1:])
    return (0, 2**width - 1) if name[0] == "u" else (-(2 ** (width - 1)), 2 ** (width - 1) - 1)


def wrap(value: int, name: str) -> int:
    width = int(name[1:])
    value &= (1 << width) - 1
    return value - (1 << width) if name[0] == "s" and value >> (width - 1) else value


def integers(name: str) -> list[int]:
    """Return limits, numbers next to ties of every float format, and random ones."""
    width = int(name[1:])
    generator = random.Random(width)
    chosen = [*limits(name), 0, 1, 2, 3, 255, 256]
    for kept in (8, 11, 24, 53):
        for top in range(kept, width + 1):
            middle = (generator.getrandbits(kept) | 1 << (kept - 1) | 1) << (top - kept)
            half = 1 << max(top - kept - 1, 0)
            chosen += [middle + half, middle + half - 1, middle + half + 1, -middle - half]
    chosen += [generator.getrandbits(width) for _ in range(100)]
    chosen += [generator.getrandbits(generator.randint(1, width)) for _ in range(100)]
    return sorted({wrap(v, name) for v in chosen})


@pytest.mark.parametrize("source", INTEGERS)
@pytest.mark.parametrize("target", INTEGERS)
def test_integers_wrap_or_clamp(source: str, target: str):
    values = integers(source)
    low, high = limits(target)
    assert run(f"cvt.{target}.{source}", values).tolist() == [wrap(v, target) for v in values]
    assert run(f"cvt.sat.{target}.{source}", values).tolist() == [
        min(max(v, low), high) for v in values
    ]


def of_integer(value: int, form: Ieee, mode: str) -> int:
    return rounded(Fraction(value) if value else 0.0, form, mode)


@pytest.mark.parametrize("source", INTEGERS)
@pytest.mark.parametrize("target", list(FORMATS))
@pytest.mark.parametrize("mode", MODES)
def test_integers_become_floats_rounded_once(source: str, target: str, mode: str):
    values = integers(source)
    expected = [of_integer(v, FORMATS[target], mode) for v in values]
    assert raw(run(f"cvt.{mode}.{target}.{source}", values)) == expected


ROUND: dict[str, Any] = {
    "rni": round,
    "rzi": math.trunc,
    "rmi": math.floor,
    "rpi": math.ceil,
}


def floats(form: Ieee) -> list[int]:
    """Return edges, small halves, the limits of integers, and random patterns."""
    chosen = edges(form) + some(form, 200, 5)
    for quarter in range(-24, 25):
        chosen.append(rounded(quarter / 4, form, "rn"))
    for width in (7, 8, 15, 16, 31, 32, 63, 64):
        for limit in (2**width, -(2**width)):
            near = rounded(float(limit), form, "rz")
            chosen += [near - 1, near, near + 1]
            chosen += [rounded(limit + delta, form, "rn") for delta in (-1.5, -0.5, 0.5, 1.5)]
    return chosen


@pytest.mark.parametrize("source", list(FORMATS))
@pytest.mark.parametrize("target", INTEGERS)
@pytest.mark.parametrize("mode", list(ROUND))
def test_floats_become_integers_clamped(source: str, target: str, mode: str):
    form = FORMATS[source]
    low, high = limits(target)
    width = int(target[1:])
    of_nan = wrap(1 << (width - 1), target) if source == "f64" or width == 64 else 0
    patterns = floats(form)
    expected = []
    for value in map(form.decode, patterns):
        if math.isnan(value):
            expected.append(of_nan)
        elif math.isinf(value):
            expected.append(high if value > 0 else low)
        else:
            expected.append(min(max(ROUND[mode](Fraction(value)), low), high))
    assert run(f"cvt.{mode}.{target}.{source}", patterns).tolist() == expected


def test_flushed_subnormal_numbers_do_not_round_up():
    assert run("cvt.rpi.s32.f32", [1]).tolist() == [1]
    assert run("cvt.rpi.ftz.s32.f32", [1]).tolist() == [0]
    assert raw(run("cvt.ftz.f32.f32", [1, 0x80000001, 0x00800000])) == [0, 0x80000000, 0x00800000]
    assert raw(run("cvt.ftz.f32.f16", [1])) == [f32(2.0**-24)]


PAIRS = [(s, t) for s in FORMATS for t in FORMATS if s != t]


@pytest.mark.parametrize(("source", "target"), PAIRS)
@pytest.mark.parametrize("mode", MODES)
def test_floats_become_other_floats_rounded_once(source: str, target: str, mode: str):
    form, to = FORMATS[source], FORMATS[target]
    patterns = floats(form)
    # Numbers next to the middle between two of the narrower format.
    for pattern in some(to, 200, 9):
        value = to.decode(pattern)
        if math.isfinite(value) and value:
            middle = Fraction(value) * (1 + Fraction(1, 2 ** (to.mantissa + 1)))
            for factor in (1, 1 + Fraction(1, 2**40), 1 - Fraction(1, 2**40)):
                patterns.append(rounded(middle * factor, form, "rn"))
    narrows = form.mantissa > to.mantissa or {source, target} == {"f16", "bf16"}
    opcode = f"cvt.{mode}.{target}.{source}" if narrows else f"cvt.{target}.{source}"
    got = raw(run(opcode, patterns))
    for pattern, result in zip(patterns, got, strict=True):
        value = form.decode(pattern)
        if math.isnan(value):
            assert math.isnan(to.decode(result))
            if target != "f64" and source != "bf16":
                assert result == to.nan
        else:
            assert result == rounded(value, to, mode), hex(pattern)


@pytest.mark.parametrize("name", list(FORMATS))
@pytest.mark.parametrize("mode", list(ROUND))
def test_rounding_to_an_integer_keeps_the_sign_of_zero(name: str, mode: str):
    form = FORMATS[name]
    for pattern, result in zip(
        (p := floats(form)), raw(run(f"cvt.{mode}.{name}.{name}", p)), strict=True
    ):
        value = form.decode(pattern)
        if math.isnan(value):
            assert math.isnan(form.decode(result))
        elif math.isinf(value):
            assert result == pattern
        else:
            whole = ROUND[mode](Fraction(value))
            assert result == (of_integer(whole, form, "rn") if whole else pattern & form.sign)


@pytest.mark.parametrize("target", ["f16", "bf16", "tf32"])
@pytest.mark.parametrize("modifiers", ["rn", "rz", "rn.satfinite", "rz.relu", "rn.relu.satfinite"])
def test_finite_and_rectified_conversions(target: str, modifiers: str):
    form = TF32 if target == "tf32" else FORMATS[target]
    mode, *rest = modifiers.split(".")
    patterns = floats(F32)
    expected = []
    for pattern in patterns:
        value = F32.decode(pattern)
        if value < 0 and "relu" in rest:
            value = 0.0
        result = rounded(value, form, mode, finite="satfinite" in rest)
        if result == form.sign and "relu" in rest:
            result = 0
        if target == "tf32" and result != form.nan:
            result <<= 13
        expected.append(result)
    assert raw(run(f"cvt.{modifiers}.{target}.f32", patterns)) == expected


def test_tf32_ties_go_away_from_zero():
    one = 0x3F800000
    patterns = [one | 0x1000, one | 0x0FFF, one | 0x3000, one | 0x80001000, 0x7F7FFFFF, 0x7F800001]
    expected = [one | 0x2000, one, one | 0x4000, one | 0x80002000, 0x7F800000, 0x7FFFFFFF]
    assert raw(run("cvt.rna.tf32.f32", patterns)) == expected
    assert raw(run("cvt.rna.satfinite.tf32.f32", patterns[4:5])) == [0x7F7FE000]


@pytest.mark.parametrize(("name", "form"), [("f16x2", F16), ("bf16x2", BF16)])
@pytest.mark.parametrize("modifiers", ["rn", "rz", "rn.relu", "rn.satfinite", "rz.relu.satfinite"])
def test_the_first_source_is_the_upper_half(name: str, form: Ieee, modifiers: str):
    a, b = floats(F32), floats(F32)[::-1]
    single = f"cvt.{modifiers}.{name[:-2]}.f32"
    high, low = raw(run(single, a)), raw(run(single, b))
    expected = [x << 16 | y for x, y in zip(high, low, strict=True)]
    assert raw(run(f"cvt.{modifiers}.{name}.f32", a, b)) == expected
    assert raw(run("cvt.rn.bf16x2.f32", [f32(1.0)], [f32(-2.0)])) == [0x3F80C000]


# Exponent and mantissa bits, pattern of NaN, largest pattern.
NARROW = {
    "e4m3x2": (4, 3, 0x7F, 0x7E),
    "e5m2x2": (5, 2, 0x7F, 0x7B),
    "e2m3x2": (2, 3, 0x1F, 0x1F),
    "e3m2x2": (3, 2, 0x1F, 0x1F),
    "e2m1x2": (2, 1, 0x7, 0x7),
}


@functools.cache
def decoded(name: str, pattern: int) -> float:
    """Return a number of a narrow format, worked out from its bits."""
    exponent_bits, mantissa_bits, _, largest = NARROW[name]
    sign = 1 << (exponent_bits + mantissa_bits)
    size = pattern & (sign - 1)
    if size > largest:
        if name == "e5m2x2" and size == 0x7C:
            return -math.inf if pattern & sign else math.inf
        return math.nan
    exponent, mantissa = size >> mantissa_bits, size & ((1 << mantissa_bits) - 1)
    bias = (1 << (exponent_bits - 1)) - 1
    if exponent:
        mantissa += 1 << mantissa_bits
    value = math.ldexp(mantissa, max(exponent, 1) - bias - mantissa_bits)
    return -value if pattern & sign else value


def encoded(name: str, value: float, *, relu: bool = False) -> int:
    """Return the nearest pattern by trying all; a tie goes to the even one."""
    exponent_bits, mantissa_bits, nan, largest = NARROW[name]
    sign = 1 << (exponent_bits + mantissa_bits)
    if math.isnan(value):
        return nan
    negative = math.copysign(1, value) < 0
    if negative and relu:
        return 0
    if math.isinf(value):
        best = largest
    else:
        # All these are multiples of 2**-60, so that their differences as doubles are exact.
        distance = [(abs(decoded(name, p) - abs(value)), p % 2, p) for p in range(largest + 1)]
        best = min(distance)[2]
    return best | (sign if negative else 0)


def narrow_operands(name: str) -> list[int]:
    """Return f32 at, between and next to all numbers of a format, and strange ones."""
    largest = NARROW[name][3]
    values = [decoded(name, p) for p in range(largest + 1)]
    chosen = [0.0, math.inf, math.nan, values[-1] * 1.01, values[-1] * 4, values[1] / 4]
    for low, high in itertools.pairwise(values):
        middle = (low + high) / 2
        chosen += [low, middle, middle * (1 + 2**-20), middle * (1 - 2**-20)]
    return [f32(v) for v in chosen] + [f32(v) | 0x80000000 for v in chosen]


@pytest.mark.parametrize("name", list(NARROW))
@pytest.mark.parametrize("relu", ["", ".relu"])
def test_narrow_formats_round_to_nearest_and_clamp(name: str, relu: str):
    high = narrow_operands(name)
    low = high[::-1]
    width = 4 if name == "e2m1x2" else 8
    expected = [
        encoded(name, F32.decode(a), relu=bool(relu)) << width
        | encoded(name, F32.decode(b), relu=bool(relu))
        for a, b in zip(high, low, strict=True)
    ]
    assert raw(run(f"cvt.rn.satfinite{relu}.{name}.f32", high, low)) == expected
    halves = [rounded(F32.decode(a), F16, "rn") for a in high]
    expected = [
        encoded(name, F16.decode(a), relu=bool(relu)) << width
        | encoded(name, F16.decode(b), relu=bool(relu))
        for a, b in zip(halves, halves[::-1], strict=True)
    ]
    packed = [a << 16 | b for a, b in zip(halves, halves[::-1], strict=True)]
    assert raw(run(f"cvt.rn.satfinite{relu}.{name}.f16x2", packed)) == expected


@pytest.mark.parametrize("name", list(NARROW))
@pytest.mark.parametrize(("half", "form"), [("f16x2", F16), ("bf16x2", BF16)])
def test_narrow_numbers_become_halves(name: str, half: str, form: Ieee):
    width = 4 if name == "e2m1x2" else 8
    exponent_bits, mantissa_bits, *_ = NARROW[name]
    count = 1 << (1 + exponent_bits + mantissa_bits)
    low = list(range(count))
    high = low[::-1]
    packed = [a << width | b for a, b in zip(high, low, strict=True)]
    for relu in ("", ".relu"):
        expected = []
        for pair in zip(high, low, strict=True):
            values = [decoded(name, p) for p in pair]
            if relu:
                values = [0.0 if v <= 0 else v for v in values]
            a, b = (rounded(v, form, "rn") for v in values)
            expected.append(a << 16 | b)
        assert raw(run(f"cvt.rn{relu}.{half}.{name}", packed)) == expected


def test_powers_of_two():
    values = [1.0, 1.5, 2.0**-127, 2.0**-127 * 1.5, 2.0**-130, 0.0, 2.0**127 * 1.5, -4.0, math.inf]
    patterns = [*map(f32, values), 0x7FC00000]
    down = [127, 127, 0, 0, 0, 0, 254, 129, 255, 255]
    up = [127, 128, 0, 1, 0, 0, 255, 129, 255, 255]
    zeros = [f32(1.0)] * len(patterns)
    got = raw(run("cvt.rz.ue8m0x2.f32", patterns, zeros))
    assert got == [p << 8 | 127 for p in down]
    assert raw(run("cvt.rp.ue8m0x2.f32", zeros, patterns)) == [127 << 8 | p for p in up]
    assert raw(run("cvt.rp.satfinite.ue8m0x2.f32", patterns[6:], zeros[6:])) == [
        p << 8 | 127 for p in (254, 129, 254, 255)
    ]
    assert raw(run("cvt.rp.ue8m0x2.bf16x2", [0x3FC04000])) == [128 << 8 | 128]
    octets = list(range(255))
    got = run("cvt.rn.bf16x2.ue8m0x2", [o | 128 << 8 for o in octets]).view(ml_dtypes.bfloat16)
    assert got[::2].astype(np.float64).tolist() == [2.0 ** (o - 127) for o in octets]
    assert got[1::2].astype(np.float64).tolist() == [2.0] * 255
    assert raw(run("cvt.rn.bf16x2.ue8m0x2", [0xFF7F])) == [0x7FFF3F80]


def test_packed_integers_are_clamped():
    a, b = [70000, -5, 100, 3], [-70000, 40000, -100, -1]
    assert raw(run("cvt.pack.sat.u16.s32", a, b)) == [0xFFFF0000, 40000, 100 << 16, 3 << 16]
    assert raw(run("cvt.pack.sat.s16.s32", a, b))[:2] == [0x7FFF8000, 0xFFFB7FFF]
    c = [0xAABBCCDD] * 4
    assert raw(run("cvt.pack.sat.s8.s32.b32", a, b, c))[2:] == [0xCCDD649C, 0xCCDD03FF]
    assert raw(run("cvt.pack.sat.u8.s32.b32", a, b, c))[:2] == [0xCCDDFF00, 0xCCDD00FF]
    assert raw(run("cvt.pack.sat.u4.s32.b32", a, b, c))[2:] == [0xBBCCDDF0, 0xBBCCDD30]
    assert raw(run("cvt.pack.sat.s2.s32.b32", a, b, c))[3:] == [0xABBCCDD7]
