"""`cvt` of packed numbers: halves, f8, f6, f4, powers of two; and `cvt.pack` (9.7.9.21, 9.7.9.22).

With two sources, the first becomes the upper part of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from pallasc.emulator.numbers.arithmetic import Arithmetic, Array
from pallasc.emulator.numbers.mnemonic import (
    BF16,
    F32,
    PACKED,
    S32,
    U8,
    U16,
    U32,
    Mnemonic,
)
from pallasc.emulator.numbers.quiet import quiet
from pallasc.emulator.numbers.rounding import (
    CANONICAL_NAN,
    FACTS,
    FORMATS,
    Format,
    canonical,
    quantize,
    rectified,
)

Function = Callable[..., Array]


@dataclass(frozen=True, slots=True)
class Narrow:
    """A format of at most eight bits.

    Attributes:
        dtype: its numbers, one per byte.
        register: dtype of a register that holds two numbers.
        bits: bits of one number within the register.
        form: precision and range.
        nan: the encoding of NaN.
    """

    dtype: np.dtype[Any]
    register: np.dtype[Any]
    bits: int
    form: Format
    nan: int


def _narrow(dtype: Any, register: np.dtype[Any], bits: int, nan: int) -> Narrow:
    facts: Any = FACTS(dtype)
    form = Format(facts.nmant + 1, int(facts.minexp), float(facts.max), has_infinity=False)
    return Narrow(np.dtype(dtype), register, bits, form, nan)


# f6 and f4 have no NaN: it becomes the largest number.
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
    mnemonic.finish()
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
    """Encode doubles in a narrow format, one per byte; values out of range are clamped."""
    unordered = np.isnan(values)
    if relu:
        values = np.maximum(values, 0.0) + 0.0
    near = quantize(np.where(unordered, 0.0, values), to.form, "rn", finite=True)
    octets = near.astype(np.float32).astype(to.dtype).view(np.uint8)
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
    mnemonic.finish()
    if source == "f32":

        def of_two(high: Array, low: Array) -> Array:
            pair = np.stack([low, high], axis=-1).astype(np.float64)
            return _joined(_encoded(pair, to, relu=relu), to)

        return Arithmetic((F32, F32), (to.register,), quiet(of_two))
    register, element = PACKED[source]

    def of_packed(values: Array) -> Array:
        pair = values.view(element).reshape(*values.shape, 2).astype(np.float64)
        return _joined(_encoded(pair, to, relu=relu), to)

    return Arithmetic((register,), (to.register,), quiet(of_packed))


_FOUR = np.array(4, np.uint8)
_LOW_FOUR = np.array(15, np.uint8)


def build_decoding(mnemonic: Mnemonic) -> Arithmetic:
    """Build `cvt.rn.f16x2.…` from a narrow format, whose numbers are all exact in f16."""
    source = NARROW[mnemonic.type(*NARROW)]
    register, element = PACKED[mnemonic.type(*_HALVES)]
    mnemonic.choice("rn")
    relu = mnemonic.flag("relu")
    mnemonic.finish()

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
    mnemonic.finish()
    if source == "f32":

        def of_two(high: Array, low: Array) -> Array:
            pair = np.stack([low, high], axis=-1).astype(np.float64)
            return _exponents(pair, mode, finite=finite).view(U16)[..., 0]

        return Arithmetic((F32, F32), (U16,), quiet(of_two))

    def of_packed(values: Array) -> Array:
        pair = values.view(BF16).reshape(*values.shape, 2).astype(np.float64)
        return _exponents(pair, mode, finite=finite).view(U16)[..., 0]

    return Arithmetic((U32,), (U16,), quiet(of_packed))


_POWERS = np.arange(256, dtype=np.uint16) << np.uint16(7)
_POWERS[0], _POWERS[255] = 0x0040, 0x7FFF


def build_powers(mnemonic: Mnemonic) -> Arithmetic:
    """Build `cvt.rn.bf16x2.ue8m0x2`."""
    mnemonic.type("ue8m0x2")
    mnemonic.type("bf16x2")
    mnemonic.choice("rn")
    mnemonic.finish()

    def apply(values: Array) -> Array:
        octets = values.view(np.uint8).reshape(*values.shape, 2)
        return _POWERS[octets].view(np.uint32)[..., 0]

    return Arithmetic((U16,), (U32,), apply)


_PARTS = {
    "u2": (0, 3),
    "s2": (-2, 1),
    "u4": (0, 15),
    "s4": (-8, 7),
    "u8": (0, 255),
    "s8": (-128, 127),
}
_WHOLE = {"u16": (0, 65535), "s16": (-32768, 32767)}


def build_pack(mnemonic: Mnemonic) -> Arithmetic:
    """Build `cvt.pack.sat`: two clamped integers below the lower part of a third operand."""
    accumulates = mnemonic.parts[-1:] == ["b32"] and bool(mnemonic.parts.pop())
    mnemonic.type("s32")
    parts = _PARTS if accumulates else _WHOLE
    name = mnemonic.type(*parts)
    mnemonic.choice("sat")
    mnemonic.finish()
    low, high = (np.int32(limit) for limit in parts[name])
    bits = int(name[1:])
    mask = np.uint32((1 << bits) - 1)
    count = np.uint32(bits)

    def pair(a: Array, b: Array) -> Array:
        upper = np.clip(a, low, high).view(np.uint32) & mask
        lower = np.clip(b, low, high).view(np.uint32) & mask
        result: Array = (upper << count) | lower
        return result

    if not accumulates:
        return Arithmetic((S32, S32), (U32,), pair)
    return Arithmetic(
        (S32, S32, U32), (U32,), lambda a, b, c: pair(a, b) | (c << np.uint32(2 * bits))
    )


_NARROW = "(e4m3x2|e5m2x2|e2m3x2|e3m2x2|e2m1x2)"
KNOWN = [
    ("cvt.(rn|rz)[.relu][.satfinite].(f16x2|bf16x2).f32", "the first source is the upper half"),
    (f"cvt.rn.satfinite[.relu].{_NARROW}.(f32|f16x2|bf16x2)", "NaN of f6 and f4 is the largest"),
    (f"cvt.rn[.relu].(f16x2|bf16x2).{_NARROW}", "exact"),
    ("cvt.(rz|rp)[.satfinite].ue8m0x2.(f32|bf16x2)", "the sign is ignored"),
    ("cvt.rn.bf16x2.ue8m0x2", "exact"),
    ("cvt.pack.sat.(u16|s16).s32", "clamps"),
    ("cvt.pack.sat.(u2|s2|u4|s4|u8|s8).s32.b32", "clamps"),
]
