"""Every arithmetic instruction with every modifier, against rational numbers and integers."""

import itertools
import math
import random
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from arithmetic import NARROW, decoded, expected, extreme, raw, result, run
from arithmetic_patterns import EXACT
from float_formats import BF16, F16, F32, F64, FORMATS, Ieee, edges, f32, rounded, some
from opcode_patterns import Pattern

from pallasc.emulator.numbers.table import find
from pallasc.errors import UnsupportedError

MODES = ("rn", "rz", "rm", "rp")


def floats(form: Ieee) -> list[int]:
    """Return edges, halves, limits of integers, middles of narrower formats, random patterns."""
    numbers: list[Any] = [quarter / 4 for quarter in range(-24, 25)]
    for width in (7, 8, 15, 16, 31, 32, 63, 64):
        for limit in (2**width, -(2**width)):
            numbers += [limit + delta for delta in (-1.5, -0.5, 0.5, 1.5)]
    for narrow in (form, *FORMATS.values()):
        for pattern in some(narrow, 30, 9):
            value = narrow.decode(pattern)
            if math.isfinite(value) and value:
                middle = Fraction(value) * (1 + Fraction(1, 2 ** (narrow.mantissa + 1)))
                numbers += [middle * (1 + Fraction(n, 2**40)) for n in (-1, 0, 1)]
    for name, narrow in NARROW.items() if form in (F16, BF16, F32) else ():
        values = [decoded(name, p) for p in range(narrow.largest + 1)]
        numbers += [values[-1] * 1.01, values[-1] * 4]
        for low, high in itertools.pairwise(values[:: len(values) // 7]):
            numbers += [(low + high) / 2 * (1 + n * 2**-20) for n in (-1, 0, 1)]
    near = [rounded(float(2**width), form, "rz") for width in (8, 16, 32, 64)]
    chosen = [pattern + n for pattern in near for n in (-1, 0, 1)]
    return edges(form) + some(form, 200, 5) + chosen + [rounded(n, form, "rn") for n in numbers]


def integers(width: int) -> list[int]:
    """Return limits, small numbers, those next to ties of every float format, and random ones."""
    generator = random.Random(width)
    top = 1 << (width - 1)
    chosen = [*range(min(70, top)), top - 1, top, top + 1, 2 * top - 2, 2 * top - 1]
    for kept in (8, 11, 24, 53):
        for shift in range(1, width - kept + 1):
            middle = (generator.getrandbits(kept) | 1 << (kept - 1) | 1) << shift
            half = 1 << (shift - 1)
            chosen += [middle + half, middle + half - 1, middle + half + 1, -middle - half]
    chosen += [generator.getrandbits(width) for _ in range(100)]
    chosen += [generator.getrandbits(generator.randint(1, width)) for _ in range(100)]
    return [value & (2 * top - 1) for value in chosen]


POOLS = {np.dtype(f"u{size}"): integers(8 * size) for size in (1, 2, 4, 8)}
POOLS |= {np.dtype(f"i{dtype.itemsize}"): pool for dtype, pool in POOLS.items()}
POOLS |= {form.dtype: floats(form) for form in FORMATS.values()}
POOLS[np.dtype(bool)] = [0, 1]
PAIRED = {f"{name}x2": form for name, form in FORMATS.items()}


def columns(opcode: str, dtypes: Sequence[Any], count: int) -> list[list[int]]:
    """Return operands of each source, as many rows at random."""
    base, *_, kind = opcode.split(".")
    generator = random.Random(opcode)
    pools = [POOLS[dtype] for dtype in dtypes]
    if kind in PAIRED:
        form = PAIRED[kind]
        pool, width = POOLS[form.dtype], 8 * form.dtype.itemsize
        pairs = [
            a | b << width for a, b in zip(pool, generator.sample(pool, len(pool)), strict=True)
        ]
        pools = [
            pairs if dtype.kind == "u" else own for own, dtype in zip(pools, dtypes, strict=True)
        ]
    if base in ("addc", "subc", "madc"):
        pools[-1] = [0, 1]
    elif base == "lop3":
        pools[3] = [0x96]
    if len(pools) == 1:
        return [generator.sample(pools[0], min(count, len(pools[0]) // 32 * 32))]
    found = [[generator.choice(pool) for _ in range(count)] for pool in pools]
    if base in ("set", "setp", "add", "sub", "addc", "subc"):
        found[1][::5] = found[0][::5]
    return found


def is_nan(pattern: int, dtype: Any) -> bool:
    return any(f.dtype == dtype and math.isnan(f.decode(pattern)) for f in FORMATS.values())


@pytest.mark.parametrize("pattern", EXACT)
def test_all_mnemonics_of_a_pattern(pattern: str) -> None:
    opcodes = Pattern(pattern).every()
    for opcode in opcodes:
        packed = {"destinations": 2} if opcode.startswith("setp") and opcode[-2:] == "x2" else {}
        arithmetic = find(opcode, **packed)
        assert arithmetic is not None
        count = max(64, 5120 // len(opcodes) // 32 * 32)  # of whole warps
        given = columns(opcode, arithmetic.sources, count)
        results = run(opcode, *given, **packed)
        found = zip(*map(raw, results if isinstance(results, tuple) else (results,)), strict=True)
        # The payload of NaN of f64 is unspecified, and that of bf16 stays.
        payload_free = "f64" in opcode or opcode.endswith("bf16")
        for values, bits_found in zip(zip(*given, strict=True), found, strict=True):
            for got, wanted, dtype in zip(
                bits_found, expected(opcode, values), arithmetic.results, strict=True
            ):
                wanted &= (1 << (8 * dtype.itemsize)) - 1
                same = got == wanted or (
                    payload_free and is_nan(got, dtype) and is_nan(wanted, dtype)
                )
                assert same, f"{opcode} {[hex(v) for v in values]}: {got:#x}, not {wanted:#x}"


@pytest.mark.parametrize("table", range(256))
def test_lop3_with_every_table(table: int) -> None:
    # The first three operands go through all eight combinations of bits.
    rows = [
        (0xF0F0F0F0, 0xCCCCCCCC, 0xAAAAAAAA, table),
        (0x12345678, 0x9ABCDEF0, 0x0F1E2D3C, table),
    ]
    wanted = [expected("lop3.b32", row)[0] for row in rows]
    assert raw(run("lop3.b32", *zip(*rows, strict=True))) == wanted


def check(opcode: str, rows: list[tuple[int, ...]], form: Ieee, **shape: Any) -> None:
    """Compare patterns; every NaN of f64 counts as the same, as its payload is not specified."""
    base, *modifiers, _ = opcode.split(".")
    found = raw(run(opcode, *zip(*rows, strict=True), **shape))
    for got, row in zip(found, rows, strict=True):
        if base in ("min", "max"):
            wanted = extreme(base, modifiers, row, form)
        else:
            wanted = result(base, row, form, modifiers)
        same = got == wanted or (form is F64 and is_nan(got, F64.dtype) and wanted == F64.nan)
        assert same, f"{[hex(o) for o in row]}: {got:#x} instead of {wanted:#x}"


def nearly_half_way(form: Ieee) -> list[tuple[int, ...]]:
    """Return a, b, c whose a x b + c lies next to the middle between two numbers, or on it."""
    generator = random.Random(11)
    found: list[tuple[int, ...]] = []
    one, step = form.bias << form.mantissa, form.smallest_normal
    while len(found) < 150:
        a, b = (one | generator.getrandbits(form.mantissa) for _ in range(2))
        product = Fraction(form.decode(a)) * Fraction(form.decode(b))
        middle = Fraction(form.decode(a)) * 2 ** generator.randint(1, form.mantissa)
        near = Fraction(form.decode(form.encode(middle)))
        addend = near + near * Fraction(1, 2 ** (form.mantissa + 1)) - product
        if addend:
            found.append((a, b, form.encode(addend)))
    # Very small addends decide a tie.
    for size, sign, odd in itertools.product((1, step, step + 1), (0, form.sign), (0, 2, 3)):
        found.append((one + 1 + odd, one + step // 2, size | sign))
    return found


@pytest.mark.parametrize(
    ("form", "mode"), [(F16, "rn"), *itertools.product((BF16, F32, F64), MODES)]
)
def test_fused_results_near_the_middle_of_two_numbers(form: Ieee, mode: str) -> None:
    name = next(name for name, f in FORMATS.items() if f is form)
    rows = nearly_half_way(form)
    if form is F64:
        # The product is 1 + 2**-23 + 2**-30 + 2**-53, half-way between two doubles.
        a, b = (F64.encode(1 + Fraction(1, 2**n)) for n in (23, 30))
        for power, sign, other in itertools.product((150, 120, 60), (0, F64.sign), (0, F64.sign)):
            rows.append((a | other, b, F64.encode(Fraction(1, 2**power)) | sign))
    check(f"fma.{mode}.{name}", rows, form)


def test_a_fused_subnormal_result_is_rounded_once() -> None:
    generator = random.Random(5)
    rows = []
    for _ in range(500):
        a = generator.getrandbits(23) | generator.randint(1, 120) << 23
        b = generator.getrandbits(23) | generator.randint(1, 20) << 23
        rows.append((a, b | generator.getrandbits(1) << 31, generator.getrandbits(12)))
    check("fma.rn.f32", rows, F32)


@pytest.mark.parametrize(
    "opcode", ["min.f32", "max.f32", "min.NaN.f32", "max.NaN.f32", "max.abs.f32"]
)
def test_extremes_of_three_operands(opcode: str) -> None:
    generator = random.Random(7)
    rows = [tuple(generator.choices(edges(F32), k=3)) for _ in range(500)]  # not whole vectors
    check(opcode, rows, F32, sources=3)


@pytest.mark.parametrize(
    "opcode", ["div.full.f32", "div.full.ftz.f32", "div.approx.f32", "div.approx.ftz.f32"]
)
def test_a_rough_quotient_is_within_two_ulp(opcode: str) -> None:
    modifiers = [part for part in opcode.split(".") if part == "ftz"]
    rows = [
        *itertools.product(edges(F32), repeat=2),
        *zip(some(F32, 200, 7), some(F32, 200, 8), strict=True),
    ]
    for got, (a, b) in zip(raw(run(opcode, *zip(*rows, strict=True))), rows, strict=True):
        if "approx" in opcode and 2.0**126 < abs(F32.decode(b)) < math.inf:
            is_strange = not math.isfinite(F32.decode(a))
            assert got & ~F32.sign == (F32.nan if is_strange else 0)
        else:
            assert abs(got - result("div", (a, b), F32, modifiers)) <= 2, (hex(a), hex(b))


@pytest.mark.parametrize(
    ("opcode", "part"),
    [
        ("add.rn.foo.f32", ".foo"),
        ("add.sat.u32", ".sat"),
        ("fma.f32", ".rn, .rz, .rm, .rp"),
        ("add.cc.u16", ".u16"),
        ("madc.cc.u32", ".lo, .hi"),
        ("mul.u32", ".lo, .hi, .wide"),
        ("ex2.f32", ".approx"),
        ("ex2.approx.bf16", ".ftz"),
        ("max.xorsign.f32", ".abs"),
        ("setp.lt.b32", ".eq, .ne"),
        ("cvt.rs.satfinite.e4m3x4.f32", ".e4m3x4"),
        ("cvt.rn.e4m3x2.f32", ".satfinite"),
        ("cvt.s32.f32", ".rni"),
        ("cvt.rn.satfinite.scaled::n2::ue8m0.s2f6x2.f32", ".s2f6x2"),
        ("cvt.f32", "two types"),
        ("prmt.b32.xyz", ".xyz"),
        ("shl.u32", ".u32"),
        ("and", ".pred"),
    ],
)
def test_what_is_not_known_is_refused_by_name(opcode: str, part: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        find(opcode)
    assert opcode in caught.value.message
    assert part in caught.value.message


def test_a_count_of_operands_that_is_not_known_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="2 destinations"):
        find("add.s32", destinations=2)
    with pytest.raises(UnsupportedError, match="3 sources"):
        find("add.s32", sources=3)
    with pytest.raises(UnsupportedError, match="three operands"):
        find("max.f64", sources=3)


# Values worked out by hand, which no reference of these tests computes.
BY_HAND = [
    ("cvt.rpi.ftz.s32.f32", (1,), 0),
    ("cvt.ftz.f32.f16", (1,), f32(2.0**-24)),
    ("cvt.rna.tf32.f32", (0x3F801000,), 0x3F802000),
    ("cvt.rna.satfinite.tf32.f32", (0x7F7FFFFF,), 0x7F7FE000),
    ("cvt.rn.bf16x2.f32", (f32(1.0), f32(-2.0)), 0x3F80C000),
    ("cvt.rn.satfinite.relu.e3m2x2.bf16x2", (0x3FC0C000,), 0x0E00),
    ("cvt.rz.ue8m0x2.f32", (f32(2.0**-127 * 1.5), f32(1.0)), 0x007F),
    ("cvt.rp.ue8m0x2.bf16x2", (0x3FC04000,), 0x8080),
    ("cvt.rn.bf16x2.ue8m0x2", (0xFF7F,), 0x7FFF3F80),
    ("prmt.b32", (0x83221100, 0x77665544, 0xB370), 0xFF837700),
]


@pytest.mark.parametrize(("opcode", "operands", "wanted"), BY_HAND)
def test_the_references_themselves(opcode: str, operands: tuple[int, ...], wanted: int) -> None:
    arithmetic = find(opcode)
    assert arithmetic is not None
    assert raw(run(opcode, *[[operand] for operand in operands])) == [wanted]
