"""Approximations stay within the manual's bounds, measured with 60 digits of `decimal`."""

import math
from decimal import Decimal, getcontext

import pytest
from arithmetic import raw, run
from float_formats import F64, FORMATS, Ieee, edges, f32, some

getcontext().prec = 60
LN2 = Decimal(2).ln()
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")


def _sine(x: Decimal) -> Decimal:
    """Return the sine by its series after taking whole turns away."""
    x = x - 2 * PI * (x / (2 * PI)).to_integral_value()
    term, total, n = x, x, 1
    while abs(term) > Decimal(10) ** -45:
        term = -term * x * x / ((n + 1) * (n + 2))
        total += term
        n += 2
    return total


def _tanh(x: Decimal) -> Decimal:
    if abs(x) < Decimal("1e-10"):
        return x - x**3 / 3
    e = (2 * x).exp() if x < 50 else Decimal(10) ** 60
    return (e - 1) / (e + 1)


EXACT = {
    "sin": _sine,
    "cos": lambda x: _sine(x + PI / 2),
    "ex2": lambda x: (x * LN2).exp(),
    "lg2": lambda x: x.ln() / LN2,
    "tanh": _tanh,
    "rsqrt": lambda x: 1 / x.sqrt(),
    "rcp": lambda x: 1 / x,
    "sqrt": Decimal.sqrt,
}


def _operands(base: str, form: Ieee) -> list[int]:
    """Return finite operands whose result is a normal number."""
    chosen = []
    for pattern in edges(form) + some(form, 300, 4):
        value = form.decode(pattern)
        size = pattern & ~form.sign
        if not math.isfinite(value) or size < form.smallest_normal:
            continue
        if base in ("lg2", "rsqrt", "sqrt") and value < 0:
            continue
        if base in ("sin", "cos") and abs(value) > 2 * math.pi:
            continue
        if base == "ex2" and not 2 - form.bias <= value < form.bias:
            continue
        if base == "rcp" and abs(value) > 2.0 ** (form.bias - 2):
            continue
        chosen.append(pattern)
    assert len(chosen) > 40
    return chosen


# Opcode, relative error, absolute error; whichever is met suffices.
BOUNDS = [
    ("sin.approx.f32", 0, 2**-20.5),
    ("cos.approx.ftz.f32", 0, 2**-20.5),
    ("ex2.approx.ftz.f32", 2 * 2**-23, 0),
    ("ex2.approx.f32", 2 * 2**-23, 0),
    ("lg2.approx.f32", 2**-22, 2**-22),
    ("tanh.approx.f32", 2**-11, 0),
    ("rsqrt.approx.f32", 2**-22.9, 0),
    ("rsqrt.approx.ftz.f32", 2**-22.9, 0),
    ("rcp.approx.ftz.f32", 2**-23, 0),
    ("sqrt.approx.f32", 2**-23, 0),
    ("ex2.approx.f16", 2**-9.9, 0),
    ("ex2.approx.ftz.bf16", 2**-7, 0),
    ("tanh.approx.f16", 0, 2**-10.987),
    ("tanh.approx.bf16", 0, 2**-8),
    ("rcp.approx.ftz.f64", 2**-20, 0),
    ("rsqrt.approx.ftz.f64", 2**-20, 0),
    ("rsqrt.approx.f64", 2**-51, 0),
]


@pytest.mark.parametrize(("opcode", "relative", "absolute"), BOUNDS)
def test_an_approximation_is_within_its_bound(opcode: str, relative: float, absolute: float):
    base, name = opcode.split(".")[0], opcode.rpartition(".")[2]
    form = FORMATS[name]
    operands = _operands(base, form)
    for operand, pattern in zip(operands, raw(run(opcode, operands)), strict=True):
        if form is F64 and "ftz" in opcode:
            assert pattern & 0xFFFFFFFF == 0
            operand &= ~0xFFFFFFFF
        exact = EXACT[base](Decimal(form.decode(operand)))
        error = abs(Decimal(form.decode(pattern)) - exact)
        bound = max(Decimal(relative) * abs(exact), Decimal(absolute))
        assert error <= bound, (hex(operand), hex(pattern))


NAN = 0x7FFFFFFF
ONE, INF, ZERO = 0x3F800000, 0x7F800000, 0
STRANGE = [0, 1 << 31, INF, INF | 1 << 31, 0x7FC00001, f32(-1.0)]
RESULTS = {
    "ex2.approx.f32": [ONE, ONE, INF, 0, NAN, f32(0.5)],
    "lg2.approx.f32": [INF | 1 << 31, INF | 1 << 31, INF, NAN, NAN, NAN],
    "rsqrt.approx.f32": [INF, INF | 1 << 31, 0, NAN, NAN, NAN],
    "rcp.approx.f32": [INF, INF | 1 << 31, 0, 1 << 31, NAN, f32(-1.0)],
    "sqrt.approx.f32": [0, 1 << 31, INF, NAN, NAN, NAN],
    "tanh.approx.f32": [0, 1 << 31, ONE, f32(-1.0), NAN, f32(math.tanh(-1.0))],
    "sin.approx.f32": [0, 1 << 31, NAN, NAN, NAN, f32(math.sin(-1.0))],
    "cos.approx.f32": [ONE, ONE, NAN, NAN, NAN, f32(math.cos(-1.0))],
}


@pytest.mark.parametrize("opcode", list(RESULTS))
def test_strange_operands_have_the_results_of_the_manual(opcode: str):
    assert raw(run(opcode, STRANGE)) == RESULTS[opcode]


def test_subnormal_numbers_are_zeros_when_flushed():
    tiny = [1, 0x80000001, 0x007FFFFF]
    assert raw(run("rcp.approx.ftz.f32", tiny)) == [INF, INF | 1 << 31, INF]
    assert raw(run("rsqrt.approx.ftz.f32", tiny)) == [INF, INF | 1 << 31, INF]
    assert raw(run("ex2.approx.ftz.f32", [f32(-127.0), f32(-126.0)])) == [0, 0x00800000]
    assert raw(run("ex2.approx.f32", [f32(-127.0)])) == [0x00400000]
    assert raw(run("lg2.approx.ftz.f32", [f32(8.0), 1])) == [f32(3.0), INF | 1 << 31]
    assert raw(run("sqrt.approx.ftz.f32", tiny[:1])) == [0]
    assert raw(run("sqrt.approx.f32", [2])) == [f32(2.0**-74)]


@pytest.mark.parametrize(
    "opcode", ["ex2.approx.f16", "ex2.approx.ftz.bf16", "tanh.approx.f16", "tanh.approx.bf16"]
)
def test_both_halves_are_computed_alone(opcode: str):
    form = FORMATS[opcode.rpartition(".")[2]]
    low, high = some(form, 64, 1), some(form, 64, 2)
    pairs = [a | b << 16 for a, b in zip(low, high, strict=True)]
    alone = zip(raw(run(opcode, low)), raw(run(opcode, high)), strict=True)
    assert raw(run(f"{opcode}x2", pairs)) == [a | b << 16 for a, b in alone]


def test_the_reference_itself():
    assert abs(_sine(PI / 6) - Decimal("0.5")) < Decimal(10) ** -40
    assert abs(float(_tanh(Decimal(1))) - math.tanh(1)) < 1e-15
