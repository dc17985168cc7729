"""Integer arithmetic (PTX ISA 9.0, 9.7.1): sums, products, quotients, extremes, dot products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pallasc.emulator.numbers.arithmetic import Arithmetic, Array
from pallasc.emulator.numbers.mnemonic import (
    INTEGERS,
    PACKED,
    S32,
    S64,
    U32,
    U64,
    Mnemonic,
)
from pallasc.emulator.numbers.quiet import quiet

Function = Callable[..., Array]

# Names of the types of 16 to 64 bits.
_WIDE = ("u16", "u32", "u64", "s16", "s32", "s64")
_DOUBLE = {2: {"u": U32, "i": S32}, 4: {"u": U64, "i": S64}}


def _instruction(function: Function, name: str, sources: int) -> Arithmetic:
    if name in PACKED:
        register, element = PACKED[name]
        signed = np.dtype(np.int16) if name == "s16x2" else element

        def apply(*operands: Array) -> Array:
            return function(*[a.view(signed) for a in operands]).view(register)

        return Arithmetic((register,) * sources, (register,), apply)
    dtype = INTEGERS[name]
    return Arithmetic((dtype,) * sources, (dtype,), function)


def _saturating(function: Function) -> Function:
    """Compute a function of s32 in s64, and clamp the result."""

    def apply(*operands: Array) -> Array:
        wide = function(*[a.astype(np.int64) for a in operands])
        return np.clip(wide, -(2**31), 2**31 - 1).astype(np.int32)

    return apply


def build_sum(mnemonic: Mnemonic) -> Arithmetic:
    """Build `add` and `sub`, which wrap except with `.sat.s32`."""
    function: Function = np.add if mnemonic.base == "add" else np.subtract
    packed = ("u16x2", "s16x2") if mnemonic.base == "add" else ()
    name = mnemonic.type(*_WIDE, *packed)
    if name == "s32" and mnemonic.flag("sat"):
        function = _saturating(function)
    mnemonic.finish()
    return _instruction(function, name, 2)


_LOW_HALF = np.array(0xFFFFFFFF, np.uint64)
_32 = np.array(32, np.uint64)


def _high_of_u64(a: Array, b: Array) -> Array:
    """Return the upper 64 bits of products of u64, from products of their halves."""
    a_low, a_high, b_low, b_high = a & _LOW_HALF, a >> _32, b & _LOW_HALF, b >> _32
    middle = a_high * b_low + (a_low * b_low >> _32)
    other = a_low * b_high + (middle & _LOW_HALF)
    high: Array = a_high * b_high + (middle >> _32) + (other >> _32)
    return high


def _high_of_s64(a: Array, b: Array) -> Array:
    """Return the upper 64 bits of products of s64: unsigned, corrected for the signs."""
    high = _high_of_u64(a.view(np.uint64), b.view(np.uint64)).view(np.int64)
    result: Array = high - np.where(a < 0, b, 0) - np.where(b < 0, a, 0)
    return result


def _wide_product(dtype: Any) -> Function:
    wide = _DOUBLE[dtype.itemsize][dtype.kind]
    return lambda a, b: a.astype(wide) * b.astype(wide)


def _high_product(dtype: Any) -> Function:
    if dtype.itemsize == 8:
        return _high_of_u64 if dtype.kind == "u" else _high_of_s64
    product, bits = _wide_product(dtype), 8 * dtype.itemsize
    count = np.array(bits, _DOUBLE[dtype.itemsize][dtype.kind])
    return lambda a, b: (product(a, b) >> count).astype(dtype)


def _then_add(product: Function) -> Function:
    return lambda a, b, c: product(a, b) + c


def _low_product(_: Any) -> Function:
    return np.multiply


_PRODUCTS = {"lo": _low_product, "hi": _high_product, "wide": _wide_product}


def low_or_high_product(dtype: Any, part: str) -> Function:
    """Return the function that multiplies two integers and keeps the `lo` or the `hi` half."""
    return _PRODUCTS[part](dtype)


def build_product(mnemonic: Mnemonic) -> Arithmetic:
    """Build `mul` and `mad` of integers."""
    name = mnemonic.type(*_WIDE)
    dtype = INTEGERS[name]
    parts = ("lo", "hi", "wide") if dtype.itemsize < 8 else ("lo", "hi")
    part = mnemonic.choice(*parts)
    adds = mnemonic.base == "mad"
    sat = adds and part == "hi" and name == "s32" and mnemonic.flag("sat")
    mnemonic.finish()
    function = _PRODUCTS[part](dtype)
    result = _DOUBLE[dtype.itemsize][dtype.kind] if part == "wide" else dtype
    if not adds:
        return Arithmetic((dtype, dtype), (result,), function)
    function = _then_add(function)
    if sat:
        function = _saturating(lambda a, b, c: (a * b >> 32) + c)
    return Arithmetic((dtype, dtype, result), (result,), function)


def _low_24(values: Array) -> Array:
    """Return the lower 24 bits, sign-extended for s32."""
    eight = values.dtype.type(8)
    low: Array = (values << eight) >> eight
    return low


def _product_24(dtype: Any, part: str) -> Function:
    wide = _wide_product(dtype)
    count = np.array(16 if part == "hi" else 0, _DOUBLE[4][dtype.kind])
    return lambda a, b: (wide(_low_24(a), _low_24(b)) >> count).astype(dtype)


def build_product_24(mnemonic: Mnemonic) -> Arithmetic:
    """Build `mul24` and `mad24`: bits 0-31 or 16-47 of a product of 24-bit numbers."""
    name = mnemonic.type("u32", "s32")
    part = mnemonic.choice("lo", "hi")
    sat = mnemonic.base == "mad24" and part == "hi" and name == "s32" and mnemonic.flag("sat")
    mnemonic.finish()
    dtype = INTEGERS[name]
    function = _product_24(dtype, part)
    if mnemonic.base == "mul24":
        return Arithmetic((dtype, dtype), (dtype,), function)
    if sat:
        return Arithmetic(
            (dtype,) * 3,
            (dtype,),
            _saturating(lambda a, b, c: function(a.astype(dtype), b.astype(dtype)) + c),
        )
    return Arithmetic((dtype,) * 3, (dtype,), _then_add(function))


def _distance(a: Array, b: Array, c: Array) -> Array:
    result: Array = c + np.where(a < b, b - a, a - b)
    return result


def _quotient(a: Array, b: Array) -> Array:
    """Return a / b rounded towards zero; all bits set for a zero divisor, as on hardware."""
    zero = b == 0
    divisor = np.where(zero, b.dtype.type(1), b)
    # The remainder has the sign of a, so that the difference is divisible.
    quotient = (a - np.fmod(a, divisor)) // divisor
    return np.where(zero, ~np.zeros_like(a), quotient)


def _remainder(a: Array, b: Array) -> Array:
    """Return the remainder with the sign of a; all bits set for a zero divisor."""
    zero = b == 0
    remainder = np.fmod(a, np.where(zero, b.dtype.type(1), b))
    return np.where(zero, ~np.zeros_like(a), remainder)


_SIMPLE: dict[str, tuple[Function, int, tuple[str, ...]]] = {
    "sad": (_distance, 3, _WIDE),
    "div": (quiet(_quotient), 2, _WIDE),
    "rem": (quiet(_remainder), 2, _WIDE),
    "abs": (np.absolute, 1, ("s16", "s32", "s64")),
    "neg": (np.negative, 1, ("s16", "s32", "s64")),
}


def build_simple(mnemonic: Mnemonic) -> Arithmetic:
    """Build an instruction whose only modifier is its type."""
    function, sources, names = _SIMPLE[mnemonic.base]
    name = mnemonic.type(*names)
    mnemonic.finish()
    return _instruction(function, name, sources)


def build_extreme(mnemonic: Mnemonic) -> Arithmetic:
    """Build `min` and `max` of integers; `.relu` clamps the result at zero (9.7.1.13)."""
    name = mnemonic.type(*_WIDE, "u16x2", "s16x2")
    function: Function = np.minimum if mnemonic.base == "min" else np.maximum
    relu = name in ("s32", "s16x2") and mnemonic.flag("relu")
    mnemonic.finish()
    if not relu:
        return _instruction(function, name, 2)
    return _instruction(
        lambda a, b: np.maximum(function(a, b), a.dtype.type(0)),
        name,
        2,
    )


_BYTES: dict[str, np.dtype[Any]] = {"u32": np.dtype(np.uint8), "s32": np.dtype(np.int8)}
_PAIRS: dict[str, np.dtype[Any]] = {"u32": np.dtype(np.uint16), "s32": np.dtype(np.int16)}


def _dot(a: Array, a_type: Any, b: Array, b_type: Any, c: Array, columns: slice) -> Array:
    left = a.view(a_type).reshape(*a.shape, -1).astype(np.int64)
    right = b.view(b_type).reshape(*b.shape, -1)[..., columns].astype(np.int64)
    total = (left * right).sum(axis=-1) + c.astype(np.int64)
    result: Array = total.astype(c.dtype)
    return result


def build_dot(mnemonic: Mnemonic) -> Arithmetic:
    """Build `dp4a` and `dp2a`; the sum is s32 unless both operands are u32 (9.7.1.23)."""
    b_name, a_name = mnemonic.type("u32", "s32"), mnemonic.type("u32", "s32")
    a_types, columns = _BYTES, slice(0, 4)
    if mnemonic.base == "dp2a":
        low = mnemonic.choice("lo", "hi") == "lo"
        a_types, columns = _PAIRS, slice(0, 2) if low else slice(2, 4)
    mnemonic.finish()
    a_type, b_type = a_types[a_name], _BYTES[b_name]
    total = U32 if a_name == b_name == "u32" else S32

    def apply(a: Array, b: Array, c: Array) -> Array:
        return _dot(a, a_type, b, b_type, c, columns)

    return Arithmetic((U32, U32, total), (total,), apply)


BUILDERS = {
    "mul24": build_product_24,
    "mad24": build_product_24,
    "sad": build_simple,
    "rem": build_simple,
    "dp4a": build_dot,
    "dp2a": build_dot,
}
_TYPES = "(u16|u32|u64|s16|s32|s64)"
KNOWN = [
    (f"(add|sub).{_TYPES}", "wraps"),
    ("add.(u16x2|s16x2)", "wraps"),
    ("(add|sub).sat.s32", "clamps"),
    (f"(mul|mad).(lo|hi).{_TYPES}", "wraps"),
    ("(mul|mad).wide.(u16|u32|s16|s32)", "the whole product"),
    ("mad.hi.sat.s32", "clamps"),
    ("(mul24|mad24).(lo|hi).(u32|s32)", "of the lower 24 bits"),
    ("mad24.hi.sat.s32", "clamps"),
    (f"(div|rem).{_TYPES}", "unspecified for a zero divisor; all bits set here"),
    (f"(sad|min|max).{_TYPES}", "exact"),
    ("(min|max).(u16x2|s16x2)", "exact"),
    ("(min|max).relu.(s32|s16x2)", "clamps at zero"),
    ("(abs|neg).(s16|s32|s64)", "the smallest number stays"),
    ("dp4a.(u32|s32).(u32|s32)", "wraps"),
    ("dp2a.(lo|hi).(u32|s32).(u32|s32)", "wraps"),
]
