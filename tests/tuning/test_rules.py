"""Points of a key are judged against each other; what is dropped is told with its reason."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from pallasc.tuning import plan
from pallasc.tuning.plan import MOST_MORE_SPILLS, Facts, Point, limit

GOOD = Facts(digest="0" * 64, spill_bytes=0, smem_bytes=100_000, waves=4.0, mbarriers=8)


def _point(name: str, **changed: object) -> Point:
    digest = name.encode().hex().ljust(64, "0")
    return Point(name, ("kernel",), GOOD._replace(digest=digest, **changed))  # type: ignore[arg-type]


class Pruned(NamedTuple):
    """Numbers and ranks of points that are kept; numbers, rules and reasons of the others."""

    kept: tuple[tuple[int, int], ...]
    dropped: tuple[tuple[int, str, str], ...]


def prune(points: Sequence[Point], **options: Any) -> Pruned:
    plan.prune(points, **options)
    dropped = [(n, own.rule, own.why) for n, own in enumerate(points) if own.rule is not None]
    kept = tuple((n, own.rank) for n, own in enumerate(points) if own.rank)
    assert len(kept) + len(dropped) == len(points)
    assert all(rule in plan.KINDS for _, rule, _ in dropped)
    return Pruned(kept, tuple(dropped))


FAILED = Point("x", ("kernel",), None, rule="failed", why="bad tile")


def test_of_equal_artifacts_of_a_key_the_default_or_the_first_is_kept() -> None:
    def twin(**values: Any) -> Point:
        return replace(_point("b"), facts=_point("a").facts, **values)

    pruned = prune([_point("a"), twin()], share=1)
    assert pruned.dropped == ((1, "equal", "the same artifact as a"),)
    default = twin(stays=True)
    pruned = prune([_point("a"), default], share=1)
    assert pruned.dropped == ((0, "equal", "the same artifact as b"),)
    assert prune([_point("a"), twin(key=("other",))]).kept == ((0, 1), (1, 1))


def test_spills_count_relative_to_the_least_of_the_key() -> None:
    points = [
        _point("least", spill_bytes=3000),
        _point("some", spill_bytes=3000 + MOST_MORE_SPILLS),
        _point("much", spill_bytes=3001 + MOST_MORE_SPILLS),
        _point("unknown", spill_bytes=None),
    ]
    why = "spills 4,025 bytes per thread; least of its key: 3,000"
    assert prune(points, share=1).dropped == ((2, "spills", why),)


@pytest.mark.parametrize(
    ("worse", "better"),
    [
        ({}, {"mbarriers": 16}),
        ({}, {"smem_bytes": 200_000}),
        ({}, {"waves": 2.0}),
        ({"spill_bytes": 600}, {"spill_bytes": 8}),
        ({"waves": 1.0}, {}),  # persistent blocks
    ],
)
def test_a_point_that_is_better_in_one_figure_ranks_first(
    worse: dict[str, object], better: dict[str, object]
) -> None:
    pruned = prune([_point("a", **worse), _point("b", **better)], share=1)
    assert pruned.kept == ((0, 2), (1, 1))


def test_the_blocks_of_a_grid_of_one_wave_say_nothing_of_the_tiles() -> None:
    points = [_point("half", waves=0.5), _point("full", waves=1.0)]
    assert prune(points, share=1).kept == ((0, 1), (1, 2))


def test_at_most_a_share_of_all_points_is_kept_and_the_rest_are_told_their_rank() -> None:
    points = [FAILED, *(_point(f"p{n}", mbarriers=n) for n in range(1, 6))]
    pruned = prune(points, share=0.5)
    assert pruned.kept == ((3, 3), (4, 2), (5, 1))
    assert pruned.dropped == (
        (0, "failed", "bad tile"),
        (1, "rank", "rank 5 of 5"),
        (2, "rank", "rank 4 of 5"),
    )


def test_the_default_stays_within_the_limit() -> None:
    worst = replace(_point("worst", mbarriers=1, spill_bytes=9000), stays=True)
    points = [worst, *(_point(f"p{n}", mbarriers=n) for n in range(2, 6))]
    pruned = prune(points, most=2)
    assert pruned.kept == ((0, 2), (4, 1))
    assert pruned.dropped[-1] == (3, "rank", "rank 2 of 5")


@pytest.mark.parametrize(
    ("count", "share", "most", "kept"),
    [(1, 0.5, None, 1), (3, 0.5, None, 1), (8, 0.5, None, 4), (8, 0.5, 3, 3), (10, 0.7, None, 7)],
)
def test_the_limit_is_a_share_rounded_down_but_one_point(
    count: int, share: float, most: int | None, kept: int
) -> None:
    assert limit(count, share, most) == kept
