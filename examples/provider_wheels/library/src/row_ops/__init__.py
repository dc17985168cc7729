"""Row-wise operations, with the kernels of all installed providers."""

from __future__ import annotations

import functools
from typing import TypeVar

import pallasc

Array = TypeVar("Array")


@functools.cache
def kernels() -> pallasc.Kernels:
    """Return all kernels by name."""
    return pallasc.load(__name__)


def rms_norm(x: Array, weight: Array) -> Array:
    """Return the normalized and weighted rows of `x: f32[rows, 4096]`."""
    return kernels()["rms_norm"](x, weight)
