"""A kernel of Triton that takes four arrays and does nothing."""

from __future__ import annotations

from typing import Any

import triton


@triton.jit
def nothing(a: Any, b: Any, c: Any, out: Any) -> None:
    """Do nothing."""
