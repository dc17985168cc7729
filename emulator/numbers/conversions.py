"""`cvt`: scalars, packed halves, f8, f6, f4, and powers of two (PTX ISA 9.0, 9.7.9.21).

Floats are rounded to integers in the mode of `.rni`, `.rzi`, `.rmi` or `.rpi`, and clamped to the
range. NaN becomes 0, or only the highest bit if the source is f64 or the result has 64 bits. With
two sources, the first becomes the upper part of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from pallasc.emulator.numbers import rounding
from pallasc.emulator.numbers.rounding import (
    BF16,
    CANONICAL_NAN,
    F16,
    F32,
    F64,
    FACTS,
    FLOATS,
    FORMATS,
    INTEGERS,
    PACKED,
    ROUNDINGS,
    TF32,
    TO_INTEGER,
    U8,
    U16,
    U32,
    Arithmetic,
    Array,
    Mnemonic,
    canonical,
    directed,
    finished,
    flushed,
    quantize,
    quiet,
    rectified,
    saturated,
)

Function = Callable[..., Array]


@dataclass(frozen=True, slots=True)
class Narrow:
    """A format of at most eight bits.

    Attributes:
        dtype: dtype of arrays with one number per byte.
        register: dtype of a register that holds two numbers.
        bits: bits of one number within the register.
        largest: the largest number.
        nan: the encoding of NaN.
    """

    dtype: np.dtype[Any]
    register: np.dtype[Any]
    bits: int
    largest: float
    nan: int


def _narrow(dtype: Any, register: np.dtype[Any], bits: int, nan: int) -> Narrow:
    return Narrow(np.dtype(dtype), register, bits, float(FACTS(dtype).max), nan)


# f6 and f4 have no NaN; NaN is converted to the largest number.
NARROW = {
    "e4m3x2": _narrow(ml_dtypes.float8_e4m3fn, U16, 8, 0x7F),
    "e5m2x2": _narrow(ml_dtypes.float8_e5m2, U16, 8, 0x7F),
    "e2m3x2": _narrow(ml_dtypes.float6_e2m3fn, U16, 8, 0x1F),
    "e3m2x2": _narrow(ml_dtypes.float6_e3m2fn, U16, 8, 0x1F),
    "e2m1x2": _narrow(ml_dtypes.float4_e2m1fn, U8, 4, 0x7),
}
_HALVES = ("f16x2", "bf16x2")


def build_halves(mnemonic: Mnemonic) -> Arithmetic:
    """Build `cvt.….f16x2.f32` and `cvt.….bf16x2.f32`."""
    mnemonic.type("f32")
    register, element = PACKED[mnemonic.type(*_HALVES)]
    mode = mnemonic.choice("rn", "rz")
    relu, finite = mnemonic.flag("relu"), mnemonic.flag("satfinite")
    form = FORMATS[element]
    direct = mode == "rn" and not finite
    nan = CANONICAL_NAN[element][1]

    def apply(high: Array, low: Array) -> Array:
        pair = np.empty((*high.shape, 2), np.float32)
        pair[..., 1], pair[..., 0] = high, low
        unordered = np.isnan(pair)
        if direct:
            halves = pair.astype(element)
        else:
            halves = quantize(pair.astype(np.float64), form, mode, finite=finite).astype(element)
        if relu:
            halves = rectified(halves)
        packed = halves.view(np.uint16)
        if 1 in unordered.tobytes():
            np.copyto(packed, nan, where=unordered)
        return packed.view(register)[..., 0]

    return Arithmetic((F32, F32), (register,), quiet(apply))


def _encoded(values: Array, to: Narrow, *, relu: bool) -> Array:
    """Encode numbers (doubles, exact in f32), one per byte, clamped to the format's range."""
    unordered = np.isnan(values)
    if relu:
        values = np.maximum(values, 0.0) + 0.0
    inside = np.clip(np.where(unordered, 0.0, values), -to.largest, to.largest)
    octets = inside.astype(np.float32).astype(to.dtype).view(np.uint8)
    return np.where(unordered, np.uint8(to.nan), octets)


