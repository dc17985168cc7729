"""Sums, products, quotients and roots round as IEEE 754 says, which rational numbers tell."""

from __future__ import annotations

import itertools
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
    Ieee,
    bits,
    columns,
    edges,
    flush,
    raw,
    result,
    rounded,
    run,
    some,
    tuples,
)

ARITY = {"add": 2, "sub": 2, "mul": 2, "div": 2, "fma": 3, "mad": 3, "rcp": 1}
MODES = ("rn", "rz", "rm", "rp")

OPCODES = [
    *(f"{base}.f32" for base in ("add", "sub", "mul")),
    *(
        f"{base}.{mode}.f32"
        for base in ("add", "sub", "mul", "fma", "div", "rcp")
        for mode in MODES
    ),
    *(
        f"{base}.{mode}.f64"
        for base in ("add", "sub", "mul", "fma", "div", "rcp")
        for mode in MODES
    ),
    *("add.ftz.f32", "sub.rz.ftz.f32", "mul.ftz.f32", "fma.rn.ftz.f32", "div.rn.ftz.f32"),
    *("add.sat.f32", "sub.rm.sat.f32", "mul.sat.f32", "fma.rn.sat.f32", "fma.rn.ftz.sat.f32"),
    *("add.f16", "sub.rn.f16", "mul.f16", "fma.rn.f16", "mad.rn.f32", "mad.rz.f64"),
    *("add.ftz.f16", "mul.sat.f16", "fma.rn.ftz.sat.f16", "fma.rn.relu.f16"),
    *("add.bf16", "sub.bf16", "mul.rn.bf16", "fma.rn.bf16", "fma.rn.relu.bf16"),
    *("fma.rz.bf16", "fma.rm.bf16", "fma.rp.bf16", "fma.rz.relu.bf16"),
]


def check(got: list[int], expected: list[int], operands: list[tuple[int, ...]], form: Ieee) -> None:
    """Compare patterns; every NaN of f64 counts as the same, as its payload is not specified."""
    for pattern, wanted, operand in zip(got, expected, operands, strict=True):
        same = pattern == wanted or (
            form is F64 and math.isnan(form.decode(pattern)) and math.isnan(form.decode(wanted))
        )
        assert same, f"{[hex(o) for o in operand]}: {pattern:#x} instead of {wanted:#x}"


@pytest.mark.parametrize("opcode", OPCODES)
def test_a_result_is_rounded_once(opcode: str):
    base, *modifiers, name = opcode.split(".")
    form = FORMATS[name]
    operands = tuples(form, ARITY[base])
    expected = [result(base, operand, form, modifiers) for operand in operands]
    check(raw(run(opcode, *columns(operands, form.dtype))), expected, operands, form)


def _nearly_half_way(form: Ieee, count: int) -> list[tuple[int, int, int]]:
    """Return a, b, c whose a x b + c lies next to the middle between two numbers."""
    generator = random.Random(11)
    found = []
    while len(found) < count:
        a, b = (
            (form.bias << form.mantissa) | generator.getrandbits(form.mantissa) for _ in range(2)
        )
        product = Fraction(form.decode(a)) * Fraction(form.decode(b))
        middle = Fraction(form.decode(a)) * 2 ** generator.randint(1, form.mantissa)
        near = form.decode(form.encode(middle))
        half = Fraction(near) + Fraction(near) * Fraction(1, 2 ** (form.mantissa + 1))
        addend = half - product
        if addend:
            found.append((a, b, form.encode(addend)))
    return found


