"""The new values that atomic operations compute (PTX ISA 9.0, 9.7.13.5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from pallasc.errors import UnsupportedError

_FLOATS = {
    "f16": np.dtype("f2"),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype("f4"),
    "f64": np.dtype("f8"),
}

_LEAST = np.finfo(np.float32).smallest_normal

_PACKED = {"f16x2": _FLOATS["f16"], "bf16x2": _FLOATS["bf16"]}
_OF_HALVES = ("add", "min", "max")


@dataclass(frozen=True, slots=True)
class Atomic:
    """An atomic operation: `apply(old, *operands)` is the new value, all scalars of `dtype`."""

    dtype: np.dtype[np.generic]
    apply: Callable[..., np.generic]


def find(operation: str, kind: str, *, flush: bool = False) -> Atomic:
    """Return the operation, such as "add" on "u32".

    Args:
        operation: add, min, max, and so on.
        kind: the type, as named in instructions.
        flush: sums of f32 flush subnormals, as in global memory (9.7.13.5, 9.7.13.6).

    Raises:
        UnsupportedError: the operation is unknown, or not supported for this type.
    """
    if kind in _PACKED and operation in _OF_HALVES:
        return Atomic(np.dtype("u4"), _of_halves(_FLOAT[operation], _PACKED[kind]))
    dtype = _FLOATS.get(kind)
    if flush and (operation, kind) == ("add", "f32"):
        return Atomic(_FLOATS[kind], _quiet(flushed_sum, _FLOATS[kind]))
    if dtype is None and kind[0] in "bus" and kind[1:] in ("16", "32", "64"):
        dtype = np.dtype(("i" if kind[0] == "s" else "u") + str(int(kind[1:]) // 8))
    apply = (_FLOAT if kind in _FLOATS else _INTEGER).get(operation)
    if dtype is None or apply is None:
        raise UnsupportedError(
            f"the emulator does not support the atomic operation {operation}.{kind}"
        )
    return Atomic(dtype, _quiet(apply, dtype))


def flushed_sum(old: Any, new: Any) -> Any:
    """Return the sum of f32, with subnormal operands and sums flushed to zeros of the same sign."""
    if np.ndim(old) == 0 and min(abs(old), abs(new), abs(old + new)) >= _LEAST:
        return old + new  # a scalar: most of them are far from subnormal
    return _flushed(np.add(_flushed(old), _flushed(new)))


def _flushed(values: Any) -> Any:
    small = np.abs(values) < _LEAST
    return np.where(small, np.copysign(np.float32(0), values), values)


def lesser(old: Any, new: Any) -> Any:
    """Return the smaller number; -0.0 is smaller than +0.0, and NaN operands are ignored."""
    equal = np.where(np.signbit(old), old, new)
    return np.where(old == new, equal, np.fmin(old, new))


def greater(old: Any, new: Any) -> Any:
    """Return the larger number; +0.0 is larger than -0.0, and NaN operands are ignored."""
    equal = np.where(np.signbit(old), new, old)
    return np.where(old == new, equal, np.fmax(old, new))


def _quiet(apply: Callable[..., object], dtype: np.dtype[np.generic]) -> Callable[..., np.generic]:
    def run(old: np.generic, *operands: np.generic) -> np.generic:
        with np.errstate(all="ignore"):
            return dtype.type(apply(old, *operands))

    return run


def _of_halves(
    apply: Callable[..., object], dtype: np.dtype[np.generic]
) -> Callable[..., np.generic]:
    """Apply an operation to both halves of a word."""

    def run(old: np.generic, value: np.generic) -> np.generic:
        halves = [np.array([word], np.uint32).view(dtype) for word in (old, value)]
        with np.errstate(all="ignore"):
            result = np.asarray(apply(*halves)).astype(dtype)
        return np.uint32(result.view(np.uint32)[0])

    return run


def _increment(old: np.generic, limit: np.generic) -> object:
    return 0 if old >= limit else old + 1  # type: ignore[operator]


def _decrement(old: np.generic, limit: np.generic) -> object:
    return limit if old == 0 or old > limit else old - 1  # type: ignore[operator]


def _swap_if_equal(old: np.generic, expected: np.generic, new: np.generic) -> object:
    return new if old == expected else old


_FLOAT: dict[str, Callable[..., object]] = {
    "add": np.add,
    "min": lesser,
    "max": greater,
    "exch": lambda old, new: new,
}
_INTEGER: dict[str, Callable[..., object]] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "exch": lambda old, new: new,
    "cas": _swap_if_equal,
    "inc": _increment,
    "dec": _decrement,
}
