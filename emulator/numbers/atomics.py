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
    dtype = _FLOATS.get(kind)
    if dtype is None and kind[0] in "bus" and kind[1:] in ("16", "32", "64"):
        dtype = np.dtype(("i" if kind[0] == "s" else "u") + str(int(kind[1:]) // 8))
    apply = (_FLOAT if kind in _FLOATS else _INTEGER).get(operation)
    if dtype is None or apply is None:
        raise UnsupportedError(
            f"the emulator does not know the atomic operation {operation}.{kind}"
        )
    return Atomic(dtype, _quiet(apply, dtype))


def _quiet(apply: Callable[..., object], dtype: np.dtype[np.generic]) -> Callable[..., np.generic]:
    def run(old: np.generic, *operands: np.generic) -> np.generic:
        with np.errstate(all="ignore"):
            return dtype.type(apply(old, *operands))

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
