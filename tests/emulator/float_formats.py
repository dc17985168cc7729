"""Floating-point formats in rational numbers: patterns, rounding, exact results, comparisons."""

import math
import operator
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class Ieee:
    """A binary format of IEEE 754 by its numbers of exponent and mantissa bits."""

    exponent: int
    mantissa: int
    dtype: Any
    nan: int

    @property
    def bias(self) -> int:
        return (1 << (self.exponent - 1)) - 1

    @property
    def infinity(self) -> int:
        return ((1 << self.exponent) - 1) << self.mantissa

    @property
    def sign(self) -> int:
        return 1 << (self.exponent + self.mantissa)

    @property
    def smallest_normal(self) -> int:
        return 1 << self.mantissa

    def decode(self, pattern: int) -> float:
        """Return the value of a pattern; every format here fits a double."""
        negative, size = pattern & self.sign, pattern & ~self.sign
        if size > self.infinity:
            return math.nan
        if size == self.infinity:
            return -math.inf if negative else math.inf
        exponent, mantissa = size >> self.mantissa, size & (self.smallest_normal - 1)
        if exponent:
            mantissa += self.smallest_normal
        value = math.ldexp(mantissa, max(exponent, 1) - self.bias - self.mantissa)
        return -value if negative else value

    def encode(self, value: Fraction, mode: str = "rn", *, finite: bool = False) -> int:
        """Round a number that is not zero; `rna` is to nearest with ties away from zero."""
        negative, size = value < 0, abs(value)
        exponent = size.numerator.bit_length() - size.denominator.bit_length()
        if Fraction(2) ** exponent > size:
            exponent -= 1
        exponent = max(exponent, 1 - self.bias)
        scaled = size / Fraction(2) ** (exponent - self.mantissa)
        whole = scaled.numerator // scaled.denominator
        rest = scaled - whole
        half = Fraction(1, 2)
        up = {
            "rn": rest > half or (rest == half and whole % 2 == 1),
            "rna": rest >= half,
            "rz": False,
            "rm": negative and rest > 0,
            "rp": not negative and rest > 0,
        }[mode]
        pattern = ((exponent + self.bias - 1) << self.mantissa) + whole + up
        if pattern >= self.infinity:
            stays = finite or mode == "rz" or mode == ("rp" if negative else "rm")
            pattern = self.infinity - 1 if stays else self.infinity
        return pattern | (self.sign if negative else 0)

    def encode_any(self, value: float) -> int:
        """Return the pattern of a number that needs no rounding."""
        return rounded(value, self, "rn")


F16 = Ieee(5, 10, np.dtype(np.float16), 0x7FFF)
BF16 = Ieee(8, 7, np.dtype(ml_dtypes.bfloat16), 0x7FFF)
F32 = Ieee(8, 23, np.dtype(np.float32), 0x7FFFFFFF)
F64 = Ieee(11, 52, np.dtype(np.float64), 0x7FF8000000000000)
TF32 = Ieee(8, 10, None, 0x7FFFFFFF)
FORMATS = {"f16": F16, "bf16": BF16, "f32": F32, "f64": F64}


