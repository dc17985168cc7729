"""`cvt` between scalars (PTX ISA 9.0, 9.7.9.21).

Floats are rounded to integers in the mode of `.rni`, `.rzi`, `.rmi` or `.rpi`, and clamped to the
range. NaN becomes 0, or only the highest bit if the source is f64 or the result has 64 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pallasc.emulator.numbers import exact
from pallasc.emulator.numbers.arithmetic import Arithmetic, Array
from pallasc.emulator.numbers.mnemonic import (
    BF16,
    F16,
    F32,
    F64,
    FLOATS,
    INTEGERS,
    ROUNDINGS,
    U32,
    Mnemonic,
)
from pallasc.emulator.numbers.quiet import quiet
from pallasc.emulator.numbers.rounding import (
    FORMATS,
    TF32,
    TO_INTEGER,
    canonical,
    directed_f32,
    flushed,
    quantize,
    rectified,
    saturated,
)

Function = Callable[..., Array]

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
        return exact.over_lanes(exact.of_integer, mode)
    if target == F32:
        if mode == "rn":
            return lambda values: values.astype(np.float32)
        return lambda values: directed_f32(_double_of_integer(values), 0.0, mode)
    form = FORMATS[target]
    return lambda values: quantize(_double_of_integer(values), form, mode).astype(target)


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


def _narrow(source: Any, target: Any, mode: str, *, finite: bool) -> Function:
    """Return the conversion to a type with fewer bits."""
    # ml_dtypes converts a double to bf16 through f32, which would round twice.
    if mode == "rn" and not finite and (target == F32 or source == F32):
        return lambda values: values.astype(target)
    if target == F32:
        return lambda values: directed_f32(values, 0.0, mode)
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
    return _narrow(source, target, mode, finite=finite)


def _to_integral(dtype: Any, mode: str) -> Function:
    """Return a function that rounds floats to integers in the same type (`.rni.f32.f32`)."""
    function = TO_INTEGER[mode]

    def apply(values: Array) -> Array:
        wide = values if dtype in (F32, F64) else values.astype(np.float32)
        result: Array = function(wide).astype(dtype)
        return result

    return apply


def _finished(
    function: Function, *, ftz_in: bool, ftz_out: bool, sat: bool, relu: bool, plain: bool
) -> Function:
    if plain and not (ftz_in or ftz_out or sat or relu):
        return function

    def apply(values: Array) -> Array:
        result = function(flushed(values) if ftz_in else values)
        if ftz_out:
            result = flushed(result)
        if sat:
            return saturated(result)
        return rectified(result) if relu else canonical(result)

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
        mnemonic.finish()
        return Arithmetic((source,), (target,), _integer_to_integer(source, target, sat=sat))
    if from_float and not to_float:
        mode = _TO_INTEGER[mnemonic.choice(*_TO_INTEGER)]
        mnemonic.flag("sat")  # values out of range are clamped in any case
        mnemonic.finish()
        function = _float_to_integer(source, target, mode)
        if ftz_in:
            to_integer = function
            function = lambda values: to_integer(flushed(values))  # noqa: E731
        return Arithmetic((source,), (target,), quiet(function))
    sat = mnemonic.flag("sat")
    if not from_float:
        mode = mnemonic.choice(*ROUNDINGS)
        mnemonic.finish()
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
    mnemonic.finish()
    plain = (source, target) == (BF16, F32)
    function = _finished(function, ftz_in=ftz_in, ftz_out=ftz_out, sat=sat, relu=relu, plain=plain)
    if plain and not (ftz_out or sat or integral):
        return Arithmetic((source,), (target,), function)
    return Arithmetic((source,), (target,), quiet(function))


def build_tf32(mnemonic: Mnemonic) -> Arithmetic:
    """Build `cvt.….tf32.f32`; the result is a `.b32` register that contains the f32."""
    mnemonic.type("f32")
    mnemonic.type("tf32")
    mode = mnemonic.choice("rn", "rz", "rna")
    finite, relu = mnemonic.flag("satfinite"), mnemonic.flag("relu")
    mnemonic.finish()

    def apply(values: Array) -> Array:
        result = quantize(values.astype(np.float64), TF32, mode, finite=finite)
        narrow = result.astype(np.float32)
        return (rectified(narrow) if relu else canonical(narrow)).view(np.uint32)

    return Arithmetic((F32,), (U32,), quiet(apply))


_INT = "(u8|u16|u32|u64|s8|s16|s32|s64)"
_FLOAT = "(f16|bf16|f32|f64)"
KNOWN = [
    (f"cvt[.sat].{_INT}.{_INT}", "wraps, or clamps with .sat"),
    (f"cvt.(rni|rzi|rmi|rpi)[.ftz][.sat].{_INT}.f32", "clamps; NaN is 0, of 64 bits the highest"),
    (f"cvt.(rni|rzi|rmi|rpi)[.sat].{_INT}.(f16|bf16|f64)", "clamps; NaN as for f32 and f64"),
    (f"cvt.(rn|rz|rm|rp)[.sat].{_FLOAT}.{_INT}", "exact rounding"),
    ("cvt[.(rni|rzi|rmi|rpi)][.ftz][.sat].f32.f32", "exact"),
    ("cvt[.(rni|rzi|rmi|rpi)].(f16.f16|bf16.bf16|f64.f64)", "exact"),
    ("cvt[.ftz][.sat].f32.(f16|bf16)", "exact"),
    ("cvt[.sat].f64.(f16|bf16|f32)", "exact"),
    ("cvt.(rn|rz|rm|rp)[.ftz][.sat].f32.f64", "exact rounding"),
    ("cvt.(rn|rz|rm|rp)[.sat].(f16|bf16).(f32|f64)", "exact rounding"),
    ("cvt.(rn|rz)[.relu][.satfinite].(f16|bf16).f32", "exact rounding"),
    ("cvt.(rn|rz|rm|rp).(f16.bf16|bf16.f16)", "exact rounding"),
    ("cvt.(rn|rz|rna)[.relu][.satfinite].tf32.f32", "exact rounding"),
]
