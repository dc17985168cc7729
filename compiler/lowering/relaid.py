"""The bytes of an array in another layout."""

from __future__ import annotations

import math
from collections.abc import Sequence


def laid_out(data: bytes, shape: Sequence[int], layout: Sequence[int]) -> bytes:
    """Return the bytes of a row-major array in a layout.

    Raises:
        ImportError: numpy is not installed.
    """
    import numpy

    items = numpy.frombuffer(data, f"V{len(data) // max(1, math.prod(shape))}").reshape(shape)
    return items.transpose(tuple(reversed(layout))).tobytes()
