"""What is concluded from rounds, and what happens next: pure functions, and contests made up."""

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from msgspec import convert

from pallasc.tuning.contest import (
    LEAST_ROUNDS,
    Measure,
    Rules,
    compare,
    decide,
    evidence,
    threshold,
)
from pallasc.tuning.results import Contest, Done, Dropped, Record, Results, Start, contest_key

SUBJECT: dict[str, Any] = {"kernel": "double", "key": [1]}
START = Start("5a" * 32, "GPU", None, "sm_90", "", "", {})

Times = Callable[[str, int], float | None]
"""What a point takes in a round, None where it fails."""


def test_evidence_is_the_average_likelihood_of_shares_above_a_half() -> None:
    assert threshold(2) == math.log(200)
    assert threshold(1) == threshold(2) < threshold(24) == math.log(4600)
    for rounds, signs in [(0, 0), (1, 1), (7, 7), (12, 9), (20, 4)]:
        steps = 20_000
        shares = (0.5 + (step + 0.5) / (2 * steps) for step in range(steps))
        likelihoods = ((2 * p) ** signs * (2 * (1 - p)) ** (rounds - signs) for p in shares)
        assert math.exp(evidence(signs, rounds)) == pytest.approx(
            sum(likelihoods) / steps, rel=1e-6
        )


def test_a_pair_is_known_after_rounds_that_agree() -> None:
    pair = compare([1.1] * 11, within=0.01, points=2)
    assert (pair.slower, pair.faster, pair.close, pair.ratio) == (True, False, True, 1.1)
    assert not compare([1.1] * 8, within=0.01, points=2).slower
    assert compare([0.9] * 11, within=0.01, points=2).faster
    tied = compare([0.995, 1.005] * 6, within=0.01, points=2)
    assert (tied.slower, tied.faster, tied.close) == (False, False, True)
    assert not compare([1.0] * 50, within=0.0, points=2).close


def played(
    times: Times, names: list[str], rules: Rules, *, most: int = 100_000
) -> tuple[Contest, list[str]]:
    """Return a contest played to its end, and what was recorded, by kind."""
    results, kinds = Results("r", START), []

    def add(kind: str, **fields: Any) -> None:
        kinds.append(kind)
        results.add(convert({"kind": kind, **SUBJECT, **fields}, Record))

    def note(name: str, why: str = "") -> None:
        state = "failed" if why else "ok"
        about = {"params": {"tile": 1}, "target": "t", "artifact": "0" * 64}
        add("point", id=name, state=state, why=why, **about)

    contest = results.contests.setdefault(contest_key("double", [1], {}), Contest("double", (1,)))
    for _ in range(most):
        decision = decide(contest, names, rules)
        assert decision == decide(contest, names, rules)
        if isinstance(decision, Done):
            kinds.append("done")
            results.add(decision)
            break
        if isinstance(decision, Dropped):
            kinds.append("dropped")
            results.add(decision)
            continue
        for name in decision.ids:
            if name not in contest.points:
                note(name)
        took = {name: times(name, decision.round) for name in decision.ids}
        for name, us in took.items():
            if us is None:
                note(name, "an illegal address")
        valid = {name: us for name, us in took.items() if us is not None}
        if valid:
            add("times", round=decision.round, times_us=valid, spent_s=0.1 * decision.round)
    return contest, kinds


def noisy(us: Mapping[str, float], *, noise: float, seed: int) -> Times:
    """Return times with noise, and a drift that all points of a round share."""
    source = random.Random(seed)

    def times(name: str, number: int) -> float:
        drift = 1 + 0.2 * math.sin(number / 7)
        return us[name] * drift * math.exp(source.gauss(0, noise))

    return times


POINTS = [f"p{number}" for number in range(12)]
LONG = Rules(seconds=1e9)


def test_a_difference_within_the_noise_is_a_tie() -> None:
    us = {"a": 10.0, "b": 10.01, "c": 13.0}
    contest, _ = played(noisy(us, noise=0.005, seed=2), [*us], LONG)
    assert contest.winner in ("a", "b")
    assert contest.done == "no slower than any other point, or by at most 1 %"
    assert contest.points["c"].dropped.startswith("slower: +")
    assert not any(contest.points[name].dropped for name in "ab")


