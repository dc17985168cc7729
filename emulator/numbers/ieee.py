"""Sums, products, quotients and roots with IEEE 754 rounding, in each of its modes.

Each function takes a dtype (f64, f32, f16 or bf16) and a mode, and returns a function of arrays.
f16 and bf16 are computed in wider types that keep everything needed to round once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pallasc.emulator.numbers import exact
from pallasc.emulator.numbers.arithmetic import Array
from pallasc.emulator.numbers.mnemonic import BF16, F16, F32, F64
from pallasc.emulator.numbers.rounding import (
    FORMATS,
    directed_f32,
    error_of_sum,
    quantize,
    to_odd,
)

Function = Callable[..., Array]

_SMALLEST_F32 = np.array(2.0**-126, np.float32)
_HALF_UNIT = np.array(0x10000000, np.uint64)
_BELOW_F32 = np.array(0x1FFFFFFF, np.uint64)


def _negative_zero_downwards(total: Array, a: Array, b: Array, mode: str) -> None:
    """Set the sign of sums that are exactly zero: -0 when rounding down, unless both are +0."""
    if mode != "rm":
        return
    zero = total == 0
    if 1 in zero.tobytes():
        zero &= np.signbit(a) | np.signbit(b)
        np.copyto(total, np.float64(-0.0), where=zero)


def _sum_f32(a: Array, b: Array, mode: str) -> Array:
    """Round the sum of two exact doubles to f32 in a directed mode."""
    total = np.add(a, b)
    error = error_of_sum(a, b, total)
    _negative_zero_downwards(total, a, b, mode)
    return directed_f32(total, error, mode)


def _double(values: Array) -> Array:
    return values.astype(np.float64)


def add(dtype: Any, mode: str) -> Function:
    """Return the addition of two numbers of this type, rounded in this mode."""
    if dtype == F64:
        return np.add if mode == "rn" else exact.over_lanes(exact.add, mode)
    if mode != "rn":
        return lambda a, b: _sum_f32(_double(a), _double(b), mode)
    # f16 and bf16 are added in f32, whose 24 bits are more than twice theirs, so that rounding
    # twice gives the same result as rounding once (Figueroa, 1995).
    return np.add


def multiply(dtype: Any, mode: str) -> Function:
    """Return the multiplication."""
    if dtype == F64:
        return np.multiply if mode == "rn" else exact.over_lanes(exact.multiply, mode)
    if mode != "rn":
        return lambda a, b: directed_f32(_double(a) * _double(b), 0.0, mode)
    # The product of two f16 is exact in f32; so is the product of two bf16, unless it is zero in
    # bf16.
    return np.multiply


def _fused_f32(a: Array, b: Array, c: Array) -> Array:
    """Return f32 a x b + c rounded once.

    The product of two f32 is exact as a double. Rounding the sum to a double and then to f32 can be
    wrong only if the double is halfway between two f32; such sums are first rounded to odd.
    """
    addend = _double(c)
    product = _double(a) * _double(b)
    total = product + addend
    half_way = (total.view(np.uint64) & _BELOW_F32) == _HALF_UNIT
    small = np.abs(total) < _SMALLEST_F32
    if 1 in half_way.tobytes() or (1 in small.tobytes() and bool((total != 0)[small].any())):
        total = to_odd(total, error_of_sum(product, addend, total))
    return total.astype(np.float32)


def _fused_directed(mode: str) -> Function:
    return lambda a, b, c: _sum_f32(_double(a) * _double(b), _double(c), mode)


# Masks and values of an f32's last bits that are halfway between two 16-bit numbers.
_LAST_BITS = {
    F16: (np.array(0x1FFF, np.uint32), np.array(0x1000, np.uint32)),
    BF16: (np.array(0xFFFF, np.uint32), np.array(0x8000, np.uint32)),
}
_SMALLEST_F16 = np.array(2.0**-14, np.float32)
_LAST_OF_F32 = np.array(1, np.uint32)
_INFINITY = np.array(np.inf, np.float32)


def _fused_half_directed(dtype: Any, mode: str) -> Function:
    def apply(a: Array, b: Array, c: Array) -> Array:
        product, addend = _double(a) * _double(b), _double(c)
        total = product + addend
        odd = to_odd(total, error_of_sum(product, addend, total))
        _negative_zero_downwards(odd, product, addend, mode)
        return quantize(odd, FORMATS[dtype], mode).astype(dtype)

    return apply


def _fused_half(dtype: Any, mode: str) -> Function:
    """Return f16 or bf16 a x b + c rounded once.

    Rounding is monotonic, so rounding to a double, to f32 and to 16 bits can be wrong only if the
    f32 is halfway between two 16-bit numbers, which its last bits show. Such an f32 is rounded to
    odd. Subnormal numbers have fewer bits in f16, and the same last bits in bf16.
    """
    if mode != "rn":
        return _fused_half_directed(dtype, mode)
    last, half = _LAST_BITS[dtype]

    def apply(a: Array, b: Array, c: Array) -> Array:
        product, addend = _double(a) * _double(b), _double(c)
        total = product + addend
        single = total.astype(np.float32)
        strange = (single.view(np.uint32) & last) == half
        if dtype == F16:
            strange |= np.abs(single) < _SMALLEST_F16
        if 1 in strange.tobytes():
            rest = (total - _double(single)) + error_of_sum(product, addend, total)
            even = (rest != 0) & ((single.view(np.uint32) & _LAST_OF_F32) == 0)
            if 1 in even.tobytes():
                towards = np.copysign(_INFINITY, rest.astype(np.float32))
                np.nextafter(single, towards, out=single, where=even)
        return single.astype(dtype)

    return apply


_SPLIT = 134217729.0  # 2**27 + 1
_fused_exactly = exact.over_lanes(exact.fused, "rn")


def _halves(values: Array) -> tuple[Array, Array]:
    """Split doubles into two halves of 26 bits (Veltkamp)."""
    scaled = values * _SPLIT
    high = scaled - (scaled - values)
    return high, values - high


def _fused_f64(a: Array, b: Array, c: Array) -> Array:
    """Return f64 a x b + c rounded once (Boldo and Melquiond, 2008).

    Lanes with numbers so large or small that a part could overflow or underflow use rational
    numbers.
    """
    product = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    low = a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)
    sum_low = c + low
    rest_low = error_of_sum(c, low, sum_low)
    sum_high = product + sum_low
    rest_high = error_of_sum(product, sum_low, sum_high)
    rest = rest_low + rest_high
    rest = to_odd(rest, error_of_sum(rest_low, rest_high, rest))
    result: Array = sum_high + rest
    strange = np.zeros(a.shape, np.bool_)
    for part in (a, b, c, product, result):
        size = np.abs(part)
        strange |= ~((size > 1e-120) & (size < 1e120))
    if 1 in strange.tobytes():
        result[strange] = _fused_exactly(a[strange], b[strange], c[strange])
    return result


def fused(dtype: Any, mode: str) -> Function:
    """Return the fused multiply-add a x b + c, rounded once."""
    if dtype == F64:
        return _fused_f64 if mode == "rn" else exact.over_lanes(exact.fused, mode)
    if dtype == F32:
        return _fused_f32 if mode == "rn" else _fused_directed(mode)
    return _fused_half(dtype, mode)


def subtract(dtype: Any, mode: str) -> Function:
    """Return the subtraction."""
    if mode == "rn":
        return np.subtract
    total = add(dtype, mode)
    return lambda a, b: total(a, np.negative(b))


def divide(dtype: Any, mode: str) -> Function:
    """Return the division; an inexact quotient of two f32 never rounds to an f32 as a double."""
    if mode == "rn":
        return np.divide
    if dtype == F64:
        return exact.over_lanes(exact.divide, mode)
    return lambda a, b: directed_f32(_double(a) / _double(b), 0.0, mode)


def root(dtype: Any, mode: str) -> Function:
    """Return the square root."""
    if mode == "rn":
        return np.sqrt
    if dtype == F64:
        return exact.over_lanes(exact.square_root, mode)
    return lambda a: directed_f32(np.sqrt(_double(a)), 0.0, mode)


def reciprocal(dtype: Any, mode: str) -> Function:
    """Return the reciprocal."""
    quotient = divide(dtype, mode)
    one = dtype.type(1)
    return lambda a: quotient(np.full(a.shape, one, dtype), a)