def _joined(octets: Array, to: Narrow) -> Array:
    """Pack pairs of numbers into registers, with the second of each pair in the upper part."""
    if to.bits == 8:
        return np.ascontiguousarray(octets).view(to.register).reshape(octets.shape[:-1])
    result: Array = octets[..., 0] | (octets[..., 1] << np.uint8(4))
    return result


def build_encoding(mnemonic: Mnemonic) -> Arithmetic:
    """Build `cvt.rn.satfinite.….f32 d, a, b`, and the same from packed halves."""
    source = mnemonic.type("f32", *_HALVES)
    to = NARROW[mnemonic.type(*NARROW)]
    mnemonic.choice("rn")
    mnemonic.choice("satfinite")
    relu = mnemonic.flag("relu")
    return _of_pairs(source, to.register, lambda pair: _joined(_encoded(pair, to, relu=relu), to))


def _of_pairs(source: str, register: Any, encode: Function) -> Arithmetic:
    """Build a conversion of two f32, or of packed halves; `encode` takes pairs of doubles."""
    if source == "f32":

        def of_two(high: Array, low: Array) -> Array:
            return encode(np.stack([low, high], axis=-1).astype(np.float64))

        return Arithmetic((F32, F32), (register,), quiet(of_two))
    packed, element = PACKED[source]

    def of_packed(values: Array) -> Array:
        return encode(values.view(element).reshape(*values.shape, 2).astype(np.float64))

    return Arithmetic((packed,), (register,), quiet(of_packed))


_FOUR = np.array(4, np.uint8)
_LOW_FOUR = np.array(15, np.uint8)


def build_decoding(mnemonic: Mnemonic) -> Arithmetic:
    """Build `cvt.rn.f16x2.…` from a narrow format, whose numbers are all exact in f16."""
    source = NARROW[mnemonic.type(*NARROW)]
    register, element = PACKED[mnemonic.type(*_HALVES)]
    mnemonic.choice("rn")
    relu = mnemonic.flag("relu")

    def apply(values: Array) -> Array:
        octets = values.view(np.uint8).reshape(*values.shape, source.register.itemsize)
        if source.bits == 4:
            octets = np.concatenate([octets & _LOW_FOUR, octets >> _FOUR], axis=-1)
        elif source.dtype.itemsize == 1 and source.nan == 0x1F:
            octets = octets & np.uint8(0x3F)
        wide = np.ascontiguousarray(octets).view(source.dtype).astype(np.float32)
        halves = wide.astype(element)
        halves = rectified(halves) if relu else canonical(halves)
        return halves.view(register)[..., 0]

    return Arithmetic((source.register,), (register,), quiet(apply))


def _exponents(values: Array, mode: str, *, finite: bool) -> Array:
    """Encode doubles as powers of two with a bias of 127, one per byte; NaN is 255.

    The sign is ignored. Without `.satfinite`, values out of range become NaN.
    """
    size = np.abs(values)
    fraction, exponent = np.frexp(size)
    # size = fraction * 2**exponent, with a fraction of 1/2 for powers of two.
    power = exponent - 1
    if mode == "rp":
        power = np.where(fraction > 0.5, exponent, power)
    power = np.where(size == 0, -127, np.maximum(power, -127))
    over = (power > 127) | np.isinf(size)
    biased = np.where(over, 254 if finite else 255, power + 127)
    return np.where(np.isnan(size), 255, biased).astype(np.uint8)


def build_exponents(mnemonic: Mnemonic) -> Arithmetic:
    """Build `cvt.….ue8m0x2.f32 d, a, b`, and the same from packed bf16."""
    source = mnemonic.type("f32", "bf16x2")
    mnemonic.type("ue8m0x2")
    mode = mnemonic.choice("rz", "rp")
    finite = mnemonic.flag("satfinite")
    return _of_pairs(
        source, U16, lambda pair: _exponents(pair, mode, finite=finite).view(U16)[..., 0]
    )


