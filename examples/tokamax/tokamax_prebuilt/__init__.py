"""Tokamax's kernels for NVIDIA GPUs, compiled ahead of time.

`prebuilt()` has Tokamax's functions run them; `register()` adds them as an implementation.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager

import pallasc

__all__ = ["PrebuiltWarning", "kernels", "prebuilt", "register"]


class PrebuiltWarning(UserWarning):
    """No compiled kernel fits a call, which is left to Tokamax."""


@functools.cache
def kernels() -> pallasc.Kernels:
    """Return all kernels by name; they are loaded onto a GPU when they are first used there."""
    return pallasc.load(__name__)


def prebuilt() -> AbstractContextManager[None]:
    """Run compiled kernels wherever Tokamax would run its own Mosaic GPU kernels.

    It counts where a function is traced; `jax.jit` traces again inside, if it did so before
    outside, and the other way round. It holds for this thread alone. A call without a kernel goes
    to Tokamax, after a `PrebuiltWarning`, once for each call.
    """
    from tokamax_prebuilt import ops

    return ops.prebuilt()


def register() -> None:
    """Add the implementation "prebuilt" to Tokamax's functions: `implementation="prebuilt"`.

    Doing it again does nothing.
    """
    from tokamax_prebuilt import ops

    ops.register()
