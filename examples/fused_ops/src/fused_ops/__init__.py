"""Fused operations for transformers on NVIDIA GPUs.

Arrays can be from torch, JAX, or cupy. Operations run on the device and stream of their arrays and
return new arrays of the same kind. If no kernel was compiled for a shape, dtype, or GPU, the call
fails, and the error lists the available kernels.
"""

from __future__ import annotations

import functools
from typing import TypeVar

import pallasc

__all__ = ["add_rms_norm", "bias_gelu", "kernels", "linear_gelu"]

Array = TypeVar("Array")


@functools.cache
def kernels() -> pallasc.Kernels:
    """Return all kernels by name; each is loaded onto a GPU when it is first used there."""
    return pallasc.load(__name__)


def bias_gelu(x: Array, bias: Array) -> Array:
    """Return `gelu(x + bias)` for `x: bf16[rows, 4096]`."""
    return kernels()["bias_gelu"](x, bias)


def add_rms_norm(x: Array, residual: Array, weight: Array) -> tuple[Array, Array]:
    """Return `x + residual`, and its RMS-normalized rows, for `x: bf16[rows, 4096]`."""
    return kernels()["add_rms_norm"](x, residual, weight)


def linear_gelu(x: Array, weight: Array, bias: Array) -> Array:
    """Return `gelu(x @ weight + bias)` for `x: bf16[rows, 4096]`, `bias: f32[4096]`."""
    return kernels()["linear_gelu"](x, weight, bias)