@pytest.mark.parametrize(
    ("form", "mode"),
    [(F16, "rn"), *itertools.product((BF16, F32, F64), MODES)],
)
def test_fused_results_near_the_middle_of_two_numbers(form: Ieee, mode: str):
    name = next(name for name, f in FORMATS.items() if f is form)
    operands = _nearly_half_way(form, 150)
    # Very small addends decide a tie.
    one = form.bias << form.mantissa
    for size in (1, form.smallest_normal, form.smallest_normal + 1):
        for sign, odd in itertools.product((0, form.sign), (0, 1)):
            operands.append((one + 1, one + form.smallest_normal // 2, size | sign))
            operands.append((one + 3 + odd, one + form.smallest_normal // 2, size | sign))
    expected = [result("fma", operand, form, [mode]) for operand in operands]
    got = raw(run(f"fma.{mode}.{name}", *columns(operands, form.dtype)))
    check(got, expected, operands, form)


@pytest.mark.parametrize("sign", [0, F64.sign])
@pytest.mark.parametrize("power", [-150, -120, -60])
def test_a_small_addend_decides_a_tie_of_doubles(sign: int, power: int):
    # The product is 1 + 2**-23 + 2**-30 + 2**-53, half-way between two doubles.
    a, b = (F64.encode(1 + Fraction(1, 2**n)) for n in (23, 30))
    operands = [(a, b, F64.encode(Fraction(2) ** power) | sign)]
    operands.append((a | F64.sign, b, operands[0][2]))
    for mode in MODES:
        expected = [result("fma", operand, F64, [mode]) for operand in operands]
        got = raw(run(f"fma.{mode}.f64", *columns(operands, F64.dtype)))
        check(got, expected, operands, F64)


def test_a_fused_subnormal_result_is_rounded_once():
    generator = random.Random(5)
    operands = []
    for _ in range(500):
        a = generator.getrandbits(23) | generator.randint(1, 120) << 23
        b = generator.getrandbits(23) | generator.randint(1, 20) << 23
        operands.append((a, b | generator.getrandbits(1) << 31, generator.getrandbits(12)))
    expected = [result("fma", operand, F32, ["rn"]) for operand in operands]
    check(raw(run("fma.rn.f32", *columns(operands, F32.dtype))), expected, operands, F32)


@pytest.mark.parametrize(
    ("opcode", "scalar", "element"),
    [
        ("add.f16x2", "add.f16", F16),
        ("fma.rn.relu.f16x2", "fma.rn.relu.f16", F16),
        ("mul.ftz.sat.f16x2", "mul.ftz.sat.f16", F16),
        ("sub.bf16x2", "sub.bf16", BF16),
        ("fma.rn.bf16x2", "fma.rn.bf16", BF16),
        ("add.f32x2", "add.f32", F32),
        ("mul.rn.ftz.f32x2", "mul.rn.ftz.f32", F32),
        ("fma.rz.f32x2", "fma.rz.f32", F32),
        ("max.NaN.bf16x2", "max.NaN.bf16", BF16),
        ("min.ftz.f16x2", "min.ftz.f16", F16),
        ("neg.bf16x2", "neg.bf16", BF16),
        ("abs.ftz.f16x2", "abs.ftz.f16", F16),
        ("ex2.approx.f16x2", "ex2.approx.f16", F16),
        ("tanh.approx.bf16x2", "tanh.approx.bf16", BF16),
    ],
)
def test_both_halves_are_computed_alone(opcode: str, scalar: str, element: Ieee):
    width = 8 * element.dtype.itemsize
    arity = {"fma": 3, "neg": 1, "abs": 1, "ex2": 1, "tanh": 1}.get(opcode.split(".")[0], 2)
    low = [some(element, 64, seed) for seed in range(arity)]
    high = [some(element, 64, seed + 9) for seed in range(arity)]
    packed = [
        [a | b << width for a, b in zip(lows, highs, strict=True)]
        for lows, highs in zip(low, high, strict=True)
    ]
    of_low = raw(run(scalar, *[bits(column, element.dtype) for column in low]))
    of_high = raw(run(scalar, *[bits(column, element.dtype) for column in high]))
    assert raw(run(opcode, *packed)) == [
        a | b << width for a, b in zip(of_low, of_high, strict=True)
    ]


def _root(pattern: int, form: Ieee, mode: str) -> int:
    value = form.decode(pattern)
    if math.isnan(value) or value < 0:
        return form.nan
    if value == 0 or math.isinf(value):
        return pattern
    # The root with enough bits that whatever follows them can only decide a tie that is none.
    scale = 400 if form is F32 else 2400
    scaled = Fraction(value) * 4**scale
    whole = math.isqrt(scaled.numerator // scaled.denominator)
    inexact = Fraction(whole) ** 2 != scaled
    return form.encode(Fraction(2 * whole + inexact, 2) / 2**scale, mode)


@pytest.mark.parametrize("name", ["f32", "f64"])
@pytest.mark.parametrize("mode", MODES)
def test_a_root_is_rounded_once(name: str, mode: str):
    form = FORMATS[name]
    operands = tuples(form, 1, count=300)
    expected = [_root(operand, form, mode) for (operand,) in operands]
    check(raw(run(f"sqrt.{mode}.{name}", *columns(operands, form.dtype))), expected, operands, form)


@pytest.mark.parametrize("opcode", ["div.full.f32", "div.full.ftz.f32", "div.approx.f32"])
def test_a_rough_quotient_is_within_two_ulp(opcode: str):
    modifiers = [part for part in opcode.split(".") if part == "ftz"]
    operands = tuples(F32, 2)
    for pattern, operand in zip(
        raw(run(opcode, *columns(operands, F32.dtype))), operands, strict=True
    ):
        wanted = result("div", operand, F32, modifiers)
        if "approx" in opcode and 2.0**126 < abs(F32.decode(operand[1])) < math.inf:
            size = abs(F32.decode(operand[0]))
            strange = math.isinf(size) or math.isnan(size)
            assert pattern & ~F32.sign == (F32.nan if strange else 0)
        else:
            assert abs(pattern - wanted) <= 2, [hex(o) for o in operand]


def _extreme(base: str, a: float, b: float, *, nan: bool) -> float:
    if math.isnan(a) or math.isnan(b):
        if nan or (math.isnan(a) and math.isnan(b)):
            return math.nan
        return b if math.isnan(a) else a
    ordered = sorted([a, b], key=lambda v: (v, math.copysign(1, v)))
    return ordered[0] if base == "min" else ordered[1]


@pytest.mark.parametrize("name", list(FORMATS))
@pytest.mark.parametrize("base", ["min", "max"])
@pytest.mark.parametrize("nan", ["", ".NaN"])
def test_extremes_with_nan_and_zeros_of_both_signs(name: str, base: str, nan: str):
    form = FORMATS[name]
    operands = tuples(form, 2)
    nan = "" if name == "f64" else nan
    expected = [
        rounded(_extreme(base, *[form.decode(o) for o in pair], nan=bool(nan)), form, "rn")
        for pair in operands
    ]
    got = raw(run(f"{base}{nan}.{name}", *columns(operands, form.dtype)))
    check(got, expected, operands, form)


def test_extremes_of_three_operands():
    operands = tuples(F32, 3)
    values = [[F32.decode(o) for o in operand] for operand in operands]
    for base, nan in itertools.product(("min", "max"), ("", ".NaN")):
        expected = [
            rounded(
                _extreme(base, _extreme(base, a, b, nan=bool(nan)), c, nan=bool(nan)), F32, "rn"
            )
            for a, b, c in values
        ]
        got = raw(run(f"{base}{nan}.f32", *columns(operands, F32.dtype), sources=3))
        check(got, expected, operands, F32)
    expected = [
        rounded(
            _extreme("max", _extreme("max", abs(a), abs(b), nan=False), abs(c), nan=False),
            F32,
            "rn",
        )
        for a, b, c in values
    ]
    got = raw(run("max.abs.f32", *columns(operands, F32.dtype), sources=3))
    check(got, expected, operands, F32)


@pytest.mark.parametrize("opcode", ["max.xorsign.abs.f32", "min.NaN.xorsign.abs.bf16"])
def test_the_sign_of_xorsign_is_that_of_the_product(opcode: str):
    form = FORMATS[opcode.rpartition(".")[2]]
    operands = tuples(form, 2)
    expected = []
    for a, b in operands:
        size = _extreme(opcode[:3], abs(form.decode(a)), abs(form.decode(b)), nan=".NaN" in opcode)
        pattern = rounded(size, form, "rn")
        expected.append(pattern if math.isnan(size) else pattern | ((a ^ b) & form.sign))
    check(raw(run(opcode, *columns(operands, form.dtype))), expected, operands, form)


@pytest.mark.parametrize("name", list(FORMATS))
def test_abs_and_neg_touch_the_sign_alone(name: str):
    form = FORMATS[name]
    patterns = edges(form) + some(form, 200, 1)
    assert raw(run(f"abs.{name}", patterns)) == [p & ~form.sign for p in patterns]
    assert raw(run(f"neg.{name}", patterns)) == [p ^ form.sign for p in patterns]
    if name in ("f16", "f32"):
        assert raw(run(f"neg.ftz.{name}", patterns)) == [
            flush(p, form) ^ form.sign for p in patterns
        ]


@pytest.mark.parametrize("name", ["f32", "f64"])
def test_classes_of_numbers(name: str):
    form = FORMATS[name]
    patterns = edges(form)
    sizes = [p & ~form.sign for p in patterns]
    expected = {
        "finite": [s < form.infinity for s in sizes],
        "infinite": [s == form.infinity for s in sizes],
        "number": [s <= form.infinity for s in sizes],
        "notanumber": [s > form.infinity for s in sizes],
        "normal": [s == 0 or form.smallest_normal <= s < form.infinity for s in sizes],
        "subnormal": [0 < s < form.smallest_normal for s in sizes],
    }
    for kind, truth in expected.items():
        assert run(f"testp.{kind}.{name}", patterns).tolist() == truth
