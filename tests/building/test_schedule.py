"""What a free place among the workers is used for."""

from __future__ import annotations

from typing import Any

import pytest

from pallasc.compiler.workers.messages import Group
from pallasc.compiler.workers.pool import next_group, pays


def group(name: str) -> Group:
    return ("sm_90a", name, ())


def chosen(
    waiting: dict[str, int], idle: list[Any], serving: list[tuple[str, float]], task_s: float | None
) -> str | None:
    """Return the name of the group that is served next."""
    found = next_group(
        {group(name): count for name, count in waiting.items()},
        [name and group(name) for name in idle],
        [(group(name), seconds) for name, seconds in serving],
        task_s,
    )
    return found and found[1]


@pytest.mark.parametrize(
    ("waiting", "idle", "busy", "expected"),
    [
        ({"a": 1, "b": 3}, [], [], "b"),
        ({"a": 2, "b": 3}, [], ["b"], "a"),
        ({"a": 1, "b": 3}, ["a"], [], "a"),
        ({"a": 1, "b": 3}, ["c"], [], "b"),
        ({"a": 1, "b": 9}, [], ["b"], "b"),
        ({"a": 1, "b": 9}, [None], ["b"], "b"),
        ({}, [], [], None),
    ],
)
def test_the_group_that_is_most_behind_is_served_next(
    waiting: dict[str, int], idle: list[Any], busy: list[str], expected: str | None
) -> None:
    assert chosen(waiting, idle, [(name, 0.1) for name in busy], None) == expected


@pytest.mark.parametrize(
    ("waiting", "serving_s", "task_s", "expected"),
    [
        (1, [], 0.1, True),  # somebody has to do it
        (9, [0.1], None, True),  # nobody knows how long it takes
        (10, [0.1], 0.1, False),  # done before a new worker is ready
        (21, [0.1], 0.1, True),
        (21, [0.1, 0.1], 0.1, False),
        (41, [0.1, 0.1], 0.1, True),
        (1, [0.1], 60.0, True),
        (1, [1.9], 0.1, False),
        (1, [2.1], 0.1, True),  # this one takes longer than the others did
        (1, [2.1, 0.1], 0.1, False),
    ],
)
def test_one_more_worker_is_started_only_if_it_finds_something_to_do(
    waiting: int, serving_s: list[float], task_s: float | None, expected: bool
) -> None:
    assert pays(waiting, serving_s, task_s) == expected
    serving = [("a", seconds) for seconds in serving_s]
    assert chosen({"a": waiting}, [], serving, task_s) == ("a" if expected else None)


def test_a_group_that_nobody_serves_is_begun_where_no_more_workers_pay_for_another() -> None:
    assert chosen({"a": 5, "b": 1}, [], [("a", 0.1)], 0.1) == "b"


def test_a_worker_that_is_ready_is_used_whether_or_not_another_would_pay() -> None:
    assert chosen({"a": 1}, [None], [("a", 0.1)], 0.1) == "a"
    assert chosen({"a": 1}, ["a"], [("a", 0.1)], 0.1) == "a"
