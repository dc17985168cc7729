"""Functions that the wrong specs name."""

from __future__ import annotations


def double(x, *, scale=2):
    """Return `x` times `scale`."""
    return x * scale
