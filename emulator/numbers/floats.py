"""Floating-point instructions, comparisons and selection (PTX ISA 9.0, 9.7.3 to 9.7.7).

`add`, `sub`, `mul`, `fma`, `div.rn`, `sqrt.rn` and `rcp.rn` return the IEEE 754 result. Approximate
instructions return the double-precision result, rounded to the nearest number. It differs from the
result on a GPU by less than the error that the manual allows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pallasc.emulator.numbers import rounding
from pallasc.emulator.numbers.rounding import (
    BF16,
    BITS,
    F16,
    F32,
    F64,
    FLOATS,
    INTEGERS,
    PACKED,
    PREDICATE,
    ROUNDINGS,
    UNSIGNED,
    Arithmetic,
    Array,
    Mnemonic,
    canonical,
    finished,
    flushed,
    quiet,
)

Function = Callable[..., Array]


def packed(function: Function, element: Any, register: Any) -> Function:
    """Convert a function of elements to a function of registers that hold several elements."""
    return lambda *operands: function(*[a.view(element) for a in operands]).view(register)


def instruction(function: Function, name: str, sources: int) -> Arithmetic:
    """Return a function of floats, all of the same type, as an instruction for that type."""
    if name in PACKED:
        register, element = PACKED[name]
        return Arithmetic(
            (register,) * sources, (register,), quiet(packed(function, element, register))
        )
    dtype = FLOATS[name]
    return Arithmetic((dtype,) * sources, (dtype,), quiet(function))


def element_of(name: str) -> np.dtype[Any]:
    """Return the element type of a float type or packed float type."""
    return PACKED[name][1] if name in PACKED else FLOATS[name]


_FLOAT_TYPES = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f32x2", "f64")
_SUMS = {
    "add": (rounding.add, 2),
    "sub": (rounding.subtract, 2),
    "mul": (rounding.multiply, 2),
    "fma": (rounding.fused, 3),
}
_SUMS["mad"] = _SUMS["fma"]


def _mode_of(mnemonic: Mnemonic, name: str) -> str:
    single = element_of(name) in (F32, F64)
    needed = mnemonic.base in ("fma", "mad")
    if not needed:
        return mnemonic.choice(*(ROUNDINGS if single else ("rn",)), default="rn")
    return mnemonic.choice(*(ROUNDINGS if single or element_of(name) == BF16 else ("rn",)))


def build_sum(mnemonic: Mnemonic) -> Arithmetic:
    """Build `add`, `sub`, `mul`, `fma` and `mad` of floats."""
    name = mnemonic.type(*(("f32", "f64") if mnemonic.base == "mad" else _FLOAT_TYPES))
    element = element_of(name)
    family, sources = _SUMS[mnemonic.base]
    narrow = None
    if name in ("f16", "bf16") and mnemonic.parts and mnemonic.parts[-1] == "f32":
        narrow, element, name = element, F32, mnemonic.parts.pop()
    mode = _mode_of(mnemonic, name)
    ftz = element != F64 and element != BF16 and not narrow and mnemonic.flag("ftz")
    sat = element in (F16, F32) and name != "f32x2" and mnemonic.flag("sat")
    relu = mnemonic.base == "fma" and element in (F16, BF16) and not sat and mnemonic.flag("relu")
    function = finished(family(element, mode), ftz_in=ftz, ftz_out=ftz, sat=sat, relu=relu)
    if narrow is None:
        return instruction(function, name, sources)
    return _mixed(function, narrow, sources)


def _mixed(function: Function, narrow: np.dtype[Any], sources: int) -> Arithmetic:
    """Return an f32 instruction whose operands except the last are f16 or bf16 (9.7.5)."""

    def apply(*operands: Array) -> Array:
        return function(*[a.astype(np.float32) for a in operands[:-1]], operands[-1])

    return Arithmetic((narrow,) * (sources - 1) + (F32,), (F32,), quiet(apply))


def _divide_roughly(a: Array, b: Array) -> Array:
    """Divide like `div.approx`: a divisor above 2**126 gives zero (9.7.3.8)."""
    size = np.abs(b)
    huge = (size > np.float32(2.0**126)) & np.isfinite(size)
    return np.where(huge, a * np.copysign(np.float32(0), b), a / b)


def build_division(mnemonic: Mnemonic) -> Arithmetic:
    """Build `div` of floats; `.approx` and `.full` also return the nearest number."""
    name = mnemonic.type("f32", "f64")
    if name == "f64":
        mode = mnemonic.choice(*ROUNDINGS)
    else:
        mode = mnemonic.choice(*ROUNDINGS, "approx", "full")
    ftz = name == "f32" and mnemonic.flag("ftz")
    function = (
        _divide_roughly
        if mode == "approx"
        else rounding.divide(FLOATS[name], mode.replace("full", "rn"))
    )
    return instruction(finished(function, ftz_in=ftz, ftz_out=ftz), name, 2)


def build_root(mnemonic: Mnemonic) -> Arithmetic:
    """Build `sqrt` and `rcp` in a rounding mode."""
    name = mnemonic.type("f32", "f64")
    mode = mnemonic.choice(*ROUNDINGS)
    ftz = name == "f32" and mnemonic.flag("ftz")
    family = rounding.root if mnemonic.base == "sqrt" else rounding.reciprocal
    return instruction(finished(family(FLOATS[name], mode), ftz_in=ftz, ftz_out=ftz), name, 1)


def _with_ordered_zeros(function: Function, merge: Any) -> Function:
    """Return max or min with +0 greater than -0, which NumPy does not guarantee."""

    def apply(a: Array, b: Array) -> Array:
        result = function(a, b)
        zero = result == 0
        if 1 in zero.tobytes():
            bits = np.dtype(f"u{a.dtype.itemsize}")
            merged = merge(a.view(bits), b.view(bits)).view(a.dtype)
            both = zero & (a == b)
            result = np.where(both, merged, result)
        return result

    return apply


def _xorsign(function: Function) -> Function:
    """Apply a function to magnitudes, and give the result the product of the signs."""

    def apply(*operands: Array) -> Array:
        result = function(*[np.abs(a) for a in operands])
        negative = np.signbit(operands[0]) ^ np.signbit(operands[1])
        return canonical(np.where(negative, -result, result))

    return apply


def _of_three(function: Function) -> Function:
    return lambda a, b, c: function(function(a, b), c)


def larger(a: Any, b: Any) -> Any:
    """Return the larger number, or NaN if both are NaN.

    `np.fmax` is not used, because in short arrays it returns NaN for a number and a signaling NaN.
    """
    return np.maximum(np.where(np.isnan(a), b, a), np.where(np.isnan(b), a, b))


def smaller(a: Any, b: Any) -> Any:
    """Return the smaller number, or NaN if both are NaN."""
    return np.minimum(np.where(np.isnan(a), b, a), np.where(np.isnan(b), a, b))


# The bool is True for `.NaN`: a NaN operand makes the result NaN. Two zeros are merged by their
# bits: AND gives the greater zero, OR the lesser one.
EXTREMES: dict[tuple[str, bool], Function] = {
    ("max", False): _with_ordered_zeros(larger, np.bitwise_and),
    ("max", True): _with_ordered_zeros(np.maximum, np.bitwise_and),
    ("min", False): _with_ordered_zeros(smaller, np.bitwise_or),
    ("min", True): _with_ordered_zeros(np.minimum, np.bitwise_or),
}


def build_extreme(mnemonic: Mnemonic) -> Arithmetic:
    """Build `min` and `max` of floats, of two operands or three (9.7.3.11, 9.7.3.12, 9.7.4)."""
    name = mnemonic.type("f16", "f16x2", "bf16", "bf16x2", "f32", "f64")
    element = element_of(name)
    function = EXTREMES[mnemonic.base, element != F64 and mnemonic.flag("NaN")]
    ftz = element in (F16, F32) and mnemonic.flag("ftz")
    sources, mnemonic.sources = mnemonic.sources or 2, None
    xorsign = element != F64 and sources == 2 and mnemonic.flag("xorsign")
    absolute = element != F64 and (xorsign or sources == 3) and mnemonic.flag("abs")
    if xorsign and not absolute:
        raise mnemonic.refused(".xorsign comes with .abs")
    if sources == 3:
        if name != "f32":
            raise mnemonic.refused("three operands are known for .f32 alone")
        function = _of_three(function)
    if xorsign:
        function = _xorsign(function)
    elif absolute:
        of_magnitudes = function
        function = lambda *operands: of_magnitudes(*[np.abs(a) for a in operands])  # noqa: E731
    return instruction(finished(function, ftz_in=ftz, ftz_out=ftz), name, sources)


def build_sign(mnemonic: Mnemonic) -> Arithmetic:
    """Build `abs` and `neg` of floats, which change only the sign bit, also of NaN."""
    name = mnemonic.type("f16", "f16x2", "bf16", "bf16x2", "f32", "f64")
    element = element_of(name)
    ftz = element in (F16, F32) and mnemonic.flag("ftz")
    bits = np.dtype(f"u{element.itemsize}")
    sign = np.array(1 << (8 * element.itemsize - 1), bits)
    merge, mask = (np.bitwise_xor, sign) if mnemonic.base == "neg" else (np.bitwise_and, ~sign)

    def apply(a: Array) -> Array:
        result: Array = merge((flushed(a) if ftz else a).view(bits), mask)
        return result.view(element)

    return instruction(apply, name, 1)


def build_copysign(mnemonic: Mnemonic) -> Arithmetic:
    """Build `copysign`: the sign of the first operand with the value of the second (9.7.3.2)."""
    name = mnemonic.type("f32", "f64")
    return instruction(lambda a, b: np.copysign(b, a), name, 2)


def _is_normal(values: Array) -> Array:
    size = np.abs(values)
    smallest = np.finfo(values.dtype).smallest_normal
    result: Array = np.isfinite(values) & ((size >= smallest) | (size == 0))
    return result


def _is_subnormal(values: Array) -> Array:
    size = np.abs(values)
    result: Array = (size < np.finfo(values.dtype).smallest_normal) & (size > 0)
    return result


# PTX ISA 9.0, 9.7.3.1: zeros count as normal numbers.
_CLASSES: dict[str, Function] = {
    "finite": np.isfinite,
    "infinite": np.isinf,
    "number": lambda values: ~np.isnan(values),
    "notanumber": np.isnan,
    "normal": _is_normal,
    "subnormal": _is_subnormal,
}


def build_class(mnemonic: Mnemonic) -> Arithmetic:
    """Build `testp`."""
    dtype = FLOATS[mnemonic.type("f32", "f64")]
    function = _CLASSES[mnemonic.choice(*_CLASSES)]
    return Arithmetic((dtype,), (PREDICATE,), quiet(function))


_ONE = np.array(1, np.float64)


def _reciprocal(values: Array) -> Array:
    return np.divide(_ONE, values)


def _reciprocal_root(values: Array) -> Array:
    return np.divide(_ONE, np.sqrt(values))


_FUNCTIONS: dict[str, Any] = {
    "sin": np.sin,
    "cos": np.cos,
    "ex2": np.exp2,
    "lg2": np.log2,
    "tanh": np.tanh,
    "rsqrt": _reciprocal_root,
    "rcp": _reciprocal,
    "sqrt": np.sqrt,
}
_HALVES = {"ex2": ("f16", "f16x2", "bf16", "bf16x2"), "tanh": ("f16", "f16x2", "bf16", "bf16x2")}


def _through_doubles(function: Any, dtype: Any, *, ftz: bool) -> Function:
    def apply(values: Array) -> Array:
        if ftz:
            values = flushed(values)
        result = function(values.astype(np.float64)).astype(dtype)
        return canonical(flushed(result) if ftz else result)

    return apply


_HIGH_HALF = np.array(0xFFFFFFFF00000000, np.uint64)


def _high_half(values: Array) -> Array:
    return (values.view(np.uint64) & _HIGH_HALF).view(np.float64)


def _of_high_halves(function: Any) -> Function:
    """Return `rcp` or `rsqrt` of doubles: only the upper 32 bits are read and set."""

    def apply(values: Array) -> Array:
        return _high_half(flushed(function(flushed(_high_half(values)))))

    return apply


def build_approximation(mnemonic: Mnemonic) -> Arithmetic:
    """Build an instruction with `.approx`."""
    base = mnemonic.base
    function = _FUNCTIONS[base]
    doubles = ("f64",) if base in ("rcp", "rsqrt") else ()
    name = mnemonic.type("f32", *doubles, *_HALVES.get(base, ()))
    mnemonic.choice("approx")
    element = element_of(name)
    if element == F64:
        if base == "rsqrt" and not mnemonic.flag("ftz"):
            return Arithmetic((F64,), (F64,), quiet(_reciprocal_root))
        if base == "rcp":
            mnemonic.choice("ftz")
        return Arithmetic((F64,), (F64,), quiet(_of_high_halves(function)))
    if base == "ex2" and element == BF16:
        ftz = mnemonic.choice("ftz") == "ftz"
    else:
        ftz = element == F32 and base != "tanh" and mnemonic.flag("ftz")

    return instruction(_through_doubles(function, element, ftz=ftz), name, 1)


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
    """Return a comparison for `p|q`: p is the result and q its inverse, each joined (9.7.6.2)."""
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
    dtype = mnemonic.dtype(*_MOVED)
    return Arithmetic((dtype, dtype, PREDICATE), (dtype,), _select)


def build_slct(mnemonic: Mnemonic) -> Arithmetic:
    """Build `slct`: the first source where the third is not negative; NaN counts as negative."""
    selector = mnemonic.dtype("s32", "f32")
    dtype = mnemonic.dtype(*_MOVED)
    ftz = selector == F32 and mnemonic.flag("ftz")
    zero = np.array(0, selector)

    def apply(a: Array, b: Array, c: Array) -> Array:
        return _select(a, b, (flushed(c) if ftz else c) >= zero)

    return Arithmetic((dtype, dtype, selector), (dtype,), apply)


BUILDERS = {
    "fma": build_sum,
    "copysign": build_copysign,
    "testp": build_class,
    **dict.fromkeys(("sin", "cos", "ex2", "lg2", "tanh", "rsqrt"), build_approximation),
    "setp": build_setp,
    "set": build_set,
    "selp": build_selp,
    "slct": build_slct,
}
