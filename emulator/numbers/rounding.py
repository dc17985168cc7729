"""Exact and directed rounding of arrays, and building blocks of arithmetic instructions.

A value that must be rounded once is first computed exactly, or as a double whose last bit is odd if
it is inexact ("rounding to odd"). Rounding such a double to a format of at most 51 significant bits
gives the same result as rounding the exact value, in every mode. (Boldo and Melquiond, "Emulation
of FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008.)

Sums, products, quotients and roots take a dtype (f64, f32, f16 or bf16) and a mode, and return a
function of arrays. f16 and bf16 are computed in wider types, with enough bits to round only once.
Rare cases are computed with rational numbers, one lane at a time.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from pallasc.errors import UnsupportedError

# The element types depend on the opcode, which static types cannot express.
Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """An arithmetic instruction without its operands.

    Attributes:
        sources: the dtype that each source operand is viewed as, in the order of the PTX text.
            Packed types are unsigned integers of their full width. If a register is wider than its
            source type (PTX allows a `.b32` register for `.u8`), the caller must narrow it.
        results: the dtype of each result. For a wider destination register, the value is extended
            as by `astype`: with its sign for signed types, with zeros for the others (PTX ISA 9.0,
            9.4.1).
        apply: takes one array for each source, all contiguous and of the same shape, and returns
            one new array, or a tuple if there are several results. It keeps no state, does not
            modify its arguments and raises no floating-point warnings.
    """

    sources: tuple[np.dtype[Any], ...]
    results: tuple[np.dtype[Any], ...]
    apply: Callable[..., Any]


PREDICATE = np.dtype(np.bool_)
U8, U16, U32, U64 = (np.dtype(t) for t in (np.uint8, np.uint16, np.uint32, np.uint64))
S8, S16, S32, S64 = (np.dtype(t) for t in (np.int8, np.int16, np.int32, np.int64))
F16, F32, F64 = (np.dtype(t) for t in (np.float16, np.float32, np.float64))
BF16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)

UNSIGNED: dict[str, np.dtype[Any]] = {"u8": U8, "u16": U16, "u32": U32, "u64": U64}
SIGNED: dict[str, np.dtype[Any]] = {"s8": S8, "s16": S16, "s32": S32, "s64": S64}
BITS: dict[str, np.dtype[Any]] = {"b8": U8, "b16": U16, "b32": U32, "b64": U64}
FLOATS: dict[str, np.dtype[Any]] = {"f16": F16, "bf16": BF16, "f32": F32, "f64": F64}
INTEGERS = {**UNSIGNED, **SIGNED}

# For each packed type: the dtype of a register, and the dtype of the two elements in it.
PACKED: dict[str, tuple[np.dtype[Any], np.dtype[Any]]] = {
    "f16x2": (U32, F16),
    "bf16x2": (U32, BF16),
    "u16x2": (U32, U16),
    "s16x2": (U32, S16),
    "f32x2": (U64, F32),
}

ROUNDINGS = ("rn", "rz", "rm", "rp")


DTYPES = {**INTEGERS, **BITS, **FLOATS, "pred": PREDICATE}
"""The dtype of each PTX type except packed types."""

UFUNCS: dict[str, Any] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
"""Operations of two operands that all reductions share."""


class Mnemonic:
    """A mnemonic; its methods consume its parts one by one.

    Args:
        opcode: the whole mnemonic, such as `add.rn.f32`.
        destinations: number of destination operands.
        sources: number of source operands; None if the opcode determines it.
    """

    def __init__(self, opcode: str, *, destinations: int = 1, sources: int | None = None) -> None:
        self.opcode = opcode
        self.base, *self.parts = opcode.split(".")
        self.destinations = destinations
        self.sources = sources

    def flag(self, name: str) -> bool:
        """Consume an optional part; return True if it was present."""
        if name not in self.parts:
            return False
        self.parts.remove(name)
        return True

    def choice(self, *names: str, default: str | None = None) -> str:
        """Consume the one part that is among these names.

        Raises:
            UnsupportedError: there is no such part, and no default was given.
        """
        for part in self.parts:
            if part in names:
                self.parts.remove(part)
                return part
        if default is None:
            raise self.refused(f"it needs one of .{', .'.join(names)}")
        return default

    def type(self, *names: str) -> str:
        """Consume the last part, which must be one of these types.

        Raises:
            UnsupportedError: the last part is not one of them, or no part is left.
        """
        if not self.parts:
            raise self.refused(f"it needs one of .{', .'.join(names)}")
        if self.parts[-1] not in names:
            raise self.refused(f".{self.parts[-1]} is unknown here")
        return self.parts.pop()

    def dtype(self, *names: str) -> np.dtype[Any]:
        """Consume the last part like `type`, and return its dtype."""
        return DTYPES[self.type(*names)]

    def finish(self) -> None:
        """Reject parts that have not been consumed.

        Raises:
            UnsupportedError: parts are left, or the number of operands is not supported.
        """
        if self.parts:
            raise self.refused(f".{self.parts[0]} is unknown here")
        if self.destinations != 1:
            raise self.refused(f"it has {self.destinations} destinations")
        if self.sources is not None:
            raise self.refused(f"it has {self.sources} sources")

    def refused(self, why: str) -> UnsupportedError:
        """Return the error that names the instruction and its unsupported part."""
        return UnsupportedError(
            f"the emulator does not support {self.opcode}: {why}",
            hint="docs/check.md lists what it supports.",
        )


class _Contexts(threading.local):
    """One context per thread in which NumPy ignores floating-point errors.

    `np.errstate` is a context variable since NumPy 2, and entering a context with this setting
    takes a tenth of the time of `with np.errstate`.
    """

    def __init__(self) -> None:
        context = Context()
        context.run(np.seterr, all="ignore")
        self.run = context.run


_CONTEXTS = _Contexts()


def quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that overflow, division by zero and NaN do not warn.

    A context cannot be entered recursively, so a quiet function must not call another one.
    """

    @functools.wraps(function)
    def apply(*arrays: Any) -> Any:
        return _CONTEXTS.run(function, *arrays)

    return apply


