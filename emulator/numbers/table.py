"""All arithmetic PTX instructions that the emulator supports, by mnemonic, and atomic operations.

An atomic operation computes the new value from the value in memory (PTX ISA 9.0, 9.7.13.5).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pallasc.emulator.numbers import conversions, floats, integers
from pallasc.emulator.numbers.rounding import (
    DTYPES,
    FLOATS,
    PACKED,
    UFUNCS,
    Arithmetic,
    Array,
    Mnemonic,
    canonical,
)

_LEAST = np.finfo(np.float32).smallest_normal


@dataclass(frozen=True, slots=True)
class Atomic:
    """An atomic operation: `apply(old, *operands)` is the new value, all scalars of `dtype`."""

    dtype: np.dtype[np.generic]
    apply: Callable[..., np.generic]


def find_atomic(operation: str, kind: str, *, flush: bool = False) -> Atomic:
    """Return the operation, such as "add" on "u32".

    Args:
        operation: add, min, max, and so on.
        kind: the type, as named in instructions.
        flush: if True, sums of f32 flush subnormals, as in global memory (9.7.13.5, 9.7.13.6).
    """
    if kind in PACKED:
        register, element = PACKED[kind]

        def of_halves(old: np.generic, new: np.generic) -> np.generic:
            pair = (np.array([word], register).view(element) for word in (old, new))
            result: Array = np.asarray(combined(operation, *pair, flush=flush)).astype(element)
            word: np.generic = register.type(result.view(register)[0])
            return word

        return Atomic(register, of_halves)
    dtype = DTYPES[kind]

    def apply(old: np.generic, *operands: np.generic) -> np.generic:
        new: np.generic = dtype.type(combined(operation, old, *operands, flush=flush))
        return new

    return Atomic(dtype, apply)


def combined(operation: str, old: Any, *operands: Any, flush: bool = True) -> Any:
    """Return the values that a reduction or an atomic operation writes, of arrays or of scalars.

    Args:
        operation: its name, such as "add" or "cas".
        old: the values in memory.
        operands: the new values; for "cas", the expected and the new values.
        flush: if True, sums of f32 flush subnormals.
    """
    new = operands[-1]
    is_float = old.dtype.kind not in "iu"
    with np.errstate(all="ignore"):
        if operation == "exch":
            return new
        if operation == "cas":
            return np.where(old == operands[0], new, old)
        if operation == "inc":
            return np.where(old >= new, np.uint32(0), old + np.uint32(1))
        if operation == "dec":
            return np.where((old == 0) | (old > new), new, old - np.uint32(1))
        if operation == "add" and old.dtype == np.float32 and flush:
            return flushed_sum(old, new)
        if is_float and operation in ("min", "max"):
            return floats.EXTREMES[operation, False](old, new)
        return UFUNCS[operation](old, new)


def flushed_sum(old: Any, new: Any) -> Any:
    """Return the sum of f32, with subnormal operands and sums flushed to zeros of the same sign."""
    if np.ndim(old) == 0 and min(abs(old), abs(new), abs(old + new)) >= _LEAST:
        return old + new  # a fast path, because most scalars are far from subnormal
    return _flushed_f32(np.add(_flushed_f32(old), _flushed_f32(new)))


def _flushed_f32(values: Any) -> Any:
    small = np.abs(values) < _LEAST
    return np.where(small, np.copysign(np.float32(0), values), values)


def reduce_values(operation: str, kind: str, values: Array, *, nan: bool, absolute: bool) -> Array:
    """Reduce values along the first axis, like `redux.sync` (9.7.13.12).

    Args:
        operation: `add`, `min`, `max`, `and`, `or` or `xor`.
        kind: the type, f32 or an integer.
        values: the values, of this type.
        nan: if True, the result is NaN if any value is NaN; otherwise only if all values are NaN.
        absolute: if True, reduce the magnitudes.
    """
    if kind != "f32":
        result: Array = UFUNCS[operation].reduce(values, axis=0, dtype=values.dtype)
        return result
    with np.errstate(all="ignore"):
        rows = np.abs(values) if absolute else values
        return canonical(functools.reduce(floats.EXTREMES[operation, nan], rows, rows[0]))


Builder = Callable[[Mnemonic], Arithmetic]

_INTEGER_PACKED = ("u16x2", "s16x2")


def _is_float(mnemonic: Mnemonic) -> bool:
    return any(
        (part in FLOATS or part in PACKED) and part not in _INTEGER_PACKED
        for part in mnemonic.parts
    )


def _by_type(of_floats: Builder, of_integers: Builder) -> Builder:
    def build(mnemonic: Mnemonic) -> Arithmetic:
        return (of_floats if _is_float(mnemonic) else of_integers)(mnemonic)

    return build


def _by_precision(exactly: Builder) -> Builder:
    def build(mnemonic: Mnemonic) -> Arithmetic:
        rough = "approx" in mnemonic.parts
        return (floats.build_approximation if rough else exactly)(mnemonic)

    return build


def _build_conversion(mnemonic: Mnemonic) -> Arithmetic:
    """Build `cvt` by its last two parts, the types of result and source."""
    if len(mnemonic.parts) < 2:
        raise mnemonic.refused("it needs two types")
    target, source = mnemonic.parts[-2:]
    if target == "tf32":
        return conversions.build_tf32(mnemonic)
    if target == "ue8m0x2":
        return conversions.build_exponents(mnemonic)
    if source == "ue8m0x2":
        return conversions.build_powers(mnemonic)
    if target in conversions.NARROW:
        return conversions.build_encoding(mnemonic)
    if source in conversions.NARROW:
        return conversions.build_decoding(mnemonic)
    if target in PACKED:
        return conversions.build_halves(mnemonic)
    return conversions.build_scalar(mnemonic)


_BUILDERS: dict[str, Builder] = {
    **floats.BUILDERS,
    **integers.BUILDERS,
    "add": _by_type(floats.build_sum, integers.build_sum),
    "sub": _by_type(floats.build_sum, integers.build_sum),
    "mul": _by_type(floats.build_sum, integers.build_product),
    "mad": _by_type(floats.build_sum, integers.build_product),
    "div": _by_type(floats.build_division, integers.build_simple),
    "min": _by_type(floats.build_extreme, integers.build_extreme),
    "max": _by_type(floats.build_extreme, integers.build_extreme),
    "abs": _by_type(floats.build_sign, integers.build_simple),
    "neg": _by_type(floats.build_sign, integers.build_simple),
    "sqrt": _by_precision(floats.build_root),
    "rcp": _by_precision(floats.build_root),
    "cvt": _build_conversion,
}
BASES = frozenset(_BUILDERS)
"""The first parts of arithmetic mnemonics that neither read nor write the carry flag."""


@functools.lru_cache(maxsize=4096)
def find(opcode: str, *, destinations: int = 1, sources: int | None = None) -> Arithmetic | None:
    """Return the arithmetic of an instruction.

    Args:
        opcode: the whole mnemonic, such as `add.rn.f32`.
        destinations: number of destinations: 2 for `setp` with `p|q`, which then has two results.
        sources: 3 for `min` and `max` of three operands; None if the opcode determines it.

    Returns:
        None if the first part of the mnemonic (its base) is not an arithmetic instruction.

    Raises:
        UnsupportedError: the base is known, but another part of the mnemonic is not.
    """
    mnemonic = Mnemonic(opcode, destinations=destinations, sources=sources)
    if mnemonic.base in integers.READERS or (
        mnemonic.base in ("add", "sub", "mad") and "cc" in mnemonic.parts
    ):
        build: Builder | None = integers.build_carry
    else:
        build = _BUILDERS.get(mnemonic.base)
    if build is None:
        return None
    arithmetic = build(mnemonic)
    mnemonic.finish()
    return arithmetic
