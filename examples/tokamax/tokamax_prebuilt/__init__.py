"""Tokamax's kernels for NVIDIA GPUs, compiled ahead of time.

`prebuilt()` makes Tokamax's functions run these kernels; `register()` adds them as an
implementation.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager

import pallasc

__all__ = ["PrebuiltWarning", "kernels", "prebuilt", "register"]


class PrebuiltWarning(UserWarning):
    """No compiled kernel matches a call, so Tokamax's own op runs."""


@functools.cache
def kernels() -> pallasc.Kernels:
    """Return all kernels by name; each is loaded onto a GPU when it is first used there."""
    return pallasc.load(__name__)


def prebuilt() -> AbstractContextManager[None]:
    """Run compiled kernels wherever Tokamax would run its own Mosaic GPU kernels.

    The context applies only to this thread, and takes effect when a function is traced. `jax.jit`
    traces a function separately inside and outside the context. A call without a matching kernel
    runs Tokamax's op, with one `PrebuiltWarning` for equal calls.
    """
    from tokamax_prebuilt import ops

    return ops.prebuilt()


def register() -> None:
    """Add the implementation "prebuilt" to Tokamax's functions: `implementation="prebuilt"`.

    Further calls do nothing.
    """
    from tokamax_prebuilt import ops

    ops.register()
