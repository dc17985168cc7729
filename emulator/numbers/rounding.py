"""Rounding of arrays: exact sums, directed modes, small formats, canonical NaN.

A value that must be rounded once is first computed exactly, or as a double whose last bit is odd if
it is inexact ("rounding to odd"). Rounding such a double to a format of at most 51 significant bits
gives the same result as rounding the exact value, in every mode. (Boldo and Melquiond, "Emulation
of FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from pallasc.emulator.numbers.arithmetic import Array
from pallasc.emulator.numbers.mnemonic import BF16, F16, F32, F64


@dataclass(frozen=True, slots=True)
class Format:
    """A binary floating-point format.

    Attributes:
        precision: significant bits, including the implicit one.
        smallest_exponent: exponent of the smallest normal number.
        largest: the largest finite number.
        has_infinity: if False, values that are too large become NaN.
    """

    precision: int
    smallest_exponent: int
    largest: float
    has_infinity: bool = True


# ml_dtypes declares no types for it.
FACTS: Any = ml_dtypes.finfo


def _format_of(dtype: Any, *, has_infinity: bool = True) -> Format:
    facts: Any = FACTS(dtype)
    return Format(facts.nmant + 1, int(facts.minexp), float(facts.max), has_infinity)


FORMATS = {
    F16: _format_of(F16),
    BF16: _format_of(BF16),
    F32: _format_of(F32),
}
# An f32 with ten explicit mantissa bits (PTX ISA 9.0, 5.2.3).
TF32 = Format(11, -126, float(2 - 2**-10) * 2.0**127)

# PTX ISA 9.0, 9.7.3 and 9.7.4: the NaN that instructions return, regardless of the input NaN. The
# payload of a double is unspecified; the host's is kept.
CANONICAL_NAN: dict[Any, tuple[Any, Any]] = {
    F16: (np.dtype(np.uint16), np.uint16(0x7FFF)),
    BF16: (np.dtype(np.uint16), np.uint16(0x7FFF)),
    F32: (np.dtype(np.uint32), np.uint32(0x7FFFFFFF)),
}

# The smallest normal number: smaller numbers are flushed to zero by `.ftz`.
_SMALLEST_NORMAL = {
    dtype: np.array(FACTS(dtype).smallest_normal, dtype) for dtype in (F16, BF16, F32, F64)
}
_ZERO = {dtype: np.array(0, dtype) for dtype in (F16, BF16, F32, F64)}
_ONE = {dtype: np.array(1, dtype) for dtype in (F16, BF16, F32, F64)}


def canonical(values: Array) -> Array:
    """Replace every NaN, in place, by the hardware's canonical NaN."""
    unordered = np.isnan(values)
    if 1 in unordered.tobytes():
        form = CANONICAL_NAN.get(values.dtype)
        if form is not None:
            np.copyto(values.view(form[0]), form[1], where=unordered)
    return values


def flushed(values: Array) -> Array:
    """Return the values with subnormal numbers replaced by zeros of the same sign."""
    small = np.abs(values) < _SMALLEST_NORMAL[values.dtype]
    if 1 not in small.tobytes():
        return values
    result = values.copy()
    np.multiply(values, _ZERO[values.dtype], out=result, where=small)
    return result


def saturated(values: Array) -> Array:
    """Clamp to [0, 1]; NaN and -0 become +0 (`.sat`, PTX ISA 9.0, 9.7.3)."""
    zero = _ZERO[values.dtype]
    clamped: Array = np.fmin(np.fmax(values, zero), _ONE[values.dtype]) + zero
    return clamped


def rectified(values: Array) -> Array:
    """Replace negative values by +0, and keep NaN (`.relu`)."""
    zero = _ZERO[values.dtype]
    return canonical(np.maximum(values, zero) + zero)


def error_of_sum(a: Array, b: Array, total: Array) -> Array:
    """Return exactly a + b - total, where total is the rounded sum of doubles (Knuth's TwoSum)."""
    b_part = total - a
    a_part = total - b_part
    error: Array = (a - a_part) + (b - b_part)
    return error


_SIGN = np.array(-(2**63), np.int64)
_LAST_BIT = np.array(1, np.int64)
_ZERO_BITS = np.array(0, np.int64)


def to_odd(rounded: Array, error: Array) -> Array:
    """Return doubles rounded to odd.

    Args:
        rounded: the nearest doubles.
        error: has the sign of the rounding error, exact value minus rounded; NaN if not finite.
    """
    bits = rounded.view(np.int64)
    lost = (error != 0) & np.isfinite(rounded) & ((bits & _LAST_BIT) == _ZERO_BITS)
    if 1 not in lost.tobytes():
        return rounded
    towards_zero = (error < 0) != np.signbit(rounded)
    odd = np.where(lost, np.where(towards_zero, bits - 1, bits + 1), bits)
    return odd.view(np.float64)


def _half_away(values: Array) -> Array:
    away: Array = np.copysign(np.floor(np.abs(values) + 0.5), values)
    return away


# Each rounds a double to an integer.
TO_INTEGER: dict[str, Any] = {
    "rn": np.rint,
    "rz": np.trunc,
    "rm": np.floor,
    "rp": np.ceil,
    "rna": _half_away,
}


def quantize(values: Array, form: Format, mode: str, *, finite: bool = False) -> Array:
    """Return the nearest numbers of a format in a rounding mode, as doubles.

    Args:
        values: doubles, exact or rounded to odd.
        form: the format.
        mode: `rn`, `rz`, `rm`, `rp`, or `rna` for nearest with ties away from zero.
        finite: if True, values that are too large become the largest number (`.satfinite`).
    """
    _, exponent = np.frexp(values)
    unit = np.maximum(exponent - form.precision, form.smallest_exponent - form.precision + 1)
    result: Array = np.ldexp(TO_INTEGER[mode](np.ldexp(values, -unit)), unit)
    over = np.abs(result) > form.largest
    if 1 in over.tobytes():
        over_limit = _beyond(values, form, mode, finite=finite)
        result = np.where(over, over_limit, result)
    return result


def _beyond(values: Array, form: Format, mode: str, *, finite: bool) -> Array:
    """Return the results for values that are too large for the format."""
    largest = np.copysign(form.largest, values)
    if finite:
        return largest
    endless = np.copysign(np.inf if form.has_infinity else np.nan, values)
    stays = {
        "rz": np.isfinite(values),
        "rm": np.isfinite(values) & (values > 0),
        "rp": np.isfinite(values) & (values < 0),
    }.get(mode)
    return endless if stays is None else np.where(stays, largest, endless)


_TOWARDS = {
    "rz": np.array(0, np.float32),
    "rm": np.array(-np.inf, np.float32),
    "rp": np.array(np.inf, np.float32),
}


def directed_f32(values: Array, error: Array | float, mode: str) -> Array:
    """Round doubles to f32 downwards, upwards or towards zero, given their rounding errors.

    Args:
        values: the nearest doubles.
        error: exact value minus `values`; its sign decides if `values` is already an f32.
        mode: `rm`, `rp` or `rz`.
    """
    result: Array = values.astype(np.float32)
    rest = (values - result.astype(np.float64)) + error
    if mode == "rz":
        wrong = np.where(np.signbit(values), rest > 0, rest < 0)
    else:
        wrong = rest < 0 if mode == "rm" else rest > 0
    if 1 in wrong.tobytes():
        np.nextafter(result, _TOWARDS[mode], out=result, where=wrong)
    return result