@dataclass(frozen=True, slots=True)
class Format:
    """A binary floating-point format.

    Attributes:
        precision: significant bits, including the implicit one.
        smallest_exponent: exponent of the smallest normal number.
        largest: the largest finite number.
    """

    precision: int
    smallest_exponent: int
    largest: float


# `Any` because ml_dtypes does not declare the type of `finfo`.
FACTS: Any = ml_dtypes.finfo


def _format_of(dtype: Any) -> Format:
    facts: Any = FACTS(dtype)
    return Format(facts.nmant + 1, int(facts.minexp), float(facts.max))


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


def finished(
    function: Callable[..., Array],
    *,
    ftz_in: bool = False,
    ftz_out: bool = False,
    sat: bool = False,
    relu: bool = False,
) -> Callable[..., Array]:
    """Apply modifiers to a function's operands and result, and make NaN canonical."""
    if not (ftz_in or ftz_out or sat or relu):
        return lambda *operands: canonical(function(*operands))

    def apply(*operands: Array) -> Array:
        result = function(*(map(flushed, operands) if ftz_in else operands))
        if ftz_out:
            result = flushed(result)
        if sat:
            return saturated(result)
        return rectified(result) if relu else canonical(result)

    return apply


def error_of_sum(a: Array, b: Array, total: Array) -> Array:
    """Return exactly a + b - total, where total is the rounded sum of doubles (Knuth's TwoSum)."""
    b_part = total - a
    a_part = total - b_part
    error: Array = (a - a_part) + (b - b_part)
    return error


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
    endless = np.copysign(np.inf, values)
    stays = {
        "rz": np.isfinite(values),
        "rm": np.isfinite(values) & (values > 0),
        "rp": np.isfinite(values) & (values < 0),
    }.get(mode)
    return endless if stays is None else np.where(stays, largest, endless)


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


def exact_product(a: float, b: float, mode: str) -> float:
    """Return a x b."""
    product = float(np.multiply(a, b))
    if not (math.isfinite(a) and math.isfinite(b)) or a == 0 or b == 0:
        return product
    return math.copysign(rounded(Fraction(a) * Fraction(b), mode), product)


