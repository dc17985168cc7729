"""Integer arithmetic, logic, shifts, and operations on bits (PTX ISA 9.0, 9.7.1, 9.7.2, 9.7.8).

In PTX, the carry flag is an implicit operand. Here, it is the last source of instructions that read
it, and the second result of instructions that write it: 0 or 1 in each lane. For subtraction, it is
the borrow.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from pallasc.emulator.numbers.rounding import (
    INTEGERS,
    PACKED,
    PREDICATE,
    S32,
    S64,
    U32,
    U64,
    UFUNCS,
    Arithmetic,
    Array,
    Mnemonic,
    quiet,
)

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
    return _instruction(function, name, 2)


_ALL = np.array(0xFFFFFFFF, np.uint32)
_LOW_HALF = np.array(0xFFFFFFFF, np.uint64)
_WORD = np.array(32, np.uint64)


def _high_of_u64(a: Array, b: Array) -> Array:
    """Return the upper 64 bits of products of u64, from products of their halves."""
    a_low, a_high, b_low, b_high = a & _LOW_HALF, a >> _WORD, b & _LOW_HALF, b >> _WORD
    middle = a_high * b_low + (a_low * b_low >> _WORD)
    other = a_low * b_high + (middle & _LOW_HALF)
    high: Array = a_high * b_high + (middle >> _WORD) + (other >> _WORD)
    return high


def _high_of_s64(a: Array, b: Array) -> Array:
    """Return the upper 64 bits of products of s64: of unsigned products, corrected for signs."""
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


def _product(dtype: Any, part: str) -> Function:
    """Return the function that multiplies two integers and keeps the `lo` or `hi` half, or all."""
    if part == "lo":
        return np.multiply
    return _high_product(dtype) if part == "hi" else _wide_product(dtype)


def build_product(mnemonic: Mnemonic) -> Arithmetic:
    """Build `mul` and `mad` of integers."""
    name = mnemonic.type(*_WIDE)
    dtype = INTEGERS[name]
    parts = ("lo", "hi", "wide") if dtype.itemsize < 8 else ("lo", "hi")
    part = mnemonic.choice(*parts)
    adds = mnemonic.base == "mad"
    sat = adds and part == "hi" and name == "s32" and mnemonic.flag("sat")
    function = _product(dtype, part)
    result = _DOUBLE[dtype.itemsize][dtype.kind] if part == "wide" else dtype
    if not adds:
        return Arithmetic((dtype, dtype), (result,), function)
    function = _then_add(function)
    if sat:
        function = _saturating(lambda a, b, c: (a * b >> 32) + c)
    return Arithmetic((dtype, dtype, result), (result,), function)


def _quotient(a: Array, b: Array) -> Array:
    """Return a / b rounded towards zero; all bits set for a zero divisor, as on hardware."""
    zero = b == 0
    divisor = np.where(zero, b.dtype.type(1), b)
    # The remainder has the sign of a, so a - remainder is a multiple of the divisor.
    quotient = (a - np.fmod(a, divisor)) // divisor
    return np.where(zero, ~np.zeros_like(a), quotient)


def _remainder(a: Array, b: Array) -> Array:
    """Return the remainder with the sign of a; all bits set for a zero divisor."""
    zero = b == 0
    remainder = np.fmod(a, np.where(zero, b.dtype.type(1), b))
    return np.where(zero, ~np.zeros_like(a), remainder)


_SIMPLE: dict[str, tuple[Function, int, tuple[str, ...]]] = {
    "div": (quiet(_quotient), 2, _WIDE),
    "rem": (quiet(_remainder), 2, _WIDE),
    "abs": (np.absolute, 1, ("s16", "s32", "s64")),
    "neg": (np.negative, 1, ("s16", "s32", "s64")),
}


def build_simple(mnemonic: Mnemonic) -> Arithmetic:
    """Build an instruction whose only modifier is its type."""
    function, sources, names = _SIMPLE[mnemonic.base]
    name = mnemonic.type(*names)
    return _instruction(function, name, sources)


def build_extreme(mnemonic: Mnemonic) -> Arithmetic:
    """Build `min` and `max` of integers; `.relu` clamps the result at zero (9.7.1.13)."""
    name = mnemonic.type(*_WIDE, "u16x2", "s16x2")
    function: Function = UFUNCS[mnemonic.base]
    relu = name in ("s32", "s16x2") and mnemonic.flag("relu")
    if not relu:
        return _instruction(function, name, 2)
    return _instruction(lambda a, b: np.maximum(function(a, b), a.dtype.type(0)), name, 2)


READERS = ("addc", "subc", "madc")


def writes_carry(opcode: str) -> bool:
    """Return True if an instruction sets the carry flag."""
    return "cc" in opcode.split(".")


def reads_carry(opcode: str) -> bool:
    """Return True if an instruction reads the carry flag."""
    return opcode.partition(".")[0] in READERS


def _sum(a: Array, b: Array, carry: Array) -> tuple[Array, Array]:
    partial = a + b
    total = partial + carry
    return total, ((partial < a) | (total < partial)).astype(np.uint32)


def _difference(a: Array, b: Array, borrow: Array) -> tuple[Array, Array]:
    partial = a - b
    total = partial - borrow
    return total, ((a < b) | (partial < borrow)).astype(np.uint32)


def build_carry(mnemonic: Mnemonic) -> Arithmetic:
    """Build `add`, `sub` and `mad` with `.cc`, and `addc`, `subc` and `madc`."""
    dtype = INTEGERS[mnemonic.type("u32", "s32", "u64", "s64")]
    word = U32 if dtype.itemsize == 4 else U64
    reads, writes = reads_carry(mnemonic.opcode), mnemonic.flag("cc")
    multiplies = mnemonic.base.startswith("mad")
    part = mnemonic.choice("lo", "hi") if multiplies else ""
    combine = _difference if mnemonic.base.startswith("sub") else _sum
    product = _product(dtype, part) if multiplies else None

    def apply(*operands: Array) -> Any:
        *values, last = operands
        carry = last.astype(word) if reads else np.zeros(last.shape, word)
        if not reads:
            values.append(last)
        if product is not None:
            first, second, *values = values
            values.insert(0, product(first, second))
        left, right = (value.view(word) for value in values)
        result, out = combine(left, right, carry)
        return (result.view(dtype), out) if writes else result.view(dtype)

    sources = (dtype,) * (3 if multiplies else 2) + ((U32,) if reads else ())
    return Arithmetic(sources, (dtype, U32) if writes else (dtype,), apply)


def build_logic(mnemonic: Mnemonic) -> Arithmetic:
    """Build `and`, `or`, `xor` and `not`, also for predicates."""
    dtype = mnemonic.dtype("pred", "b16", "b32", "b64")
    if mnemonic.base == "not":
        return Arithmetic((dtype,), (dtype,), np.invert)
    return Arithmetic((dtype, dtype), (dtype,), UFUNCS[mnemonic.base])


@functools.lru_cache(maxsize=256)
def _products(table: int) -> tuple[tuple[int, ...], ...]:
    """Convert a truth table to an XOR of ANDs; return the operand numbers of each AND.

    The table has 8 bits, indexed by 4a + 2b + c (algebraic normal form; the empty AND is 1).
    """
    for bit, lower in ((1, 0x55), (2, 0x33), (4, 0x0F)):
        table ^= (table & lower) << bit
    found = (n for n in range(8) if table >> n & 1)
    return tuple(tuple(m for m in range(3) if n & 4 >> m) for n in found)


def _looked_up(a: Array, b: Array, c: Array, table: Array) -> Array:
    operands = (a, b, c)
    result = np.zeros_like(a)
    for product in _products(int(table.flat[0]) & 255):
        term = _ALL
        for number in product:
            term = operands[number] if term is _ALL else term & operands[number]
        result ^= term
    return result


def build_lop3(mnemonic: Mnemonic) -> Arithmetic:
    """Build `lop3`. The table, an immediate, is a fourth source with the same value in all lanes.

    `lop3.or.b32 d|p, a, b, c, table, q` has a second destination, `(d != 0) or q`.
    """
    mnemonic.type("b32")
    joined = mnemonic.choice("or", "and", default="") if mnemonic.parts else ""
    if not joined:
        return Arithmetic((U32,) * 4, (U32,), _looked_up)
    mnemonic.destinations = 1
    join = UFUNCS[joined]

    def apply(a: Array, b: Array, c: Array, table: Array, q: Array) -> tuple[Array, Array]:
        result = _looked_up(a, b, c, table)
        return result, join(result != 0, q)

    return Arithmetic((U32, U32, U32, U32, PREDICATE), (U32, PREDICATE), apply)


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
    signed = ("u16", "u32", "u64", "s16", "s32", "s64") if mnemonic.base == "shr" else ()
    dtype = mnemonic.dtype("b16", "b32", "b64", *signed)
    function = np.left_shift if mnemonic.base == "shl" else np.right_shift
    return Arithmetic((dtype, U32), (dtype,), _shift(dtype, function))


_31, _32, _64_BITS_32 = np.array(31, np.uint32), np.array(32, np.uint32), np.array(32, np.uint64)


def build_funnel(mnemonic: Mnemonic) -> Arithmetic:
    """Build `shf`: 32 bits of b:a after a shift to the left or right (9.7.8.7)."""
    mnemonic.type("b32")
    left = mnemonic.choice("l", "r") == "l"
    clamp = mnemonic.choice("clamp", "wrap") == "clamp"

    def apply(a: Array, b: Array, count: Array) -> Array:
        n = (np.minimum(count, _32) if clamp else count & _31).astype(np.uint64)
        pair = (b.astype(np.uint64) << _64_BITS_32) | a
        shifted = (pair << n) >> _64_BITS_32 if left else pair >> n
        result: Array = shifted.astype(np.uint32)
        return result

    return Arithmetic((U32,) * 3, (U32,), apply)


def build_popc(mnemonic: Mnemonic) -> Arithmetic:
    """Build `popc`."""
    dtype = mnemonic.dtype("b32", "b64")
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
    dtype = mnemonic.dtype("b32", "b64")
    bits = 8 * dtype.itemsize
    return Arithmetic((dtype,), (U32,), lambda a: (bits - _length(a)).astype(np.uint32))


def build_bfind(mnemonic: Mnemonic) -> Arithmetic:
    """Build `bfind`: the highest bit that differs from the sign; all bits set if there is none."""
    dtype = mnemonic.dtype("u32", "u64", "s32", "s64")
    shiftamt = mnemonic.flag("shiftamt")
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
    dtype = mnemonic.dtype("b32", "b64")

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
    dtype = mnemonic.dtype("u32", "u64", "s32", "s64")
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
            # Bits that are beyond the register are sign bits, like the bits above the field.
            kept = np.minimum(count, np.maximum(np.uint64(top + 1), position) - position)
            field = np.where(negative, field | ~_ones(kept), field)
        return field.astype(unsigned).view(dtype)

    return Arithmetic((dtype, U32, U32), (dtype,), apply)


def build_bfi(mnemonic: Mnemonic) -> Arithmetic:
    """Build `bfi`: insert the lower bits of a into b."""
    dtype = mnemonic.dtype("b32", "b64")

    def apply(a: Array, b: Array, start: Array, length: Array) -> Array:
        position = (start & _BYTE).astype(np.uint64)
        mask = _ones((length & _BYTE).astype(np.uint64)) << position
        inserted: Array = (b & ~mask) | ((a.astype(np.uint64) << position) & mask)
        result: Array = inserted.astype(dtype)
        return result

    return Arithmetic((dtype, dtype, U32, U32), (dtype,), apply)


def build_szext(mnemonic: Mnemonic) -> Arithmetic:
    """Build `szext`: the lower bits of a, zero- or sign-extended (9.7.1.21)."""
    dtype = mnemonic.dtype("u32", "s32")
    clamp = mnemonic.choice("clamp", "wrap") == "clamp"

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
    if not mode:
        return Arithmetic((U32,) * 3, (U32,), _permuted)
    table = np.array(_PERMUTATIONS[mode], np.intp)

    def apply(a: Array, b: Array, selector: Array) -> Array:
        columns = table[selector & np.uint32(3)]
        return np.take_along_axis(_octets(a, b), columns, axis=-1).view(np.uint32)[..., 0]

    return Arithmetic((U32,) * 3, (U32,), apply)


BUILDERS = {
    "rem": build_simple,
    "and": build_logic,
    "or": build_logic,
    "xor": build_logic,
    "not": build_logic,
    "lop3": build_lop3,
    "shl": build_shift,
    "shr": build_shift,
    "shf": build_funnel,
    "popc": build_popc,
    "clz": build_clz,
    "bfind": build_bfind,
    "brev": build_brev,
    "bfe": build_bfe,
    "bfi": build_bfi,
    "szext": build_szext,
    "bmsk": build_bmsk,
    "prmt": build_prmt,
}
