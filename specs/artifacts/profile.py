"""Where a profiled kernel leaves what it measured of itself.

`CompilerParams(profile_space=…)` makes every warp, or every warpgroup, of a kernel write down when
it entered and left which region. The words of one such trace, 32 bits each:

====== ==========================================================================
word   holds
====== ==========================================================================
0      the global timer when the kernel began, nanoseconds, its lower half
1      the multiprocessor that it ran on
2      how many of the words behind are used
3 …    in pairs: the region, with the highest bit set where it was left, then the
       multiprocessor's clock, cycles, its lower half
====== ==========================================================================

A buffer holds the traces of block 0, of block 1 and so on; blocks are counted with x slowest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

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


def profile_to_json(profile: Profile) -> dict[str, Any]:
    """Return a profile as plain data for JSON."""
    return {**asdict(profile), "names": list(profile.names)}


def profile_from_json(data: Mapping[str, Any]) -> Profile:
    """Return the profile that `profile_to_json` wrote.

    Raises:
        LookupError, TypeError: a field is missing, unknown or of another type.
    """
    profile = Profile(**{**data, "names": tuple(data["names"])})
    numbers = (profile.launch, profile.buffer, profile.words, profile.traces)
    if any(type(number) is not int for number in numbers):
        raise TypeError("a profile's numbers must be numbers")
    if any(type(name) is not str for name in profile.names):
        raise TypeError("a profile's names are no text")
    return profile


def broken_profile(profile: Profile, grids: list[tuple[int, ...]], size: int) -> Iterator[str]:
    """Yield what contradicts itself.

    Args:
        profile: the profile.
        grids: the grid of each launch of the plan.
        size: bytes of its buffer.
    """
    if not 0 <= profile.launch < len(grids):
        yield f"a profile is of launch {profile.launch} of {len(grids)}"
    elif profile.words <= HEAD_WORDS or profile.traces < 1:
        yield f"a profile has {profile.traces} traces of {profile.words} words"
    elif size != 4 * profile.words * profile.traces * math.prod(grids[profile.launch]):
        yield f"a profile of {profile.traces} traces of {profile.words} words takes {size} bytes"
