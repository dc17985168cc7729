"""The smallest set of columns that covers every row."""

from __future__ import annotations

import itertools
import random

from pallasc.tuning.choose import greedy_cover, smallest_cover


def _union(columns: list[int]) -> int:
    union = 0
    for column in columns:
        union |= column
    return union


def _smallest_size(columns: list[int]) -> int:
    whole = _union(columns)
    return next(
        size
        for size in range(len(columns) + 1)
        for chosen in itertools.combinations(columns, size)
        if _union(list(chosen)) == whole
    )


def test_a_cover_is_as_small_as_trying_all_sets_finds() -> None:
    for seed in range(200):
        random_ = random.Random(seed)
        rows, density = random_.randint(0, 14), random_.choice([0.1, 0.25, 0.5])
        columns = [
            sum(1 << row for row in range(rows) if random_.random() < density)
            for _ in range(random_.randint(0, 9))
        ]
        cover = smallest_cover(columns)
        assert _union([columns[i] for i in cover.chosen]) == _union(columns), seed
        assert len(cover.chosen) == _smallest_size(columns), seed
        assert cover.is_smallest


def test_greed_takes_a_column_too_many_and_the_search_does_not() -> None:
    columns = [0b11111000, 0b00101011, 0b11100000, 0b11011001, 0b01110110]
    assert greedy_cover(columns) == (0, 1, 4)
    assert smallest_cover(columns).chosen == (3, 4)


def test_of_equal_columns_the_first_is_taken() -> None:
    assert smallest_cover([0b01, 0b11, 0b11]).chosen == (1,)


def test_nothing_is_covered_by_nothing() -> None:
    assert smallest_cover([]).chosen == ()
    assert smallest_cover([0, 0]).chosen == ()


def test_a_search_that_is_ended_says_so_and_still_covers() -> None:
    random_ = random.Random(1)
    columns = [sum(1 << r for r in range(60) if random_.random() < 0.12) for _ in range(60)]
    cover = smallest_cover(columns, most_nodes=3)
    assert not cover.is_smallest
    assert _union([columns[i] for i in cover.chosen]) == _union(columns)
    assert cover == smallest_cover(columns, most_nodes=3)
