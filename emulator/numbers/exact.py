"""Doubles rounded once, using rational numbers: one lane at a time, for rare cases."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from pallasc.emulator.numbers.arithmetic import Array


def nearest(value: Fraction) -> float:
    """Return the nearest double, ties to even; infinity if the value is too large."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def rounded(value: Fraction, mode: str) -> float:
    """Round to a double in the mode `rn`, `rz`, `rm` or `rp`."""
    near = nearest(value)
    if mode == "rn":
        return near
    down = mode == "rm" or (mode == "rz" and value > 0)
    if math.isinf(near):
        beyond = near > 0
    else:
        beyond = Fraction(near) > value
        if Fraction(near) == value:
            return near
    if down == beyond:
        return math.nextafter(near, -math.inf if down else math.inf)
    return near


def _zero_of_sum(addends: list[float], mode: str) -> float:
    """Return an exact sum of zero with the sign that IEEE 754 specifies."""
    signs = {math.copysign(1.0, addend) for addend in addends}
    if len(signs) == 1:
        return math.copysign(0.0, signs.pop())
    return -0.0 if mode == "rm" else 0.0


def add(a: float, b: float, mode: str) -> float:
    """Return a + b."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return a + b
    total = Fraction(a) + Fraction(b)
    if total == 0:
        return _zero_of_sum([a, b], mode)
    return rounded(total, mode)


def multiply(a: float, b: float, mode: str) -> float:
    """Return a x b."""
    product = float(np.multiply(a, b))
    if not (math.isfinite(a) and math.isfinite(b)) or a == 0 or b == 0:
        return product
    return math.copysign(rounded(Fraction(a) * Fraction(b), mode), product)


def fused(a: float, b: float, c: float, mode: str) -> float:
    """Return a x b + c, rounded once."""
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        finite = math.isfinite(a) and math.isfinite(b)
        # A finite product that overflows must not be added to an infinity of the other sign.
        return c if finite else float(np.add(np.multiply(a, b), c))
    total = Fraction(a) * Fraction(b) + Fraction(c)
    if total == 0:
        sign = math.copysign(1.0, a) * math.copysign(1.0, b)
        return _zero_of_sum([math.copysign(0.0, sign), c], mode)
    return rounded(total, mode)


def divide(a: float, b: float, mode: str) -> float:
    """Return a / b."""
    quotient = float(np.divide(a, b))
    if not (math.isfinite(a) and math.isfinite(b)) or a == 0 or b == 0:
        return quotient
    return math.copysign(rounded(Fraction(a) / Fraction(b), mode), quotient)


def square_root(a: float, mode: str) -> float:
    """Return the root of a."""
    root = float(np.sqrt(a))
    if mode == "rn" or not math.isfinite(root) or root == 0:
        return root
    square = Fraction(root) ** 2
    if square == Fraction(a):
        return root
    down = mode in ("rm", "rz")
    if down == (square > Fraction(a)):
        return math.nextafter(root, 0.0 if down else math.inf)
    return root


def of_integer(value: int, mode: str) -> float:
    """Return an integer as a double."""
    return rounded(Fraction(value), mode) if value else 0.0


def over_lanes(function: Callable[..., float], mode: str) -> Callable[..., Array]:
    """Vectorize a scalar function of this module over arrays of doubles."""

    def apply(*arrays: Any) -> Array:
        columns = [array.ravel().tolist() for array in arrays]
        results = [function(*lane, mode) for lane in zip(*columns, strict=True)]
        return np.array(results, np.float64).reshape(arrays[0].shape)

    return apply