def test_more_points_than_take_part_at_a_time_are_all_compared() -> None:
    us = {name: 10.0 if name != "p11" else 9.0 for name in POINTS}
    rules = Rules(together=3, seconds=1e9)
    contest, _ = played(noisy(us, noise=0.002, seed=3), POINTS, rules)
    assert contest.winner == "p11"
    assert len(contest.valid) == 12
    reasons = [point.dropped.partition(":")[0] for point in contest.points.values()]
    assert set(reasons) == {"", "tied", "slower"}


def test_wrong_winners_are_rarer_than_promised() -> None:
    wrong = 0
    for seed in range(8):
        times_us = [10.0, 10.05, 10.3, 10.4, 11.0]
        random.Random(seed).shuffle(times_us)
        us = dict(zip(POINTS, times_us, strict=False))
        contest, _ = played(noisy(us, noise=0.02, seed=seed), [*us], LONG)
        wrong += us[str(contest.winner)] > 10.1
    assert wrong == 0


def test_a_leader_that_fails_late_brings_back_what_it_had_beaten() -> None:
    us = {"a": 5.0, "b": 10.0, "c": 11.0, "d": 5.0}

    def times(name: str, number: int) -> float | None:
        return None if name in "ad" and number >= 25 else us[name]

    contest, _ = played(times, [*us], Rules(within=0.0, rounds=100, seconds=1e9))
    assert contest.winner == "b"
    assert contest.points["c"].dropped_by == "b"


def test_points_that_all_fail_leave_no_winner_and_a_single_one_has_a_few_rounds() -> None:
    contest, _ = played(lambda name, number: None, ["a", "b"], LONG)
    assert (contest.winner, contest.done) == (None, "no point is valid")
    contest, _ = played(lambda name, number: 1.0, ["a"], LONG)
    assert (contest.winner, contest.done) == ("a", "the only valid point")
    assert len(contest.rounds) == LEAST_ROUNDS


def test_the_median_decides_where_rounds_are_spent() -> None:
    us = {"a": 10.3, "b": 10.0}
    few = Rules(within=0.0, rounds=12, seconds=1e9)

    def times(name: str, number: int) -> float:
        return us[name] * (1.1 if name == "b" and number < 5 else 1)

    contest, _ = played(times, [*us], few)
    assert contest.winner == "b"
    assert contest.points["a"].dropped == "slower: +3.00 % in 12 rounds, by the median alone"
    assert contest.done == "not settled in 12 rounds; the median decides"


@pytest.mark.parametrize("together", [8, 2])
def test_a_winner_that_is_not_known_is_said(together: int) -> None:
    us = {"a": 10.0, "b": 10.01, "c": 10.02}
    rules = Rules(rounds=8, seconds=1e9, together=together)
    contest, _ = played(noisy(us, noise=0.05, seed=5), [*us], rules)
    assert contest.done == "not settled in 8 rounds; the median decides"
    reasons = [point.dropped for point in contest.points.values() if point.dropped]
    assert all("not settled in 8" in own or "by the median alone" in own for own in reasons)
    assert any(own.startswith("not settled in 8 rounds: +") for own in reasons) == (together == 2)


def test_points_without_a_common_round_are_told_apart_by_their_times() -> None:
    us = {"A": 20.0, "B": 12.0, "L": 10.0}
    results = Results("r", START)
    contest = results.contests.setdefault(contest_key("double", [1], {}), Contest("double", (1,)))

    def add(kind: str, **fields: Any) -> None:
        results.add(convert({"kind": kind, **SUBJECT, **fields}, Record))

    about = {"params": {}, "target": "t", "artifact": "0" * 64, "why": "it hangs"}
    for name in us:
        add("point", id=name, state="ok", **about)
    for number in range(1, 11):
        both = ("A" if number <= 5 else "B", "L")
        add("times", round=number, times_us={name: us[name] for name in both}, spent_s=1.0)
    add("point", id="L", state="failed", **about)
    expected = Done("double", (1,), winner="B", why="the fastest by the median after 1 s")
    for order in ("ABL", "BAL"):
        assert decide(contest, [*order], Rules(seconds=1.0)) == expected
    contest.points["A"].times_us = dict.fromkeys(range(1, 6), 12.0)
    assert decide(contest, ["B", "A", "L"], Rules(seconds=1.0)) == expected


def test_the_order_of_a_round_changes_and_is_the_same_again() -> None:
    contest = Contest("double", (1,))
    first = decide(contest, POINTS[:4], Rules())
    assert isinstance(first, Measure)
    assert sorted(first.ids) == POINTS[:4]
    orders = {decide(Contest("double", (n,)), POINTS[:4], Rules()) for n in range(20)}
    assert len(orders) > 5
