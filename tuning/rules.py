"""Choose the points of a key that are worth measuring, using data available without a GPU.

Points of a key, which have the same values of `tune.by` on one target, compete:

* a point that did not compile, exceeds its budget, or uses more shared memory than a block can have
  is dropped
* of points with the same artifact, the first is kept
* a point whose threads spill over `MOST_MORE_SPILLS` bytes more than the least of its key is
  dropped. There is no absolute limit: for large head dimensions, Tokamax's fastest configurations
  of attention spill kilobytes, and the others spill more
* of the rest, the best by rank are kept, at most a share of all points of the key

The default of the spec, and the points that its table already uses, are kept if they compile: new
points are compared with them. They count toward the share, but at least one more is kept.

A rank comes from a score: a weighted sum of the logarithms of figures relative to the other points
of the key. A score is not a time: it has no unit, and scores of two keys cannot be compared. The
weights were fitted, by pairwise logistic regression, to the winners that Tokamax 0.0.17 publishes
for H100 and B200, on half of the sampled shapes; `bench/tune_pruning.py` evaluates them on the
other half. They prefer large tiles, so that a grid has few blocks, but few spills; deep pipelines
that fill shared memory; and one tile per block over persistent blocks.

If a point launches several kernels, spills and barriers are added up; shared memory and waves are
those of the launch with the most threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pallasc.analysis.metrics import occupancy_of
from pallasc.specs.artifacts.artifact import Artifact

_INIT = b"mbarrier.init"
"""Initializes a barrier in shared memory; Mosaic emits one for each barrier, without a loop."""


class Facts(NamedTuple):
    """The figures of a point.

    Attributes:
        digest: digest of its artifact.
        spill_bytes: spill stores and loads per thread, over all its kernels; None if unknown.
        smem_bytes: shared memory per block.
        waves: number of times that the grid fills all multiprocessors.
        mbarriers: barriers in shared memory; a pipeline has some for each stage.
    """

    digest: str
    spill_bytes: int | None
    smem_bytes: int
    waves: float
    mbarriers: int

    def to_json(self) -> dict[str, object]:
        """Return the figures as `--json` prints them."""
        return {**self._asdict(), "waves": round(self.waves, 4)}


def facts_of(artifact: Artifact) -> Facts:
    """Return the figures of a point.

    Raises:
        CorruptError: the artifact is damaged.
    """
    launches = artifact.plan.launches
    # Without XLA's kernels, which do little.
    known = [launch for launch in launches if launch.origin == "mosaic"] or launches
    largest = max(known, key=lambda launch: math.prod(launch.grid) * math.prod(launch.block))
    kernel = artifact.kernel_of(largest)
    spills = [own.spill_bytes for own in artifact.kernels]
    return Facts(
        digest=artifact.digest,
        spill_bytes=None if None in spills else sum(filter(None, spills)),
        smem_bytes=kernel.smem_bytes,
        waves=occupancy_of(largest, kernel, artifact.target).waves,
        mbarriers=sum(artifact.blob(own.ptx).count(_INIT) for own in artifact.kernels if own.ptx),
    )


class _Term(NamedTuple):
    """A weight and its figure; the figure is None if unknown."""

    weight: float
    figure: Callable[[Facts], float | None]


_FREE_SPILLS = 64
"""Spills that hardly matter: added to the spills before the logarithm."""

TERMS: Mapping[str, _Term] = {
    "mbarriers": _Term(-0.9, lambda facts: 1 + facts.mbarriers),
    "smem_bytes": _Term(-1.0, lambda facts: facts.smem_bytes or None),
    "spill_bytes": _Term(0.8, lambda facts: _FREE_SPILLS + (facts.spill_bytes or 0)),
    # Blocks in a single wave may process several tiles each, so their number means nothing.
    "tiles": _Term(1.8, lambda facts: None if _is_one_wave(facts) else facts.waves),
    "one wave": _Term(1.2, lambda facts: math.e if _is_one_wave(facts) else 1.0),
}


def scores(facts: Sequence[Facts]) -> list[float]:
    """Return a score for each point of a key; the lowest is the best."""
    totals = [0.0] * len(facts)
    for term in TERMS.values():
        for number, value in enumerate(_relative([term.figure(own) for own in facts])):
            totals[number] += term.weight * value
    # Logarithms differ in their last bits between C libraries, and equal points must stay equal.
    return [round(total, 9) for total in totals]


def _relative(values: Sequence[float | None]) -> list[float]:
    """Return logarithms relative to the mean of the known values; unknown values become 0."""
    logarithms = [None if value is None else math.log(value) for value in values]
    known = [value for value in logarithms if value is not None]
    mean = math.fsum(known) / len(known) if known else 0.0
    return [0.0 if value is None else value - mean for value in logarithms]


def _is_one_wave(facts: Facts) -> bool:
    return facts.waves <= 1.0 + 1e-9


Kind = Literal["failed", "budget", "shared memory", "equal", "spills", "rank"]
KINDS: Mapping[Kind, str] = {
    "failed": "did not compile",
    "budget": "broke a budget",
    "shared memory": "took too much shared memory",
    "equal": "gave an artifact that another point gives",
    "spills": "spilled more than others",
    "rank": "ranked behind the others",
}
"""Reasons for dropping points, in the order of the rules, as the summary counts them."""

MOST_MORE_SPILLS = 1024
"""Bytes per thread, stores and loads. Tokamax's published winners for H100 spill up to 668 more
than the least of their key, where larger tiles are worth it; this is half as much again."""

DEFAULT_SHARE = 0.5

Key = tuple[object, ...]


@dataclass(slots=True)
class Point:
    """A point and the decision of the rules.

    Attributes:
        id: the variant's id.
        key: equal for points that are alternatives.
        facts: its figures; None if there is no artifact.
        stays: True if it is kept in any case, provided it compiled.
        rule: the rule that drops it, None if it is kept; set in advance if there is no artifact.
        why: the reason in words.
        rank: its rank in its key, from 1; 0 if it is dropped.
    """

    id: str
    key: Key
    facts: Facts | None
    stays: bool = False
    rule: Kind | None = None
    why: str = ""
    rank: int = 0

    @property
    def known(self) -> Facts:
        """Its figures, if it has an artifact."""
        if self.facts is None:
            raise ValueError(f"{self.id} has neither facts nor a rule that drops it")
        return self.facts

    def drop(self, rule: Kind, why: str) -> None:
        """Drop the point."""
        self.rule, self.why = rule, why


def prune(
    points: Sequence[Point], *, share: float = DEFAULT_SHARE, most: int | None = None
) -> None:
    """Drop points, and rank the others.

    Args:
        points: the points of all keys, in the order of the specs.
        share: maximum share of a key's points to keep, from 0 to 1.
        most: maximum number of a key's points to keep.
    """
    keys: dict[Key, list[Point]] = {}
    for point in points:
        keys.setdefault(point.key, []).append(point)
    for own in keys.values():
        _drop_equal([point for point in own if point.rule is None])
        _drop_spilling([point for point in own if point.rule is None])
        _rank([point for point in own if point.rule is None], limit(len(own), share, most))


def limit(count: int, share: float, most: int | None) -> int:
    """Return the maximum number of a key's points to keep, at least one."""
    part = max(1, math.floor(count * share + 1e-9))
    return part if most is None else min(part, most)


