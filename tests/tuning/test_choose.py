"""Which configurations are used: few, then fast, and surely near the best."""

import itertools
import math
import random

from pallasc.tuning.contest import is_surely_within
from pallasc.tuning.pick import UNSERVED, Losses, choose, greedy_cover

LIMIT = math.log(1.03)


def _made(seed: int) -> tuple[list[Losses], list[set[str]], str]:
    """Return random times of a few keys: what is lost, what is within 3 %, the configurations."""
    random_ = random.Random(seed)
    names, losses = "abcdef"[: random_.randint(1, 6)], list[Losses]()
    for _ in range(random_.randint(1, 8)):
        measured = [i for i in names if random_.random() < 0.8] or ["a"]
        own = {i: random_.choice([0.01, 0.02, 0.1, 0.4]) for i in measured}
        own[random_.choice(measured)] = 0.0
        losses.append(own)
    return losses, [{i for i, x in own.items() if x <= LIMIT} for own in losses], names


def _lost(losses: list[Losses], columns: tuple[str, ...]) -> float:
    return sum(min([own[i] for i in columns if i in own] or [UNSERVED]) for own in losses)


def test_every_key_is_within_the_limit_with_few() -> None:
    more = 0
    for seed in range(100):
        losses, within, names = _made(seed)
        chosen = choose(losses, within)
        assert all(own in near for own, near in zip(chosen.of_key, within, strict=True))
        fewer = itertools.combinations(names, len(chosen.used) - 1)
        more += any(all(set(some) & near for near in within) for some in fewer)
    assert more <= 5


def test_a_column_that_others_make_needless_is_left_out() -> None:
    assert greedy_cover({"a": {1, 2, 3, 4}, "b": {0, 1, 2}, "c": {3, 4, 5}}) == ["b", "c"]
    assert greedy_cover({"a": {0}, "b": {0, 1}, "c": {0, 1}}) == ["b"]
    assert greedy_cover({}) == greedy_cover({"a": set(), "b": set()}) == []


def test_with_fewer_the_loss_is_nearly_the_least() -> None:
    worse = 0
    for seed in range(100):
        losses, within, names = _made(seed)
        chosen = choose(losses, within, most=2).used
        assert len(chosen) <= 2
        best = min(_lost(losses, some) for some in itertools.combinations(names, len(chosen)))
        if len(chosen) == min(2, len(names)) and _lost(losses, chosen) > best + 1e-9:
            worse += 1
    assert worse <= 10


def test_the_fastest_of_equally_many_is_taken_and_what_is_surely_within_comes_first() -> None:
    losses: list[Losses] = [{"a": 0.02, "b": 0.0, "c": 0.01}] * 2
    chosen = choose(losses, [{"a", "b", "c"}] * 2)
    assert (chosen.used, chosen.of_key) == (("b",), ("b", "b"))
    losses = [{"a": 0.0, "b": 0.01}, {"a": 0.0}, {"b": 0.0}]
    assert choose(losses, [{"b"}, {"a"}, {"b"}]).of_key == ("b", "a", "b")


def test_a_key_that_no_chosen_configuration_was_measured_for_has_none() -> None:
    chosen = choose([{"a": 0.0}, {"a": 0.0}, {"b": 0.0}], [{"a"}, {"a"}, {"b"}], most=1)
    assert (chosen.used, chosen.of_key) == (("a",), ("a", "a", None))
    assert choose([], []).used == choose([], [], most=1).used == ()


# ---- whether a variant is surely within a few percent of another


def test_few_rounds_and_uncertain_ones_are_not_surely_within() -> None:
    assert not any(is_surely_within([1.0] * count, 3, points=2) for count in (0, 1, 5, 10))
    assert is_surely_within([1.02] * 12, 3, points=2)
    assert not is_surely_within([1.02] * 12, 3, points=50)
    assert is_surely_within([1.02] * 18, 3, points=50)
    assert not is_surely_within([1.0, 1.05] * 30, 3, points=2)
    assert not is_surely_within([1.04] * 60, 3, points=2)
    assert is_surely_within([*([1.01] * 25), 9.0, 9.0], 3, points=2)


def test_looking_after_every_round_is_rarely_wrong() -> None:
    random_, wrong = random.Random(5), 0
    for _ in range(200):
        # The true median is exactly at the limit, so it is not below.
        ratios = [1.03 * random_.lognormvariate(0.0, 0.05) for _ in range(80)]
        wrong += any(is_surely_within(ratios[:n], 3, points=2) for n in range(1, 81))
    assert wrong <= 4
