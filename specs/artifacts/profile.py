"""Where a profiled kernel leaves what it measured of itself.

`CompilerParams(profile_space=…)` makes every warp, or every warpgroup, of a kernel write down when
it entered and left which region. The words of one such trace, 32 bits each:

====== ==========================================================================
word   holds
====== ==========================================================================
0      the global timer when the kernel began, nanoseconds, its lower half
1      the multiprocessor that it ran on
2      how many of the words after it are used
3 …    in pairs: the region, with the highest bit set where it was left, then the
       multiprocessor's clock, cycles, its lower half
====== ==========================================================================

A buffer holds the traces of block 0, of block 1 and so on; blocks are counted with x slowest.
"""

from __future__ import annotations

from dataclasses import dataclass

HEAD_WORDS = 3
"""Words of a trace in front of its events."""

EXIT = 1 << 31
"""The bit that is set where a region is left."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The traces of one launch.

    Attributes:
        launch: number of the launch among the plan's launches.
        buffer: a temporary that holds nothing else.
        words: 32-bit words of a trace.
        traces: traces of a block.
        names: names of the regions, by their numbers.
    """

    launch: int
    buffer: int
    words: int
    traces: int
    names: tuple[str, ...]
