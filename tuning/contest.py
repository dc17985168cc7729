"""Chooses the next step of a contest, and tests whether one point is slower than another.

`decide` is a pure function of the measurements so far, so an interrupted run continues where it
stopped. Every other point is compared with one point, the leader. If a point is known to be faster,
it becomes the leader. Points that are known to be slower are dropped. Points that are tied with the
leader are dropped if other points wait for a place in a round. The leader is at most `within`
slower than any dropped point, since only a faster point replaces the leader.

Only a sign counts from each round: whether the ratio of the two points' times is above a limit.
The times of one round are measured close together, so a drift of clocks or temperature affects both
times and does not change the sign. A single disturbed time counts no more than any other.

The null hypothesis is "the ratio is above the limit in at most half of the rounds", and the test
may be evaluated after every round. The test statistic is the likelihood of the signs so far,
averaged over all probabilities from a half to one, relative to their likelihood at a half:

    e(n, s) = sum of binomial(n + 1, k) for k from 0 to s, over (n + 1) * binomial(n, s)

where n is the number of rounds, and s the number of rounds whose ratio was above the limit. Under
the null hypothesis, e is a supermartingale that starts at 1, so the probability that e ever reaches
1 / alpha is at most alpha. Sources: J. Ville, Étude critique de la notion de collectif, 1939 (the
inequality); H. Robbins, Statistical methods related to the law of the iterated logarithm, Annals of
Mathematical Statistics 41, 1970 (the mixture); A. Ramdas, P. Grünwald, V. Vovk and G. Shafer,
Game-theoretic statistics and safe anytime-valid inference, Statistical Science 38, 2023 (the name,
e-process).

A contest of n points makes two claims about each point except the best one. All claims are correct
with a probability of at least 1 - alpha if each requires e >= 2 (n - 1) / alpha (Bonferroni).
"""

from __future__ import annotations

import functools
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pallasc.tuning.results import Contest, Done, Dropped, PointResults

ALPHA = 0.01
"""Maximum probability that a contest drops its best point, or accepts one outside the limit."""


@functools.lru_cache(maxsize=10_000)
def evidence(signs: int, rounds: int) -> float:
    """Return the natural logarithm of e(rounds, signs).

    Args:
        signs: number of rounds in which the ratio was above the limit.
        rounds: total number of rounds.
    """
    ways = way = 1
    for k in range(signs):
        way = way * (rounds + 1 - k) // (k + 1)
        ways += way
    return math.log(ways) - math.log((rounds + 1) * math.comb(rounds, signs))


def threshold(points: int) -> float:
    """Return the evidence that a claim needs in a contest with this number of points."""
    return math.log(2 * max(1, points - 1) / ALPHA)


class Pair(NamedTuple):
    """A point compared with the leader.

    Attributes:
        rounds: number of rounds in which both were measured.
        ratio: median ratio of the point's time to the leader's; 1 if they share no round.
        slower: True if the point is known to be slower than the leader.
        faster: True if the point is known to be faster than the leader.
        close: True if the leader is known to be at most `within` slower than the point.
    """

    rounds: int
    ratio: float
    slower: bool
    faster: bool
    close: bool


def compare(ratios: Sequence[float], *, within: float, points: int) -> Pair:
    """Compare a point with the leader.

    Args:
        ratios: the point's time over the leader's, in each round that measured both.
        within: the limit of `close`: 0.01 for one percent.
        points: number of competing points.
    """
    return Pair(
        rounds=len(ratios),
        ratio=statistics.median(ratios) if ratios else 1.0,
        slower=_known([ratio > 1 for ratio in ratios], points),
        faster=_known([ratio < 1 for ratio in ratios], points),
        close=_known([ratio * (1 + within) > 1 for ratio in ratios], points),
    )


def is_surely_within(ratios: Sequence[float], percent: float, *, points: int) -> bool:
    """Return True if one variant is known to be less than `percent` slower than another.

    Args:
        ratios: the variant's time over the other's, in each round that measured both.
        percent: how much slower the variant may be.
        points: number of points that competed.
    """
    return _known([ratio < 1 + percent / 100 for ratio in ratios], points)


def _known(signs: Sequence[bool], points: int) -> bool:
    return evidence(sum(signs), len(signs)) >= threshold(points)


LEAST_ROUNDS = 5
"""Number of rounds that the leader needs before other points are compared with it."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules for ending a contest.

    Attributes:
        within: points are tied if the leader is slower by at most this fraction (0.01: 1 percent).
        rounds: after this many rounds, the median of ratios decides between two points.
        seconds: time limit for the measurements of a contest.
        together: maximum number of points in a round.
    """

    within: float = 0.01
    rounds: int = 200
    seconds: float = 60.0
    together: int = 8


class Measure(NamedTuple):
    """The points of the next round, in the order of their measurement."""

    round: int
    ids: tuple[str, ...]


Decision = Dropped | Measure | Done


