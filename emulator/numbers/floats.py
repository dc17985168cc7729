"""Correctly rounded floating-point instructions (PTX ISA 9.0, 9.7.3 to 9.7.5).

`add`, `sub`, `mul`, `fma`, `div.rn`, `sqrt.rn` and `rcp.rn` return the IEEE 754 result. f16 and
bf16 are computed in wider types that keep everything needed to round once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pallasc.emulator.numbers import ieee
from pallasc.emulator.numbers.arithmetic import Arithmetic, Array
from pallasc.emulator.numbers.mnemonic import (
    BF16,
    F16,
    F32,
    F64,
    FLOATS,
    PACKED,
    PREDICATE,
    ROUNDINGS,
    Mnemonic,
)
from pallasc.emulator.numbers.quiet import quiet
from pallasc.emulator.numbers.rounding import (
    canonical,
    flushed,
    rectified,
    saturated,
)

Function = Callable[..., Array]


def finished(
    function: Function, *, ftz: bool = False, sat: bool = False, relu: bool = False
) -> Function:
    """Add modifiers to a function, for operands and result, and make NaN canonical."""
    if not (ftz or sat or relu):
        return lambda *operands: canonical(function(*operands))

    def apply(*operands: Array) -> Array:
        if ftz:
            operands = tuple(flushed(operand) for operand in operands)
        result = function(*operands)
        if ftz:
            result = flushed(result)
        if sat:
            return saturated(result)
        return rectified(result) if relu else canonical(result)

    return apply


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
    "add": (ieee.add, 2),
    "sub": (ieee.subtract, 2),
    "mul": (ieee.multiply, 2),
    "fma": (ieee.fused, 3),
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
    mnemonic.finish()
    function = finished(family(element, mode), ftz=ftz, sat=sat, relu=relu)
    if narrow is None:
        return instruction(function, name, sources)
    return _mixed(function, narrow, sources)


def _mixed(function: Function, narrow: np.dtype[Any], sources: int) -> Arithmetic:
    """Return an f32 instruction whose operands except the last are f16 or bf16 (9.7.5)."""

    def apply(*operands: Array) -> Array:
        return function(*[a.astype(np.float32) for a in operands[:-1]], operands[-1])

    return Arithmetic((narrow,) * (sources - 1) + (F32,), (F32,), quiet(apply))


def _divide_roughly(a: Array, b: Array) -> Array:
    """Return a / b as by `div.approx`: a divisor above 2**126 gives zero (9.7.3.8)."""
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
    mnemonic.finish()
    function = (
        _divide_roughly
        if mode == "approx"
        else ieee.divide(FLOATS[name], mode.replace("full", "rn"))
    )
    return instruction(finished(function, ftz=ftz), name, 2)


def build_root(mnemonic: Mnemonic) -> Arithmetic:
    """Build `sqrt` and `rcp` in a rounding mode."""
    name = mnemonic.type("f32", "f64")
    mode = mnemonic.choice(*ROUNDINGS)
    ftz = name == "f32" and mnemonic.flag("ftz")
    mnemonic.finish()
    family = ieee.root if mnemonic.base == "sqrt" else ieee.reciprocal
    return instruction(finished(family(FLOATS[name], mode), ftz=ftz), name, 1)


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


# The bool is `.NaN`: NaN operands win. AND of two zeros' bits is the greater zero, OR the lesser.
_EXTREMES: dict[tuple[str, bool], Function] = {
    ("max", False): _with_ordered_zeros(np.fmax, np.bitwise_and),
    ("max", True): _with_ordered_zeros(np.maximum, np.bitwise_and),
    ("min", False): _with_ordered_zeros(np.fmin, np.bitwise_or),
    ("min", True): _with_ordered_zeros(np.minimum, np.bitwise_or),
}


def build_extreme(mnemonic: Mnemonic) -> Arithmetic:
    """Build `min` and `max` of floats, of two operands or three (9.7.3.11, 9.7.3.12, 9.7.4)."""
    name = mnemonic.type("f16", "f16x2", "bf16", "bf16x2", "f32", "f64")
    element = element_of(name)
    function = _EXTREMES[mnemonic.base, element != F64 and mnemonic.flag("NaN")]
    ftz = element in (F16, F32) and mnemonic.flag("ftz")
    sources, mnemonic.sources = mnemonic.sources or 2, None
    xorsign = element != F64 and sources == 2 and mnemonic.flag("xorsign")
    absolute = element != F64 and (xorsign or sources == 3) and mnemonic.flag("abs")
    if xorsign and not absolute:
        raise mnemonic.refused(".xorsign comes with .abs")
    mnemonic.finish()
    if sources == 3:
        if name != "f32":
            raise mnemonic.refused("three operands are known for .f32 alone")
        function = _of_three(function)
    if xorsign:
        function = _xorsign(function)
    elif absolute:
        of_magnitudes = function
        function = lambda *operands: of_magnitudes(*[np.abs(a) for a in operands])  # noqa: E731
    return instruction(finished(function, ftz=ftz), name, sources)


def build_sign(mnemonic: Mnemonic) -> Arithmetic:
    """Build `abs` and `neg` of floats, which change only the sign bit of NaN."""
    name = mnemonic.type("f16", "f16x2", "bf16", "bf16x2", "f32", "f64")
    element = element_of(name)
    ftz = element in (F16, F32) and mnemonic.flag("ftz")
    mnemonic.finish()
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
    mnemonic.finish()
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
    mnemonic.finish()
    return Arithmetic((dtype,), (PREDICATE,), quiet(function))


_MODES = "(rn|rz|rm|rp)"
BUILDERS = {
    "fma": build_sum,
    "copysign": build_copysign,
    "testp": build_class,
}
KNOWN = [
    (f"(add|sub|mul)[.{_MODES}][.ftz][.sat].f32", "exact rounding; subnormal numbers kept"),
    (f"(add|sub|mul)[.{_MODES}][.ftz].f32x2", "exact rounding of both halves"),
    (f"(add|sub|mul)[.{_MODES}].f64", "exact rounding; the payload of NaN is the host's"),
    ("(add|sub|mul)[.rn][.ftz][.sat].(f16|f16x2)", "exact rounding"),
    ("(add|sub|mul)[.rn].(bf16|bf16x2)", "exact rounding"),
    (f"(add|sub)[.{_MODES}][.sat].f32.(f16|bf16)", "exact rounding"),
    (f"(fma|mad).{_MODES}[.ftz][.sat].f32", "rounded once"),
    (f"fma.{_MODES}[.ftz].f32x2", "rounded once"),
    (f"(fma|mad).{_MODES}.f64", "rounded once"),
    ("fma.rn[.ftz][.(sat|relu)].(f16|f16x2)", "rounded once"),
    (f"fma.{_MODES}[.relu].(bf16|bf16x2)", "rounded once"),
    (f"fma.{_MODES}[.sat].f32.(f16|bf16)", "rounded once"),
    (f"div.{_MODES}[.ftz].f32", "exact rounding"),
    ("div.full[.ftz].f32", "the nearest number; the manual allows 2 ulp"),
    ("div.approx[.ftz].f32", "the nearest number, 0 for divisors above 2**126; 2 ulp allowed"),
    (f"div.{_MODES}.f64", "exact rounding"),
    (f"(sqrt|rcp).{_MODES}[.ftz].f32", "exact rounding"),
    (f"(sqrt|rcp).{_MODES}.f64", "exact rounding"),
    ("(min|max)[.ftz][.NaN][.xorsign.abs].(f32|f16|f16x2)", "+0 is greater than -0"),
    ("(min|max)[.NaN][.xorsign.abs].(bf16|bf16x2)", "+0 is greater than -0"),
    ("(min|max).f64", "+0 is greater than -0"),
    ("(abs|neg)[.ftz].(f32|f16|f16x2)", "the sign bit alone"),
    ("(abs|neg).(bf16|bf16x2|f64)", "the sign bit alone"),
    ("copysign.(f32|f64)", "sign of the first operand, value of the second"),
    ("testp.(finite|infinite|number|notanumber|normal|subnormal).(f32|f64)", "zero is normal"),
]
