"""Shifts, and operations on single bits and bytes (PTX ISA 9.0, 9.7.1, 9.7.8, 9.7.9.7)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from pallasc.emulator.numbers.arithmetic import Arithmetic, Array
from pallasc.emulator.numbers.mnemonic import S32, U32, Mnemonic, named

Function = Callable[..., Array]


def _shift(dtype: Any, function: Any) -> Function:
    """Return a shift with a clamped count; NumPy handles counts above the width like PTX."""
    bits = 8 * dtype.itemsize
    if dtype == U32:
        return function  # type: ignore[no-any-return]
    if dtype == S32:
        return lambda a, count: function(a, count.view(np.int32))
    if bits == 64:
        return lambda a, count: function(a, count.astype(dtype))
    width = np.array(bits, np.uint32)
    return lambda a, count: function(a, np.minimum(count, width).astype(dtype))


def build_shift(mnemonic: Mnemonic) -> Arithmetic:
    """Build `shl` and `shr`; the count is u32 for every type."""
    types = named("b16", "b32", "b64")
    if mnemonic.base == "shr":
        types |= named("u16", "u32", "u64", "s16", "s32", "s64")
    dtype = types[mnemonic.type(*types)]
    mnemonic.finish()
    function = np.left_shift if mnemonic.base == "shl" else np.right_shift
    return Arithmetic((dtype, U32), (dtype,), _shift(dtype, function))


_31, _32, _64_BITS_32 = np.array(31, np.uint32), np.array(32, np.uint32), np.array(32, np.uint64)


def build_funnel(mnemonic: Mnemonic) -> Arithmetic:
    """Build `shf`: 32 bits of b:a after a shift to the left or right (9.7.8.7)."""
    mnemonic.type("b32")
    left = mnemonic.choice("l", "r") == "l"
    clamp = mnemonic.choice("clamp", "wrap") == "clamp"
    mnemonic.finish()

    def apply(a: Array, b: Array, count: Array) -> Array:
        n = (np.minimum(count, _32) if clamp else count & _31).astype(np.uint64)
        pair = (b.astype(np.uint64) << _64_BITS_32) | a
        shifted = (pair << n) >> _64_BITS_32 if left else pair >> n
        result: Array = shifted.astype(np.uint32)
        return result

    return Arithmetic((U32,) * 3, (U32,), apply)


def build_popc(mnemonic: Mnemonic) -> Arithmetic:
    """Build `popc`."""
    types = named("b32", "b64")
    dtype = types[mnemonic.type(*types)]
    mnemonic.finish()
    return Arithmetic((dtype,), (U32,), lambda a: np.bitwise_count(a).astype(np.uint32))


def _length(values: Array) -> Array:
    """Return the bit length of unsigned numbers: 0 for zero (exact, as halves fit a double)."""
    high = values.astype(np.uint64) >> _64_BITS_32
    low = values.astype(np.uint64) & np.uint64(0xFFFFFFFF)
    _, of_high = np.frexp(high.astype(np.float64))
    _, of_low = np.frexp(low.astype(np.float64))
    return np.where(high != 0, of_high + 32, of_low)


def build_clz(mnemonic: Mnemonic) -> Arithmetic:
    """Build `clz`."""
    types = named("b32", "b64")
    dtype = types[mnemonic.type(*types)]
    mnemonic.finish()
    bits = 8 * dtype.itemsize
    return Arithmetic((dtype,), (U32,), lambda a: (bits - _length(a)).astype(np.uint32))


def build_bfind(mnemonic: Mnemonic) -> Arithmetic:
    """Build `bfind`: the highest bit that differs from the sign; all bits set if there is none."""
    types = named("u32", "u64", "s32", "s64")
    dtype = types[mnemonic.type(*types)]
    shiftamt = mnemonic.flag("shiftamt")
    mnemonic.finish()
    bits = 8 * dtype.itemsize
    unsigned = np.dtype(f"u{dtype.itemsize}")

    def apply(a: Array) -> Array:
        magnitude = np.where(a < 0, ~a, a).view(unsigned) if dtype.kind == "i" else a
        length = _length(magnitude)
        position = bits - length if shiftamt else length - 1
        return np.where(length == 0, -1, position).astype(np.int32).view(np.uint32)

    return Arithmetic((dtype,), (U32,), apply)


_REVERSED = np.array([int(f"{byte:08b}"[::-1], 2) for byte in range(256)], np.uint8)


def build_brev(mnemonic: Mnemonic) -> Arithmetic:
    """Build `brev`."""
    types = named("b32", "b64")
    dtype = types[mnemonic.type(*types)]
    mnemonic.finish()

    def apply(a: Array) -> Array:
        octets = a.view(np.uint8).reshape(*a.shape, dtype.itemsize)
        reversed_octets = np.ascontiguousarray(_REVERSED[octets[..., ::-1]])
        return reversed_octets.view(dtype).reshape(a.shape)

    return Arithmetic((dtype,), (dtype,), apply)


_ONE_64, _BYTE = np.array(1, np.uint64), np.array(255, np.uint32)


def _ones(count: Array) -> Array:
    """Return u64 with the lower `count` bits set; NumPy shifts by 64 and more to zero."""
    ones: Array = (_ONE_64 << count) - _ONE_64
    return ones


def build_bfe(mnemonic: Mnemonic) -> Arithmetic:
    """Build `bfe`: a bit field, sign-extended for signed types (9.7.1.19)."""
    types = named("u32", "u64", "s32", "s64")
    dtype = types[mnemonic.type(*types)]
    mnemonic.finish()
    top = 8 * dtype.itemsize - 1
    unsigned = np.dtype(f"u{dtype.itemsize}")

    def apply(a: Array, start: Array, length: Array) -> Array:
        position = (start & _BYTE).astype(np.uint64)
        count = (length & _BYTE).astype(np.uint64)
        bits = a.view(unsigned).astype(np.uint64)
        field = (bits >> position) & _ones(count)
        if dtype.kind == "i":
            highest = np.minimum(position + count - _ONE_64, np.uint64(top))
            negative = (count != 0) & ((bits >> highest) & _ONE_64 != 0)
            # Bits above the register count as sign bits, like the bits above the field.
            kept = np.minimum(count, np.maximum(np.uint64(top + 1), position) - position)
            field = np.where(negative, field | ~_ones(kept), field)
        return field.astype(unsigned).view(dtype)

    return Arithmetic((dtype, U32, U32), (dtype,), apply)


def build_bfi(mnemonic: Mnemonic) -> Arithmetic:
    """Build `bfi`: insert the lower bits of a into b."""
    types = named("b32", "b64")
    dtype = types[mnemonic.type(*types)]
    mnemonic.finish()

    def apply(a: Array, b: Array, start: Array, length: Array) -> Array:
        position = (start & _BYTE).astype(np.uint64)
        mask = _ones((length & _BYTE).astype(np.uint64)) << position
        inserted: Array = (b & ~mask) | ((a.astype(np.uint64) << position) & mask)
        result: Array = inserted.astype(dtype)
        return result

    return Arithmetic((dtype, dtype, U32, U32), (dtype,), apply)


def _find_nth(mask: Array, base: Array, offset: Array) -> Array:
    """Return the position of the n-th set bit from `base`: upwards, or downwards for negative n."""
    position, left = base.astype(np.int64), np.abs(offset.astype(np.int64))
    step = np.where(offset < 0, -1, 1)
    result = np.full(mask.shape, 0xFFFFFFFF, np.int64)
    wide = mask.astype(np.int64)
    result = np.where((offset == 0) & (wide >> position & 1 != 0), position, result)
    for _ in range(32):
        inside = (position >= 0) & (position < 32)
        is_set = inside & (wide >> np.clip(position, 0, 31) & 1 != 0)
        found = is_set & (left == 1)
        result = np.where(found, position, result)
        left = left - is_set
        position = position + step
    return result.astype(np.uint32)


def build_fns(mnemonic: Mnemonic) -> Arithmetic:
    """Build `fns` (9.7.1.17); a base above 31 is undefined, and is taken modulo 32 here."""
    mnemonic.type("b32")
    mnemonic.finish()
    return Arithmetic((U32, U32, S32), (U32,), lambda m, b, o: _find_nth(m, b & _31, o))


_ALL = np.array(0xFFFFFFFF, np.uint32)


def build_szext(mnemonic: Mnemonic) -> Arithmetic:
    """Build `szext`: the lower bits of a, zero- or sign-extended (9.7.1.21)."""
    types = named("u32", "s32")
    dtype = types[mnemonic.type(*types)]
    clamp = mnemonic.choice("clamp", "wrap") == "clamp"
    mnemonic.finish()

    def apply(a: Array, b: Array) -> Array:
        bits = a.view(np.uint32)
        width = b & _31
        mask = _ALL << width
        too_large = (b > _31) if clamp else np.zeros(b.shape, np.bool_)
        mask = np.where(too_large, np.uint32(0), mask)
        result = bits & ~mask
        if dtype.kind == "i":
            sign = (bits >> ((width - np.uint32(1)) & _31)) & np.uint32(1) != 0
            result = np.where(sign & (width != 0) & ~too_large, result | mask, result)
        return result.view(dtype)

    return Arithmetic((dtype, U32), (dtype,), apply)


def build_bmsk(mnemonic: Mnemonic) -> Arithmetic:
    """Build `bmsk`: b bits set from bit a on (9.7.1.22)."""
    mnemonic.type("b32")
    clamp = mnemonic.choice("clamp", "wrap") == "clamp"
    mnemonic.finish()

    def apply(a: Array, b: Array) -> Array:
        start, width = a.astype(np.uint64), b.astype(np.uint64)
        if not clamp:
            start, width = start & np.uint64(31), width & np.uint64(31)
        result: Array = (_ones(np.minimum(width, np.uint64(32))) << start).astype(np.uint32)
        return result

    return Arithmetic((U32, U32), (U32,), apply)


# For each value of the selector's two lower bits, the bytes of b:a that go to bytes 0 to 3 (PTX ISA
# 9.0, 9.7.9.7).
_PERMUTATIONS: dict[str, list[tuple[int, int, int, int]]] = {
    "f4e": [(0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)],
    "b4e": [(0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)],
    "rc8": [(0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)],
    "ecl": [(0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)],
    "ecr": [(0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)],
    "rc16": [(0, 1, 0, 1), (2, 3, 2, 3), (0, 1, 0, 1), (2, 3, 2, 3)],
}
_NIBBLES = np.array([0, 4, 8, 12], np.uint32)


def _octets(a: Array, b: Array) -> Array:
    """Return the eight bytes of b:a as the last axis."""
    pair = np.empty((*a.shape, 2), np.uint32)
    pair[..., 0], pair[..., 1] = a, b
    return pair.view(np.uint8)


@functools.lru_cache(maxsize=256)
def _columns(selector: bytes) -> Array | None:
    """Return the bytes that a selector names, or None if it replicates a sign."""
    nibbles = [octet >> shift & 15 for octet in selector[:2] for shift in (0, 4)]
    return None if max(nibbles) > 7 else np.array(nibbles, np.intp)


def _permuted(a: Array, b: Array, selector: Array) -> Array:
    """Return the bytes that the nibbles of the selector name; bit 3 replicates the sign."""
    selectors = selector.tobytes()
    if selectors == selectors[:4] * selector.size:
        columns = _columns(selectors[:4])
        if columns is not None:
            return _octets(a, b).take(columns, axis=-1).view(np.uint32)[..., 0]
    nibbles = (selector[..., np.newaxis] >> _NIBBLES) & np.uint32(15)
    octets = np.take_along_axis(_octets(a, b), (nibbles & np.uint32(7)).astype(np.intp), axis=-1)
    signs = (nibbles & np.uint32(8)) != 0
    if 1 in signs.tobytes():
        octets = np.where(signs, octets.view(np.int8) >> np.int8(7), octets.view(np.int8))
    return np.ascontiguousarray(octets).view(np.uint32)[..., 0]


def build_prmt(mnemonic: Mnemonic) -> Arithmetic:
    """Build `prmt` in its general form and its six modes."""
    mode = "" if mnemonic.parts[-1:] == ["b32"] else mnemonic.type(*_PERMUTATIONS)
    mnemonic.type("b32")
    mnemonic.finish()
    if not mode:
        return Arithmetic((U32,) * 3, (U32,), _permuted)
    table = np.array(_PERMUTATIONS[mode], np.intp)

    def apply(a: Array, b: Array, selector: Array) -> Array:
        columns = table[selector & np.uint32(3)]
        return np.take_along_axis(_octets(a, b), columns, axis=-1).view(np.uint32)[..., 0]

    return Arithmetic((U32,) * 3, (U32,), apply)


BUILDERS = {
    "shl": build_shift,
    "shr": build_shift,
    "shf": build_funnel,
    "popc": build_popc,
    "clz": build_clz,
    "bfind": build_bfind,
    "brev": build_brev,
    "bfe": build_bfe,
    "bfi": build_bfi,
    "fns": build_fns,
    "szext": build_szext,
    "bmsk": build_bmsk,
    "prmt": build_prmt,
}
KNOWN = [
    ("shl.(b16|b32|b64)", "counts are clamped"),
    ("shr.(b16|b32|b64|u16|u32|u64|s16|s32|s64)", "counts are clamped"),
    ("shf.(l|r).(clamp|wrap).b32", "exact"),
    ("(popc|clz|brev|bfi).(b32|b64)", "exact"),
    ("bfind[.shiftamt].(u32|u64|s32|s64)", "all bits set where no bit is found"),
    ("bfe.(u32|u64|s32|s64)", "exact"),
    ("fns.b32", "all bits set where no bit is found"),
    ("szext.(clamp|wrap).(u32|s32)", "exact"),
    ("bmsk.(clamp|wrap).b32", "exact"),
    ("prmt.b32[.(f4e|b4e|rc8|ecl|ecr|rc16)]", "exact"),
]