def exact_fused(a: float, b: float, c: float, mode: str) -> float:
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


def _exact_sum(a: float, b: float, mode: str) -> float:
    return exact_fused(a, 1.0, b, mode)


def exact_quotient(a: float, b: float, mode: str) -> float:
    """Return a / b."""
    quotient = float(np.divide(a, b))
    if not (math.isfinite(a) and math.isfinite(b)) or a == 0 or b == 0:
        return quotient
    return math.copysign(rounded(Fraction(a) / Fraction(b), mode), quotient)


def exact_root(a: float, mode: str) -> float:
    """Return the square root of a."""
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


Function = Callable[..., Array]

_SMALLEST_F32 = np.array(2.0**-126, np.float32)
_HALF_UNIT = np.array(0x10000000, np.uint64)
_BELOW_F32 = np.array(0x1FFFFFFF, np.uint64)


def _double(values: Array) -> Array:
    return values.astype(np.float64)


def directed(values: Array, dtype: Any, mode: str) -> Array:
    """Round doubles, exact or rounded to odd, to a type in any mode."""
    return quantize(values, FORMATS[dtype], mode).astype(dtype)


def _rounded_sum(a: Array, b: Array, dtype: Any, mode: str) -> Array:
    """Round the sum of two exact doubles once; in mode rm, 0 becomes -0 unless both are +0."""
    total = np.add(a, b)
    odd = to_odd(total, error_of_sum(a, b, total))
    if mode == "rm":
        zero = (odd == 0) & (np.signbit(a) | np.signbit(b))
        odd = np.where(zero, -0.0, odd)
    return directed(odd, dtype, mode)


def add(dtype: Any, mode: str) -> Function:
    """Return a function that adds two numbers of this type, rounded in this mode."""
    if dtype == F64:
        return np.add if mode == "rn" else over_lanes(_exact_sum, mode)
    if mode != "rn":
        return lambda a, b: _rounded_sum(_double(a), _double(b), dtype, mode)
    # f16 and bf16 are added in f32, whose 24 bits are more than twice theirs, so that rounding
    # twice gives the same result as rounding once (Figueroa, 1995).
    return np.add


def multiply(dtype: Any, mode: str) -> Function:
    """Return a function that multiplies."""
    if dtype == F64:
        return np.multiply if mode == "rn" else over_lanes(exact_product, mode)
    if mode != "rn":
        return lambda a, b: directed(_double(a) * _double(b), dtype, mode)
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


_SPLIT = 134217729.0  # 2**27 + 1
_fused_exactly = over_lanes(exact_fused, "rn")


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
    """Return a function that computes a x b + c, rounded once (fused multiply-add)."""
    if dtype == F64:
        return _fused_f64 if mode == "rn" else over_lanes(exact_fused, mode)
    if dtype == F32 and mode == "rn":
        return _fused_f32
    return lambda a, b, c: _rounded_sum(_double(a) * _double(b), _double(c), dtype, mode)


def subtract(dtype: Any, mode: str) -> Function:
    """Return a function that subtracts."""
    if mode == "rn":
        return np.subtract
    total = add(dtype, mode)
    return lambda a, b: total(a, np.negative(b))


def divide(dtype: Any, mode: str) -> Function:
    """Return a function that divides.

    In directed modes, an f32 quotient is first rounded to a double. The result is still exact: if
    a quotient of two f32 is not an f32, its nearest double is not either.
    """
    if mode == "rn":
        return np.divide
    if dtype == F64:
        return over_lanes(exact_quotient, mode)
    return lambda a, b: directed(_double(a) / _double(b), dtype, mode)


def root(dtype: Any, mode: str) -> Function:
    """Return a function that computes the square root."""
    if mode == "rn":
        return np.sqrt
    if dtype == F64:
        return over_lanes(exact_root, mode)
    return lambda a: directed(np.sqrt(_double(a)), dtype, mode)


def reciprocal(dtype: Any, mode: str) -> Function:
    """Return a function that computes the reciprocal."""
    quotient = divide(dtype, mode)
    one = dtype.type(1)
    return lambda a: quotient(np.full(a.shape, one, dtype), a)