def edges(form: Ieee) -> list[int]:
    """Return patterns at which arithmetic goes wrong: zeros, limits, ones, ties, NaN."""
    one = form.bias << form.mantissa
    step = form.smallest_normal
    sizes = [
        *(0, 1, 2, 3, step - 1, step, step + 1),
        *(one - 1, one, one + 1, one + step // 2, one + step // 2 + 1, one + step, one + step + 1),
        *(one - (form.mantissa + 1) * step, one + form.mantissa * step),
        *(one + (form.mantissa + 1) * step, form.infinity - 1, form.infinity - step),
        *(form.infinity, form.infinity + 1, form.infinity + step // 2),
    ]
    return sizes + [size | form.sign for size in sizes]


def some(form: Ieee, count: int, seed: int) -> list[int]:
    """Return random patterns, half of them with exponents near that of one."""
    generator = random.Random(seed)
    width = form.exponent + form.mantissa + 1
    result = [generator.getrandbits(width) for _ in range(count // 2)]
    for _ in range(count - count // 2):
        exponent = form.bias + generator.randint(-form.mantissa - 3, form.mantissa + 3)
        exponent = min(max(exponent, 0), 2 * form.bias)
        result.append(
            generator.getrandbits(form.mantissa)
            | exponent << form.mantissa
            | generator.getrandbits(1) * form.sign
        )
    return result


def _zero_sum(a: float, b: float, mode: str) -> float:
    if math.copysign(1, a) == math.copysign(1, b):
        return a
    return -0.0 if mode == "rm" else 0.0


def _sum(a: float, b: float, mode: str) -> Fraction | float:
    if not (math.isfinite(a) and math.isfinite(b)):
        return a + b
    total = Fraction(a) + Fraction(b)
    return total or _zero_sum(a, b, mode)


def _product(a: float, b: float) -> Fraction | float:
    if not (math.isfinite(a) and math.isfinite(b)) or a == 0 or b == 0:
        return a * b
    return Fraction(a) * Fraction(b)


def _quotient(a: float, b: float) -> Fraction | float:
    if math.isnan(a) or math.isnan(b) or (math.isinf(a) and math.isinf(b)) or a == b == 0:
        return math.nan
    sign = math.copysign(1, a) * math.copysign(1, b)
    if math.isinf(a) or b == 0:
        return sign * math.inf
    if math.isinf(b) or a == 0:
        return sign * 0.0
    return Fraction(a) / Fraction(b)


def _fused(a: float, b: float, c: float, mode: str) -> Fraction | float:
    if not (math.isfinite(a) and math.isfinite(b)):
        return a * b + c
    if not math.isfinite(c):
        return c
    total = Fraction(a) * Fraction(b) + Fraction(c)
    if total:
        return total
    sign = math.copysign(1, a) * math.copysign(1, b)
    return _zero_sum(math.copysign(0.0, sign), c, mode)


def exact(base: str, values: list[float], mode: str) -> Fraction | float:
    """Return what a result is before it is rounded."""
    a, b, c = (*values, 0.0, 0.0)[:3]
    if base == "add":
        return _sum(a, b, mode)
    if base == "sub":
        return _sum(a, -b, mode)
    if base == "mul":
        return _product(a, b)
    if base == "div":
        return _quotient(a, b)
    if base == "rcp":
        return _quotient(1.0, a)
    return _fused(a, b, c, mode)


def rounded(value: Fraction | float, form: Ieee, mode: str, *, finite: bool = False) -> int:
    """Return the pattern of a result; NaN is the canonical one."""
    if isinstance(value, Fraction):
        return form.encode(value, mode, finite=finite)
    if math.isnan(value):
        return form.nan
    sign = form.sign if math.copysign(1, value) < 0 else 0
    if math.isinf(value):
        return sign | (form.infinity - finite)
    if value == 0:
        return sign
    return form.encode(Fraction(value), mode, finite=finite)


def flush(pattern: int, form: Ieee) -> int:
    """Return the pattern, or the zero of its sign where it is subnormal."""
    size = pattern & ~form.sign
    return pattern & form.sign if size < form.smallest_normal else pattern


def f32(value: float) -> int:
    """Return the pattern of a Python float as f32."""
    return int.from_bytes(struct.pack(">f", value), "big")


ORDERED: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def compared(name: str, a: float, b: float) -> bool:
    """Return what a comparison of floats gives, by the manual's table of NaN."""
    unordered = math.isnan(a) or math.isnan(b)
    if name in ("num", "nan"):
        return unordered == (name == "nan")
    if name in ORDERED:
        return not unordered and ORDERED[name](a, b)
    return unordered or ORDERED[name[:2]](a, b)
