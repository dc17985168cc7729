"""How the traces of profiled kernels are read.

`ProfilerSpec` of jax/experimental/mosaic/gpu has the layout of a trace and the names of its
regions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Regions:
    """How the traces of one kernel are read.

    Attributes:
        kernel: the hash of the kernel, hexadecimal.
        words: 32-bit words of a trace.
        traces: traces of a block.
        names: the regions by their numbers.
    """

    kernel: str
    words: int
    traces: int
    names: tuple[str, ...]


def buffer_bytes(regions: Regions, grid: tuple[int, ...]) -> int:
    """Return what the traces of a launch take."""
    return 4 * regions.words * regions.traces * math.prod(grid)