def _drop_equal(points: Sequence[Point]) -> None:
    """Drop points with the artifact of another one: one that stays, else the first."""
    first: dict[str, Point] = {}
    for point in sorted(points, key=lambda point: not point.stays):
        other = first.setdefault(point.known.digest, point)
        if other is not point:
            point.drop("equal", f"the same artifact as {other.id}")


def _drop_spilling(points: Sequence[Point]) -> None:
    spills = [point.known.spill_bytes for point in points]
    least = min((own for own in spills if own is not None), default=0)
    for point, own in zip(points, spills, strict=True):
        if (own or 0) > least + MOST_MORE_SPILLS and not point.stays:
            point.drop("spills", f"spills {own:,} bytes a thread, and others of its key {least:,}")


def _rank(points: Sequence[Point], at_most: int) -> None:
    """Rank the points that stay and the best of the others, at least one; drop the rest."""
    found = scores([point.known for point in points])
    ordered = [points[number] for _, number in sorted(zip(found, range(len(points)), strict=True))]
    staying = sum(point.stays for point in points)
    others, rank = max(1, at_most - staying), 0
    limited = f"the limit is {others}, besides what the spec or its table uses"
    if not staying:
        limited = f"the limit is {at_most}"
    for place, point in enumerate(ordered, 1):
        if point.stays or others > 0:
            others -= not point.stays
            rank += 1
            point.rank = rank
        else:
            point.drop("rank", f"rank {place} of {len(ordered)}; {limited}")
