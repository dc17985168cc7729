"""Comparison and selection (PTX ISA 9.0, 9.7.6 and 9.7.7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pallasc.emulator.numbers.arithmetic import Arithmetic, Array
from pallasc.emulator.numbers.mnemonic import (
    BITS,
    F16,
    F32,
    FLOATS,
    INTEGERS,
    PACKED,
    PREDICATE,
    UNSIGNED,
    Mnemonic,
    named,
)
from pallasc.emulator.numbers.quiet import quiet
from pallasc.emulator.numbers.rounding import flushed

Function = Callable[..., Array]

_EQUAL: dict[str, Any] = {"eq": np.equal, "ne": np.not_equal}
_ORDERED: dict[str, Any] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_OF_UNSIGNED: dict[str, Any] = {
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}


def _not_equal(a: Array, b: Array) -> Array:
    return np.not_equal(a, b) & ~(np.isnan(a) | np.isnan(b))


def _inverse(function: Any) -> Function:
    return lambda a, b: np.logical_not(function(a, b))


# A comparison of floats is false if an operand is NaN; its variant with `u` is true then.
_OF_FLOATS: dict[str, Any] = {
    "eq": np.equal,
    "ne": _not_equal,
    **_ORDERED,
    "equ": _inverse(_not_equal),
    "neu": np.not_equal,
    "ltu": _inverse(np.greater_equal),
    "leu": _inverse(np.greater),
    "gtu": _inverse(np.less_equal),
    "geu": _inverse(np.less),
    "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "nan": lambda a, b: np.isnan(a) | np.isnan(b),
}
_JOINS: dict[str, Any] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}


def _comparisons_of(name: str) -> dict[str, Any]:
    if name in FLOATS or name in PACKED:
        return _OF_FLOATS
    if name in BITS:
        return _EQUAL
    return {**_EQUAL, **_ORDERED, **(_OF_UNSIGNED if name in UNSIGNED else {})}


_COMPARED = ("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", *FLOATS)
# Halves are selected as b16 and b32.
_MOVED = tuple(name for name in _COMPARED if name not in ("f16", "bf16"))
_TYPES = {**BITS, **INTEGERS, **FLOATS}


def _comparison(mnemonic: Mnemonic, name: str, element: Any) -> tuple[Function, Any]:
    """Consume comparison, join and `.ftz`; return the comparison and the join or None."""
    table = _comparisons_of(name)
    function = table[mnemonic.choice(*table)]
    join = _JOINS.get(mnemonic.choice(*_JOINS, default=""))
    if element in (F16, F32) and mnemonic.flag("ftz"):
        compare = function
        function = lambda a, b: compare(flushed(a), flushed(b))  # noqa: E731
    return (quiet(function) if element in FLOATS.values() else function), join


def _with_inverse(function: Function, join: Any) -> Callable[..., tuple[Array, Array]]:
    """Return a comparison for the destinations `p|q`: q is joined with the inverse (9.7.6.2)."""
    if join is None:

        def plain(a: Array, b: Array) -> tuple[Array, Array]:
            first = function(a, b)
            return first, np.logical_not(first)

        return plain

    def joined(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
        first = function(a, b)
        return join(first, c), join(np.logical_not(first), c)

    return joined


def _of_halves(function: Function, join: Any, element: Any) -> Callable[..., tuple[Array, Array]]:
    """Return a comparison of packed halves: p for the lower halves, q for the upper halves."""

    def apply(a: Array, b: Array, *c: Array) -> tuple[Array, Array]:
        both = function(a.view(element), b.view(element)).reshape(*a.shape, 2)
        if c:
            both = join(both, c[0][..., np.newaxis])
        return both[..., 0].copy(), both[..., 1].copy()

    return apply


def build_setp(mnemonic: Mnemonic) -> Arithmetic:
    """Build `setp`. It has one result with one destination, and two with `p|q`.

    The source of `.and`, `.or` and `.xor` comes last, already negated if written as `!c`.
    """
    name = mnemonic.type(*_COMPARED, "f16x2", "bf16x2")
    destinations, mnemonic.destinations = mnemonic.destinations, 1
    if name in PACKED:
        register, element = PACKED[name]
    else:
        register = element = _TYPES[name]
    function, join = _comparison(mnemonic, name, element)
    mnemonic.finish()
    sources = (register, register) if join is None else (register, register, PREDICATE)
    if name in PACKED:
        return Arithmetic(sources, (PREDICATE,) * 2, _of_halves(function, join, element))
    if destinations == 2:
        return Arithmetic(sources, (PREDICATE,) * 2, _with_inverse(function, join))
    if join is None:
        return Arithmetic(sources, (PREDICATE,), function)
    return Arithmetic(sources, (PREDICATE,), lambda a, b, c: join(function(a, b), c))


def _truth(dtype: Any) -> Function:
    """Return the conversion of truth values for `set`: 1.0 for floats, all bits for integers."""
    if dtype.kind in "iu":
        return lambda truth: np.negative(truth.astype(dtype))
    return lambda truth: truth.astype(dtype)


def build_set(mnemonic: Mnemonic) -> Arithmetic:
    """Build `set`, of scalars and of packed halves (9.7.6.1, 9.7.7.1)."""
    name = mnemonic.type(*_COMPARED, "f16x2", "bf16x2")
    is_packed = name in PACKED
    if is_packed:
        source, element = PACKED[name]
        result_name = mnemonic.type(name, "u32", "s32")
        # Integers get 16 bits per half.
        result = _TYPES.get(result_name, source)
        to = element if result_name == name else np.dtype(np.uint16)
    else:
        source = element = _TYPES[name]
        others = {"f16": ("f16", "u16", "s16"), "bf16": ("bf16", "u16", "s16")}
        targets = others.get(name, ("f16", "bf16", "f32"))
        result = to = _TYPES[mnemonic.type("u32", "s32", *targets)]
    function, join = _comparison(mnemonic, name, element)
    mnemonic.finish()
    truth = _truth(to)

    def apply(a: Array, b: Array, *c: Array) -> Array:
        compared = function(a.view(element), b.view(element))
        if c:
            compared = join(compared, np.repeat(c[0], 2, axis=-1) if is_packed else c[0])
        return truth(compared).view(result)

    sources = (source, source) if join is None else (source, source, PREDICATE)
    return Arithmetic(sources, (result,), apply)


def _select(a: Array, b: Array, which: Array) -> Array:
    result = b.copy()
    np.copyto(result, a, where=which)
    return result


def build_selp(mnemonic: Mnemonic) -> Arithmetic:
    """Build `selp`: the first source where the third is true."""
    name = mnemonic.type(*_MOVED)
    mnemonic.finish()
    dtype = _TYPES[name]
    return Arithmetic((dtype, dtype, PREDICATE), (dtype,), _select)


def build_slct(mnemonic: Mnemonic) -> Arithmetic:
    """Build `slct`: the first source where the third is not negative; NaN counts as negative."""
    selector = named("s32", "f32")[mnemonic.type("s32", "f32")]
    dtype = _TYPES[mnemonic.type(*_MOVED)]
    ftz = selector == F32 and mnemonic.flag("ftz")
    mnemonic.finish()
    zero = np.array(0, selector)

    def apply(a: Array, b: Array, c: Array) -> Array:
        return _select(a, b, (flushed(c) if ftz else c) >= zero)

    return Arithmetic((dtype, dtype, selector), (dtype,), apply)


BUILDERS = {"setp": build_setp, "set": build_set, "selp": build_selp, "slct": build_slct}
_ALL = "(b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64)"
_JOIN = "[.(and|or|xor)]"
_TARGETS = "(u32|s32|f32|f16|bf16)"
_FLOAT = "(eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan)"
KNOWN = [
    (f"setp.(eq|ne){_JOIN}.(b16|b32|b64)", "one destination, or `p|q`"),
    (f"setp.(eq|ne|lt|le|gt|ge){_JOIN}.(u16|u32|u64|s16|s32|s64)", "one destination, or `p|q`"),
    (f"setp.(lo|ls|hi|hs){_JOIN}.(u16|u32|u64)", "one destination, or `p|q`"),
    (f"setp.{_FLOAT}{_JOIN}[.ftz].(f16|f32)", "one destination, or `p|q`"),
    (f"setp.{_FLOAT}{_JOIN}.(bf16|f64)", "one destination, or `p|q`"),
    (f"setp.{_FLOAT}{_JOIN}[.ftz].f16x2", "`p|q` for the lower and upper half"),
    (f"setp.{_FLOAT}{_JOIN}.bf16x2", "`p|q` for the lower and upper half"),
    (f"set.(eq|ne){_JOIN}.{_TARGETS}.(b16|b32|b64)", "1.0 or all bits"),
    (f"set.(eq|ne|lt|le|gt|ge){_JOIN}.{_TARGETS}.(u16|u32|u64|s16|s32|s64)", "1.0 or all bits"),
    (f"set.(lo|ls|hi|hs){_JOIN}.{_TARGETS}.(u16|u32|u64)", "1.0 or all bits"),
    (f"set.{_FLOAT}{_JOIN}[.ftz].{_TARGETS}.f32", "1.0 or all bits"),
    (f"set.{_FLOAT}{_JOIN}.{_TARGETS}.f64", "1.0 or all bits"),
    (f"set.{_FLOAT}{_JOIN}[.ftz].(f16|u16|s16|u32|s32).f16", "1.0 or all bits"),
    (f"set.{_FLOAT}{_JOIN}.(bf16|u16|s16|u32|s32).bf16", "1.0 or all bits"),
    (f"set.{_FLOAT}{_JOIN}[.ftz].(f16x2|u32|s32).f16x2", "1.0 or all bits in each half"),
    (f"set.{_FLOAT}{_JOIN}.(bf16x2|u32|s32).bf16x2", "1.0 or all bits in each half"),
    (f"selp.{_ALL}", "exact"),
    (f"slct.{_ALL}.s32", "exact"),
    (f"slct[.ftz].{_ALL}.f32", "NaN counts as negative"),
]
