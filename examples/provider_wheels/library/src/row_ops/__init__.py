"""Operations on rows, with the kernels of all providers that are installed."""

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
    """Return the rows of `x: f32[rows, 4096]`, normalised and weighted."""
    return kernels()["rms_norm"](x, weight)
