"""What atomic operations make of the old value (PTX ISA 9.0, 9.7.13.5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from pallasc.errors import UnsupportedError

_FLOATS = {
    "f16": np.dtype("f2"),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype("f4"),
    "f64": np.dtype("f8"),
}

_PACKED = {"f16x2": _FLOATS["f16"], "bf16x2": _FLOATS["bf16"]}
_OF_HALVES = ("add", "min", "max")


@dataclass(frozen=True, slots=True)
class Atomic:
    """An atomic operation: `apply(old, *operands)` gives the new value, all scalars of `dtype`."""

    dtype: np.dtype[np.generic]
    apply: Callable[..., np.generic]


def find(operation: str, kind: str) -> Atomic:
    """Return the operation, such as "add" on "u32".

    Raises:
        UnsupportedError: it is not known, or not on this type.
    """
    if kind in _PACKED and operation in _OF_HALVES:
        return Atomic(np.dtype("u4"), _of_halves(_FLOAT[operation], _PACKED[kind]))
    dtype = _FLOATS.get(kind)
    if dtype is None and kind[0] in "bus" and kind[1:] in ("16", "32", "64"):
        dtype = np.dtype(("i" if kind[0] == "s" else "u") + str(int(kind[1:]) // 8))
    apply = (_FLOAT if kind in _FLOATS else _INTEGER).get(operation)
    if dtype is None or apply is None:
        raise UnsupportedError(
            f"the emulator does not support the atomic operation {operation}.{kind}"
        )
    return Atomic(dtype, _quiet(apply, dtype))


def _quiet(apply: Callable[..., object], dtype: np.dtype[np.generic]) -> Callable[..., np.generic]:
    def run(old: np.generic, *operands: np.generic) -> np.generic:
        with np.errstate(all="ignore"):
            return dtype.type(apply(old, *operands))

    return run


def _of_halves(
    apply: Callable[..., object], dtype: np.dtype[np.generic]
) -> Callable[..., np.generic]:
    """Return the operation on both halves of a word."""

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
    "min": np.fmin,
    "max": np.fmax,
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