def decide(contest: Contest, order: Sequence[str], rules: Rules) -> Decision:
    """Decide on the next step.

    Args:
        contest: the results so far; points that were not launched yet may be missing.
        order: the ids of all points, most promising first.
        rules: the rules for ending the contest.
    """
    alive = [name for name in order if _is_alive(contest.points.get(name))]
    if not alive:
        return _done(contest, None, "no point is valid")
    measured = [name for name in alive if _rounds(contest, name)]
    leader = find_leader(contest, measured)
    # The leader comes first, then points that were measured before, then new points.
    window = sorted(alive, key=lambda name: (name != leader, name not in measured))
    window = window[: max(2, rules.together)]
    if leader is None or _rounds(contest, leader) < LEAST_ROUNDS:
        return _next_round(contest, window)
    pairs = {
        name: compare(contest.ratios(name, leader), within=rules.within, points=len(order))
        for name in measured
        if name != leader
    }
    drop = _slower(contest, leader, pairs, rules)
    if drop is not None:
        return drop
    if contest.spent_s >= rules.seconds:
        return _out_of_time(contest, leader, pairs, len(alive) - len(measured), rules)
    ties = [name for name, pair in pairs.items() if pair.close or pair.rounds >= rules.rounds]
    if len(ties) == len(alive) - 1:
        return _done(contest, leader, _why_done(contest, leader, len(order), rules))
    if ties and len(alive) > len(window):
        last = max(ties, key=lambda name: pairs[name].ratio)
        word = "tied" if pairs[last].close else _unsettled(rules)
        why = f"{word}: {_percent(pairs[last].ratio)} slower"
        return _dropped(contest, last, leader, why)
    return _next_round(contest, window)


def find_leader(contest: Contest, measured: Sequence[str]) -> str | None:
    """Return the point that others are compared with, None before the first round.

    The leader is the point that the last dropped point was compared with. If no point was dropped,
    or that point has failed, the leader has the lowest median time in its own first rounds.
    """
    if contest.leaders and contest.leaders[-1] in measured:
        return contest.leaders[-1]

    def early_us(name: str) -> float:
        return statistics.median([*contest.points[name].times_us.values()][:LEAST_ROUNDS])

    return min(measured, key=early_us, default=None)


def _dropped(contest: Contest, name: str, by: str, why: str) -> Dropped:
    return Dropped(contest.kernel, contest.key, contest.at, id=name, by=by, why=why)


def _done(contest: Contest, winner: str | None, why: str) -> Done:
    return Done(contest.kernel, contest.key, contest.at, winner=winner, why=why)


def _is_alive(point: PointResults | None) -> bool:
    return point is None or not (point.failed or point.dropped)


def _rounds(contest: Contest, name: str) -> int:
    return len(contest.points[name].times_us) if name in contest.points else 0


def _next_round(contest: Contest, window: Sequence[str]) -> Measure:
    number, ids = len(contest.rounds) + 1, list(window)
    random.Random(f"{contest.kernel} {contest.key} {number}").shuffle(ids)
    return Measure(number, tuple(ids))


def _slower(contest: Contest, leader: str, pairs: dict[str, Pair], rules: Rules) -> Dropped | None:
    """Return a point to drop because another is faster, None if there is none."""
    if faster := {name: pair for name, pair in pairs.items() if pair.faster}:
        return _dropped_leader(contest, leader, faster)
    for name, pair in pairs.items():
        if pair.slower:
            return _dropped(contest, name, leader, _slower_text(pair.ratio, pair.rounds))
    ahead = {
        name: pair
        for name, pair in pairs.items()
        if pair.rounds >= rules.rounds and pair.ratio < 1 and not pair.close
    }
    return _dropped_leader(contest, leader, ahead, ", by the median alone") if ahead else None


def _dropped_leader(
    contest: Contest, leader: str, faster: dict[str, Pair], how: str = ""
) -> Dropped:
    best = min(faster, key=lambda name: faster[name].ratio)
    text = _slower_text(1 / faster[best].ratio, faster[best].rounds)
    return _dropped(contest, leader, best, text + how)


def _out_of_time(
    contest: Contest, leader: str, pairs: dict[str, Pair], fresh: int, rules: Rules
) -> Done:
    """End the contest: the point with the lowest median ratio to the leader wins.

    For a point that shares no round with the leader, the ratio of their median times counts.
    """
    leader_us = contest.points[leader].median_us
    ratios = {
        name: pair.ratio if pair.rounds else contest.points[name].median_us / leader_us
        for name, pair in pairs.items()
    }
    # The leader comes first, so it wins if others are equally fast.
    best = min([leader, *sorted(ratios)], key=lambda name: ratios.get(name, 1.0))
    left = f", and {fresh} points were not measured" if fresh else ""
    return _done(contest, best, f"the fastest by the median after {rules.seconds:g} s{left}")


def _why_done(contest: Contest, leader: str, points: int, rules: Rules) -> str:
    pairs = [
        compare(
            contest.ratios(own.id, own.dropped_by or leader), within=rules.within, points=points
        )
        for own in contest.valid
        if own.id != leader
    ]
    if not pairs:
        return "the only valid point"
    if all(pair.slower for pair in pairs):
        return "faster than every other point"
    if all(pair.slower or pair.close for pair in pairs):
        return f"no slower than any other point, or by at most {100 * rules.within:g} %"
    return f"{_unsettled(rules)}; the median decides"


def _unsettled(rules: Rules) -> str:
    return f"not settled in {rules.rounds} rounds"


def _slower_text(ratio: float, rounds: int) -> str:
    return f"slower: {_percent(ratio)} in {rounds} rounds"


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.2f} %"
