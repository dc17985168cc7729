"""Which points of a key are worth measuring: rules over what is known without a GPU.

Points of a key, the same values of `tune.by` on one target, are judged against each other:

* a point that did not compile, breaks its budget or takes more shared memory than a block may have
  is dropped
* of points with one artifact the first is kept
* a point whose threads spill more than `MOST_MORE_SPILLS` bytes beyond the least of its key is
  dropped. No number of bytes is too many by itself: where head dimensions are large, Tokamax's
  fastest configurations of attention spill kilobytes, and the others spill more
* of the rest the best by `ranking` are kept, at most a share of all points of the key

The default of the spec, and what its table uses already, are kept where they compile: what is new
is compared with them. They count within the share, but one more is kept in any case.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from pallasc.analysis.tuning.facts import Facts
from pallasc.analysis.tuning.ranking import scores

Kind = Literal["failed", "budget", "shared memory", "equal", "spills", "rank"]
KINDS: Mapping[Kind, str] = {
    "failed": "did not compile",
    "budget": "broke a budget",
    "shared memory": "took too much shared memory",
    "equal": "gave an artifact that another point gives",
    "spills": "spilled more than others",
    "rank": "ranked behind the others",
}
"""Why points are dropped, in the order of the rules, as the summary counts them."""

MOST_MORE_SPILLS = 1024
"""Bytes of a thread, stores and loads. Tokamax's published winners for H100 spill up to 668 more
than the least of their key, where larger tiles are worth it; this is half as much again."""

DEFAULT_SHARE = 0.5

Key = tuple[object, ...]


class Point(NamedTuple):
    """A point as the rules see it.

    Attributes:
        id: the variant's id.
        key: equal for the points that are alternatives.
        facts: what is known of it; None where there is no artifact.
        failure: why there is none, and the text that says so.
        stays: it is kept in any case, if it compiled.
    """

    id: str
    key: Key
    facts: Facts | None
    failure: tuple[Kind, str] | None = None
    stays: bool = False


class Dropped(NamedTuple):
    """A point that is not measured: its number, the rule, and why in words."""

    number: int
    kind: Kind
    why: str


class Kept(NamedTuple):
    """A point that is measured: its number, and its place in its key, from 1."""

    number: int
    rank: int


class Pruned(NamedTuple):
    """What the rules leave: both in the order of the points."""

    kept: tuple[Kept, ...]
    dropped: tuple[Dropped, ...]


def prune(
    points: Sequence[Point], *, share: float = DEFAULT_SHARE, most: int | None = None
) -> Pruned:
    """Return which points are kept, with their ranks, and which are dropped.

    Args:
        points: the points of all keys, in the order of the specs.
        share: how many of a key's points are kept at most, from 0 to 1.
        most: the same as a number.
    """
    keys: dict[Key, list[int]] = {}
    for number, point in enumerate(points):
        keys.setdefault(point.key, []).append(number)
    kept: list[Kept] = []
    dropped: list[Dropped] = []
    for numbers in keys.values():
        left, gone = _prune_key(points, numbers, limit(len(numbers), share, most))
        kept += left
        dropped += gone
    return Pruned(tuple(sorted(kept)), tuple(sorted(dropped)))


def limit(count: int, share: float, most: int | None) -> int:
    """Return how many of a key's points are kept at most, one in any case."""
    part = max(1, math.floor(count * share + 1e-9))
    return part if most is None else min(part, most)


def _prune_key(
    points: Sequence[Point], numbers: Sequence[int], at_most: int
) -> tuple[list[Kept], list[Dropped]]:
    """Return what is left of the points of one key, and what is not."""
    dropped = [*_failed(points, numbers)]
    left = _without(numbers, dropped)
    for rule in (_equal, _spilling):
        found = [*rule(points, left)]
        left = _without(left, found)
        dropped += found
    ordered = _ranked(points, left)
    chosen = _chosen(points, ordered, at_most)
    kept = [number for number in ordered if number in chosen]
    limited = _limited(points, ordered, at_most)
    dropped += [
        Dropped(number, "rank", f"rank {place} of {len(ordered)}; {limited}")
        for place, number in enumerate(ordered, 1)
        if number not in chosen
    ]
    return [Kept(number, rank) for rank, number in enumerate(kept, 1)], dropped


def _without(numbers: Iterable[int], dropped: Iterable[Dropped]) -> list[int]:
    gone = {each.number for each in dropped}
    return [number for number in numbers if number not in gone]


def _failed(points: Sequence[Point], numbers: Iterable[int]) -> Iterable[Dropped]:
    for number in numbers:
        failure = points[number].failure
        if failure is not None:
            yield Dropped(number, *failure)


def _equal(points: Sequence[Point], numbers: Sequence[int]) -> Iterable[Dropped]:
    """Yield the points whose artifact another one gives: that which stays, else the first."""
    first: dict[str, int] = {}
    for number in sorted(numbers, key=lambda number: (not points[number].stays, number)):
        digest = _facts(points[number]).digest
        other = first.setdefault(digest, number)
        if other != number:
            yield Dropped(number, "equal", f"the same artifact as {points[other].id}")


def _spilling(points: Sequence[Point], numbers: Sequence[int]) -> Iterable[Dropped]:
    known = [spills for n in numbers if (spills := _facts(points[n]).spill_bytes) is not None]
    least = min(known, default=0)
    for number in numbers:
        spills = _facts(points[number]).spill_bytes or 0
        if spills > least + MOST_MORE_SPILLS and not points[number].stays:
            why = f"spills {spills:,} bytes a thread, and others of its key {least:,}"
            yield Dropped(number, "spills", why)


def _ranked(points: Sequence[Point], numbers: Sequence[int]) -> list[int]:
    """Return points, the best first; of equals the first of the spec."""
    found = scores([_facts(points[number]) for number in numbers])
    return [number for _, number in sorted(zip(found, numbers, strict=True))]


def _chosen(points: Sequence[Point], ordered: Sequence[int], at_most: int) -> set[int]:
    """Return those that stay in any case, and the best of the others: one at least."""
    staying = [number for number in ordered if points[number].stays]
    others = [number for number in ordered if not points[number].stays]
    return {*staying, *others[: _most_others(len(staying), at_most)]}


def _most_others(staying: int, at_most: int) -> int:
    return max(1, at_most - staying)


def _limited(points: Sequence[Point], ordered: Sequence[int], at_most: int) -> str:
    """Return in words how many are kept."""
    staying = sum(points[number].stays for number in ordered)
    if not staying:
        return f"the limit is {at_most}"
    others = _most_others(staying, at_most)
    return f"the limit is {others}, besides what the spec or its table uses"


def _facts(point: Point) -> Facts:
    if point.facts is None:
        raise ValueError(f"{point.id} has neither facts nor a failure")
    return point.facts
