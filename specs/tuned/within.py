"""Whether a variant is surely within a few percent of the best one, told from rounds.

Each round has a time of both, so what slows the GPU for a while slows both, and only whether their
ratio was below the limit counts. As a run ends when it knows enough, the test is one that may be
looked at after any round (`evidence`). What is not known is taken for not within.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pallasc.specs.tuned.evidence import evidence, threshold


def is_surely_within(ratios: Sequence[float], percent: float, *, points: int) -> bool:
    """Tell whether a variant is surely at most so much slower than another.

    Args:
        ratios: its time over the other's, in each round that had both.
        percent: how much slower it may be.
        points: how many points competed.
    """
    below = sum(ratio < 1 + percent / 100 for ratio in ratios)
    return bool(ratios) and evidence(below, len(ratios)) >= threshold(points)


def surely_between(samples: Sequence[float], *, points: int) -> tuple[float, float]:
    """Return between what the median surely lies: 0 and infinity where too few can tell.

    Args:
        samples: times of one variant.
        points: how many points competed.
    """
    ordered, count = sorted(samples), len(samples)
    for signs in range(count // 2 + 1, count + 1):
        if evidence(signs, count) >= threshold(points):
            return ordered[count - signs], ordered[signs - 1]
    return 0.0, math.inf
