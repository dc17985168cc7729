"""What is known of a point without a GPU: the figures that rules and ranks are computed from.

A point may launch several kernels. What a launch does is added up; what it needs of a
multiprocessor is that of the launch whose bound is longest, as that one decides the time.

The order of the points of a key by what is known without a GPU.

A score is a sum of weights times logarithms of figures relative to the other points of the key, so
that only what differs between them counts. It is no time: it has no unit, and scores of two keys
say nothing of each other.

The weights were fitted, by pairwise logistic regression, to the winners that Tokamax 0.0.17
publishes for H100 and B200, half of the sampled shapes; `bench/tune_pruning.py` judges them by the
others. They say: large tiles, so that a grid has few blocks, but few spills; deep pipelines that
fill shared memory; and rather one tile a block than persistent blocks. Instructions, bytes, warps,
operations of a tile and the bound changed little besides, and have no weight.

Which points of a key are worth measuring: rules over what is known without a GPU.

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from pallasc.analysis.metrics.kernel_metrics import KernelMetrics
from pallasc.specs.artifacts.artifact import Artifact

_INIT = b"mbarrier.init"
"""Initializes a barrier in shared memory; Mosaic writes one for each, and no loop."""


class Facts(NamedTuple):
    """The figures of a point; None where one cannot be known, with the reason in the metrics.

    Attributes:
        digest: of its artifact.
        spill_bytes: spill stores and loads of a thread, of all its kernels.
        smem_bytes: shared memory of a block.
        warps_per_sm: warps that a multiprocessor holds at once.
        waves: how often the grid fills all multiprocessors.
        instructions: of the machine code, each once.
        tile_flops: operations of tensor cores in one round of its longest loop that has any.
        mbarriers: barriers in shared memory; a pipeline has some for each stage.
        load_bytes: what is copied or loaded from global memory, caches included.
        store_bytes: what is stored to it.
        bound_s: the least time by bytes and operations.
    """

    digest: str
    spill_bytes: int | None
    smem_bytes: int
    warps_per_sm: int
    waves: float
    instructions: int | None
    tile_flops: int | None
    mbarriers: int
    load_bytes: int | None
    store_bytes: int | None
    bound_s: float

    def to_json(self) -> dict[str, object]:
        """Return the figures as `--json` prints them."""
        return {**self._asdict(), "waves": round(self.waves, 4)}


def facts_of(artifact: Artifact, launches: Sequence[KernelMetrics]) -> Facts:
    """Return the figures of a point.

    Args:
        artifact: what it was compiled into.
        launches: the numbers of its launches.

    Raises:
        CorruptError: the artifact is damaged.
    """
    longest = max(launches, key=lambda launch: (launch.roofline.bound_s, -launch.launch))
    kernels = {kernel.name: kernel for kernel in artifact.kernels}
    return Facts(
        digest=artifact.digest,
        spill_bytes=_sum(kernel.spill_bytes for kernel in artifact.kernels),
        smem_bytes=kernels[longest.kernel].smem_bytes,
        warps_per_sm=longest.occupancy.warps_per_sm,
        waves=longest.occupancy.waves,
        instructions=_sum(launch.instructions for launch in launches),
        tile_flops=_tile_flops(launches),
        mbarriers=sum(_mbarriers(artifact, kernel.ptx) for kernel in artifact.kernels),
        load_bytes=_sum(
            _both(launch.work.tma_load_bytes, launch.work.global_load_bytes)
            for launch in _known(launches)
        ),
        store_bytes=_sum(
            _both(launch.work.tma_store_bytes, launch.work.global_store_bytes)
            for launch in _known(launches)
        ),
        bound_s=math.fsum(launch.roofline.bound_s for launch in launches),
    )


def _known(launches: Sequence[KernelMetrics]) -> Sequence[KernelMetrics]:
    """Return the launches whose work can be known: XLA's kernels have no PTX, and do little."""
    return [launch for launch in launches if launch.origin == "mosaic"] or launches


def _tile_flops(launches: Sequence[KernelMetrics]) -> int | None:
    """Return the operations of the loop that has most of them, None where none has any."""
    loops = [loop for launch in launches for loop in launch.loops or ()]
    return max((loop.tensor_flops for loop in loops if loop.tensor_flops), default=None)


def _mbarriers(artifact: Artifact, ptx: str | None) -> int:
    return 0 if ptx is None else artifact.blob(ptx).count(_INIT)


def _both(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second


def _sum(counts: Iterable[int | None]) -> int | None:
    """Return the sum, None where a part is not known."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


class _Term(NamedTuple):
    """A weight, and the figure that it is for; None where that is not known."""

    weight: float
    figure: Callable[[Facts], float | None]


_FREE_SPILLS = 64
"""Spills that hardly count: added to them before the logarithm."""

TERMS: Mapping[str, _Term] = {
    "mbarriers": _Term(-0.9, lambda facts: 1 + facts.mbarriers),
    "smem_bytes": _Term(-1.0, lambda facts: facts.smem_bytes or None),
    "spill_bytes": _Term(0.8, lambda facts: _FREE_SPILLS + (facts.spill_bytes or 0)),
    # Blocks that the GPU holds at once may do several tiles each: their number says nothing.
    "tiles": _Term(1.8, lambda facts: None if _is_one_wave(facts) else facts.waves),
    "one wave": _Term(1.2, lambda facts: math.e if _is_one_wave(facts) else 1.0),
}


def scores(facts: Sequence[Facts]) -> list[float]:
    """Return a number for each point of a key; the lowest is the best."""
    totals = [0.0] * len(facts)
    for term in TERMS.values():
        for number, value in enumerate(_relative([term.figure(own) for own in facts])):
            totals[number] += term.weight * value
    # Logarithms differ in their last bits between C libraries, and equal points must stay equal.
    return [round(total, 9) for total in totals]


def _relative(values: Sequence[float | None]) -> list[float]:
    """Return logarithms relative to the mean of the known; what is not known counts as that."""
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
