"""Approximate instructions: the double-precision result, rounded to the nearest number.

Each differs from the hardware's result by less than the error that the manual allows (PTX ISA 9.0,
9.7.3.13 to 9.7.3.22 and 9.7.4.9 to 9.7.4.10), which is listed in `KNOWN`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pallasc.emulator.numbers.arithmetic import Arithmetic, Array
from pallasc.emulator.numbers.floats import Function, element_of, instruction
from pallasc.emulator.numbers.mnemonic import BF16, F32, F64, Mnemonic
from pallasc.emulator.numbers.quiet import quiet
from pallasc.emulator.numbers.rounding import canonical, flushed

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
            mnemonic.finish()
            return Arithmetic((F64,), (F64,), quiet(_reciprocal_root))
        if base == "rcp":
            mnemonic.choice("ftz")
        mnemonic.finish()
        return Arithmetic((F64,), (F64,), quiet(_of_high_halves(function)))
    if base == "ex2" and element == BF16:
        ftz = mnemonic.choice("ftz") == "ftz"
    else:
        ftz = element == F32 and base != "tanh" and mnemonic.flag("ftz")
    mnemonic.finish()

    return instruction(_through_doubles(function, element, ftz=ftz), name, 1)


BUILDERS = dict.fromkeys(("sin", "cos", "ex2", "lg2", "tanh", "rsqrt"), build_approximation)
KNOWN = [
    ("(sin|cos).approx[.ftz].f32", "the nearest number; absolute error 2**-20.5 allowed"),
    ("ex2.approx[.ftz].f32", "the nearest number; 2 ulp allowed"),
    ("ex2.approx.(f16|f16x2)", "the nearest number; relative error 2**-9.9 allowed"),
    ("ex2.approx.ftz.(bf16|bf16x2)", "the nearest number; relative error 2**-7 allowed"),
    ("lg2.approx[.ftz].f32", "the nearest number; absolute error 2**-22 allowed near 1"),
    ("tanh.approx.f32", "the nearest number; relative error 2**-11 allowed"),
    ("tanh.approx.(f16|f16x2)", "the nearest number; absolute error 2**-10.987 allowed"),
    ("tanh.approx.(bf16|bf16x2)", "the nearest number; absolute error 2**-8 allowed"),
    ("rsqrt.approx[.ftz].f32", "the nearest number; relative error 2**-22.9 allowed"),
    ("rcp.approx[.ftz].f32", "the nearest number; 1 ulp allowed"),
    ("sqrt.approx[.ftz].f32", "the nearest number; relative error 2**-23 allowed"),
    ("rsqrt.approx.f64", "within 2 ulp"),
    ("(rcp|rsqrt).approx.ftz.f64", "upper 32 bits of the nearest number; 20 bits are promised"),
]
