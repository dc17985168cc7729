"""A kernel of Triton that takes four arrays and does nothing."""

from __future__ import annotations

import triton


@triton.jit
def nothing(a, b, c, out):
    """Do nothing."""