_POWERS = np.arange(256, dtype=np.uint16) << np.uint16(7)
_POWERS[0], _POWERS[255] = 0x0040, 0x7FFF


def build_powers(mnemonic: Mnemonic) -> Arithmetic:
    """Build `cvt.rn.bf16x2.ue8m0x2`."""
    mnemonic.type("ue8m0x2")
    mnemonic.type("bf16x2")
    mnemonic.choice("rn")

    def apply(values: Array) -> Array:
        octets = values.view(np.uint8).reshape(*values.shape, 2)
        return _POWERS[octets].view(np.uint32)[..., 0]

    return Arithmetic((U16,), (U32,), apply)


SCALARS = {**INTEGERS, **FLOATS}
_TO_INTEGER = {"rni": "rn", "rzi": "rz", "rmi": "rm", "rpi": "rp"}


def _clamped(source: Any, target: Any) -> Function:
    """Return an integer conversion that clamps to the range of the result."""
    low, high = np.iinfo(target).min, np.iinfo(target).max
    low, high = max(low, np.iinfo(source).min), min(high, np.iinfo(source).max)
    lowest, highest = source.type(low), source.type(high)
    return lambda values: np.clip(values, lowest, highest).astype(target)


def _integer_to_integer(source: Any, target: Any, *, sat: bool) -> Function:
    return _clamped(source, target) if sat else lambda values: values.astype(target)


_LOST_BITS = np.array(2047, np.uint64)


def _double_of_integer(values: Array) -> Array:
    """Convert integers to doubles, rounding to odd if they have more than 53 bits."""
    if values.dtype.itemsize < 8:
        return values.astype(np.float64)
    negative = values < 0
    size = np.where(negative, -values, values).view(np.uint64)
    high = size & ~_LOST_BITS
    sticky = np.where((size & _LOST_BITS) != 0, np.uint64(2048), np.uint64(0))
    odd = np.where(size >> np.uint64(53) != 0, high | sticky, size).astype(np.float64)
    return np.where(negative, -odd, odd)


def _integer_to_float(target: Any, mode: str) -> Function:
    if target == F64:
        if mode == "rn":
            return lambda values: values.astype(np.float64)
        return rounding.over_lanes(rounding.of_integer, mode)
    if target == F32 and mode == "rn":
        return lambda values: values.astype(np.float32)
    return lambda values: directed(_double_of_integer(values), target, mode)


def _float_to_integer(source: Any, target: Any, mode: str) -> Function:
    info = np.iinfo(target)
    bits = 8 * target.itemsize
    low, beyond = float(info.min), float(2**bits if target.kind == "u" else 2 ** (bits - 1))
    strange = source == F64 or bits == 64
    of_nan = (info.min if target.kind == "i" else 1 << (bits - 1)) if strange else 0
    to_integer = TO_INTEGER[mode]

    def apply(values: Array) -> Array:
        wide = to_integer(values.astype(np.float64))
        inside = (wide >= low) & (wide < beyond)
        result: Array
        if 0 not in inside.tobytes():
            result = wide.astype(target)
            return result
        result = np.where(inside, wide, 0.0).astype(target)
        result[wide >= beyond] = info.max
        result[wide < low] = info.min
        result[np.isnan(wide)] = of_nan
        return result

    return apply


def _narrowed(source: Any, target: Any, mode: str, *, finite: bool) -> Function:
    """Return the conversion to a type with fewer bits."""
    # ml_dtypes converts a double to bf16 through f32, which would round twice.
    if mode == "rn" and not finite and (target == F32 or source == F32):
        return lambda values: values.astype(target)
    form = FORMATS[target]
    return lambda values: quantize(values.astype(np.float64), form, mode, finite=finite).astype(
        target
    )


