"""How sure it is that one point is slower than another, from rounds in which both were measured.

Of each round only a sign counts: whether a ratio of two times was above a limit. Times of one round
are neighbours, so a drift of clocks or temperature is in both and leaves the sign alone; a single
time that was disturbed counts no more than any other.

The test is against "the ratio is above the limit in at most half of the rounds", and one may look
after every round, as often as one likes. Its measure is the likelihood of the signs so far,
averaged over all shares from a half to one, relative to their likelihood at a half:

    e(n, s) = sum of binomial(n + 1, k) for k from 0 to s, over (n + 1) * binomial(n, s)

for s signs in n rounds. Where the claim is false it is a supermartingale that starts at 1, so the
chance that it ever reaches 1 / alpha is at most alpha. Sources: J. Ville, Étude critique de la
notion de collectif, 1939 (the inequality); H. Robbins, Statistical methods related to the law of
the iterated logarithm, Annals of Mathematical Statistics 41, 1970 (the mixture); A. Ramdas,
P. Grünwald, V. Vovk and G. Shafer, Game-theoretic statistics and safe anytime-valid inference,
Statistical Science 38, 2023 (the name, e-process).

In a contest of n points two claims are made of each but the best, and all of these are right
together with a chance of at least 1 - alpha where each needs e >= 2 (n - 1) / alpha (Bonferroni).
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

ALPHA = 0.01
"""The chance that a contest drops its best point, or takes one further from it than it says."""


@functools.lru_cache(maxsize=10_000)
def evidence(signs: int, rounds: int) -> float:
    """Return the natural logarithm of e(rounds, signs).

    Args:
        signs: in how many rounds the ratio was above the limit.
        rounds: of how many.
    """
    ways = way = 1
    for k in range(signs):
        way = way * (rounds + 1 - k) // (k + 1)
        ways += way
    return math.log(ways) - math.log((rounds + 1) * math.comb(rounds, signs))


def threshold(points: int) -> float:
    """Return the evidence that a claim needs in a contest of so many points."""
    return math.log(2 * max(1, points - 1) / ALPHA)


class Pair(NamedTuple):
    """A point compared with the leader.

    Attributes:
        rounds: in how many rounds both were measured.
        ratio: median of its time relative to the leader's; 1 where there is no round.
        slower: it is known to be slower than the leader.
        faster: it is known to be faster.
        close: the leader is known to be slower than it by no more than a limit, if at all.
    """

    rounds: int
    ratio: float
    slower: bool
    faster: bool
    close: bool


def compare(ratios: Sequence[float], *, within: float, points: int) -> Pair:
    """Return what is known of a point.

    Args:
        ratios: its time relative to the leader's, in each round that had both.
        within: the limit of `close`: 0.01 for one percent.
        points: how many points compete.
    """
    rounds, needed = len(ratios), threshold(points)

    def known(signs: int) -> bool:
        return evidence(signs, rounds) >= needed

    return Pair(
        rounds=rounds,
        ratio=statistics.median(ratios) if ratios else 1.0,
        slower=known(sum(ratio > 1 for ratio in ratios)),
        faster=known(sum(ratio < 1 for ratio in ratios)),
        close=known(sum(ratio * (1 + within) > 1 for ratio in ratios)),
    )
