"""Which workers of a cluster compile, by a clock that the tests set."""

from __future__ import annotations

import pytest

from pallasc.compiler.cluster.pieces import Item
from pallasc.compiler.cluster.roster import Roster
from pallasc.compiler.workers.messages import Task


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def roster(clock: Clock) -> Roster:
    made = Roster("dask://head:8786", clock)
    made.count({"a": 2, "b": 1})
    return made


def item(**refused: str) -> Item:
    return Item(Task(0, ("", "", ()), None), refused=refused)  # type: ignore[arg-type]


def test_all_workers_may_work_until_one_refuses(roster: Roster) -> None:
    assert roster.allowed([item()]) is None
    roster.refuse("a", "no room")
    assert roster.allowed([item()]) == ["b"]
    assert roster.allowed([item(b="wrong")]) == []


def test_a_worker_is_asked_again_once_for_each_refusal(roster: Roster, clock: Clock) -> None:
    roster.refuse("a", "no room")
    assert roster.to_ask() == ""
    clock.now_s += 3
    assert [roster.to_ask(), roster.to_ask()] == ["a", ""]
    roster.refuse("a", "no room")
    clock.now_s += 3
    assert roster.to_ask() == "a"
    assert roster.accept("a")
    assert roster.allowed([item()]) is None
    assert not roster.accept("a")


def test_a_worker_that_comes_back_is_asked_anew(roster: Roster) -> None:
    roster.refuse("a", "no room")
    assert roster.count({"b": 1})
    assert roster.count({"a": 2, "b": 1})
    assert not roster.count({"b": 1, "a": 2})
    assert roster.allowed([item()]) is None


def test_a_refusal_that_is_repeated_does_not_prolong_the_wait(roster: Roster, clock: Clock) -> None:
    roster.refuse("a", "no room")
    clock.now_s += 3
    roster.refuse("a", "no room")
    assert not roster.is_given_up()
    clock.now_s += 2
    assert roster.is_given_up()
    roster.refuse("b", "no room")
    assert not roster.is_given_up()


def test_nothing_is_given_up_before_each_worker_was_asked_again(
    roster: Roster, clock: Clock
) -> None:
    roster.refuse("a", "no room")
    clock.now_s += 30  # the build had no processor
    assert not roster.is_given_up()
    assert roster.to_ask() == "a"
    roster.refuse("a", "no room")
    assert roster.is_given_up()


def test_an_error_names_each_reason_once(roster: Roster) -> None:
    roster.count({"a": 2, "b": 1, "c": 1})
    roster.refuse("a", "no room.")
    roster.refuse("b", "no room.")
    assert roster.refusal(item(c="its artifact is damaged")).message == (
        "no worker of dask://head:8786 compiles it as it would be here: a and 1 more: no room; "
        "c: its artifact is damaged."
    )


def test_a_cluster_without_workers_is_told_once(clock: Clock) -> None:
    empty = Roster("dask://head:8786", clock)
    assert empty.told_nobody() == ""
    clock.now_s += 16
    assert empty.told_nobody() == "dask://head:8786 has no workers yet: waiting for the first one"
    assert empty.told_nobody() == ""
    assert not empty.is_given_up()