def _widened_bf16(values: Array) -> Array:
    result: Array = (values.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return result


def _float_to_float(source: Any, target: Any, mode: str, *, finite: bool) -> Function:
    if source == target:
        return lambda values: values.copy()
    if (source, target) == (BF16, F32):
        return _widened_bf16
    if target == F64 or (target == F32 and source != F64):
        return lambda values: values.astype(target)
    return _narrowed(source, target, mode, finite=finite)


def _to_integral(dtype: Any, mode: str) -> Function:
    """Return a function that rounds floats to integers in the same type (`.rni.f32.f32`)."""
    function = TO_INTEGER[mode]

    def apply(values: Array) -> Array:
        wide = values if dtype in (F32, F64) else values.astype(np.float32)
        result: Array = function(wide).astype(dtype)
        return result

    return apply


def build_scalar(mnemonic: Mnemonic) -> Arithmetic:
    """Build `cvt` from one number to one number."""
    source_name, target_name = mnemonic.type(*SCALARS), mnemonic.type(*SCALARS)
    source, target = SCALARS[source_name], SCALARS[target_name]
    from_float, to_float = source_name in FLOATS, target_name in FLOATS
    ftz = F32 in (source, target) and mnemonic.flag("ftz")
    # Flushing affects only f32, and only floats have subnormal numbers.
    ftz_in, ftz_out = ftz and source == F32, ftz and target == F32
    if not from_float and not to_float:
        sat = mnemonic.flag("sat")
        return Arithmetic((source,), (target,), _integer_to_integer(source, target, sat=sat))
    if from_float and not to_float:
        mode = _TO_INTEGER[mnemonic.choice(*_TO_INTEGER)]
        mnemonic.flag("sat")  # values out of range are clamped in any case
        function = _float_to_integer(source, target, mode)
        if ftz_in:
            to_integer = function
            function = lambda values: to_integer(flushed(values))  # noqa: E731
        return Arithmetic((source,), (target,), quiet(function))
    sat = mnemonic.flag("sat")
    if not from_float:
        mode = mnemonic.choice(*ROUNDINGS)
        function = _integer_to_float(target, mode)
        if sat:
            to_float_plain = function
            function = lambda values: saturated(to_float_plain(values))  # noqa: E731
        return Arithmetic((source,), (target,), quiet(function))
    return _build_between_floats(mnemonic, source, target, ftz_in, ftz_out, sat)


def _build_between_floats(
    mnemonic: Mnemonic, source: Any, target: Any, ftz_in: bool, ftz_out: bool, sat: bool
) -> Arithmetic:
    integral = mnemonic.choice(*_TO_INTEGER, default="") if source == target else ""
    narrows = source != target and (target in (F16, BF16) or (target == F32 and source == F64))
    finite = relu = False
    if integral:
        function = _to_integral(source, _TO_INTEGER[integral])
    else:
        # PTX accepts a mode on a lossless conversion, where it has no effect.
        mode = mnemonic.choice(*ROUNDINGS, default=None if narrows else "rn")
        if target in (F16, BF16) and source == F32:
            finite, relu = mnemonic.flag("satfinite"), mnemonic.flag("relu")
        function = _float_to_float(source, target, mode, finite=finite)
    plain = (source, target) == (BF16, F32)
    if plain and not (ftz_out or sat):
        return Arithmetic((source,), (target,), function)
    function = finished(function, ftz_in=ftz_in, ftz_out=ftz_out, sat=sat, relu=relu)
    return Arithmetic((source,), (target,), quiet(function))


def build_tf32(mnemonic: Mnemonic) -> Arithmetic:
    """Build `cvt.….tf32.f32`; the result is a `.b32` register that contains the f32."""
    mnemonic.type("f32")
    mnemonic.type("tf32")
    mode = mnemonic.choice("rn", "rz", "rna")
    finite, relu = mnemonic.flag("satfinite"), mnemonic.flag("relu")

    def apply(values: Array) -> Array:
        result = quantize(values.astype(np.float64), TF32, mode, finite=finite)
        narrow = result.astype(np.float32)
        return (rectified(narrow) if relu else canonical(narrow)).view(np.uint32)

    return Arithmetic((F32,), (U32,), quiet(apply))
