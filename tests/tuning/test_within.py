"""Whether a variant is surely within a few percent of another."""

from __future__ import annotations

import random

import pytest

from pallasc.tuning.contest import is_surely_within


@pytest.mark.parametrize("count", [0, 1, 5, 10])
def test_a_few_rounds_are_not_sure(count: int) -> None:
    assert not is_surely_within([1.0] * count, 3, points=2)


def test_many_rounds_below_the_limit_are_sure_and_more_points_need_more() -> None:
    assert is_surely_within([1.02] * 12, 3, points=2)
    assert not is_surely_within([1.02] * 12, 3, points=50)
    assert is_surely_within([1.02] * 18, 3, points=50)


def test_uncertain_is_not_within() -> None:
    half_above = [1.0, 1.05] * 30
    assert not is_surely_within(half_above, 3, points=2)
    assert not is_surely_within([1.04] * 60, 3, points=2)
    assert is_surely_within([*([1.01] * 25), 9.0, 9.0], 3, points=2)


def test_looking_after_every_round_is_rarely_wrong() -> None:
    random_, wrong = random.Random(5), 0
    for _ in range(200):
        # The true median is exactly at the limit, so it is not below.
        ratios = [1.03 * random_.lognormvariate(0.0, 0.05) for _ in range(80)]
        wrong += any(is_surely_within(ratios[:n], 3, points=2) for n in range(1, 81))
    assert wrong <= 4
