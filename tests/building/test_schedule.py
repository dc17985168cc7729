"""What a free place among the workers is used for."""

from __future__ import annotations

from typing import Any

import pytest

from pallasc.compiler.workers.messages import Group, Task, Warm
from pallasc.compiler.workers.pool import Pace, Queue


def group(name: str) -> Group:
    return ("sm_90a", name)


def queue(**counts: int) -> Queue:
    result = Queue()
    names = [name for name, count in counts.items() for _ in range(count)]
    result.add(Task(number, group(name), Warm()) for number, name in enumerate(names))
    return result


def pace(task_s: float, start_s: float | None = 1.5) -> Pace:
    result = Pace()
    result.add_task(task_s)
    if start_s is not None:
        result.add_start(start_s)
    return result


UNKNOWN = Pace()


@pytest.mark.parametrize(
    ("waiting", "idle", "busy", "chosen"),
    [
        ({"a": 1, "b": 3}, [], [], "b"),
        ({"a": 2, "b": 3}, [], ["b"], "a"),
        ({"a": 1, "b": 3}, ["a"], [], "a"),
        ({"a": 1, "b": 3}, ["c"], [], "b"),
        ({"a": 1, "b": 9}, [], ["b"], "b"),
        ({"a": 1, "b": 9}, [None], ["b"], "b"),
    ],
)
def test_the_group_that_is_most_behind_is_served_next(
    waiting: dict[str, int], idle: list[Any], busy: list[str], chosen: str
) -> None:
    groups = [name and group(name) for name in idle]
    serving = [(group(name), 0.1) for name in busy]
    assert queue(**waiting).next_group(groups, serving, UNKNOWN) == group(chosen)


@pytest.mark.parametrize(
    ("waiting", "serving_s", "known", "pays"),
    [
        (1, [], pace(0.1), True),  # somebody has to do it
        (9, [0.1], UNKNOWN, True),  # nobody knows how long it takes
        (10, [0.1], pace(0.1), False),  # done before a new worker is ready
        (16, [0.1], pace(0.1), True),
        (16, [0.1, 0.1], pace(0.1), False),
        (31, [0.1, 0.1], pace(0.1), True),
        (1, [0.1], pace(60.0), True),
        (1, [1.4], pace(0.1), False),
        (1, [1.6], pace(0.1), True),  # this one takes longer than the others did
        (1, [1.6, 0.1], pace(0.1), False),
        (19, [0.1], pace(0.1, None), False),  # a start is taken to need 2 s
        (21, [0.1], pace(0.1, None), True),
    ],
)
def test_one_more_worker_is_started_only_if_it_finds_something_to_do(
    waiting: int, serving_s: list[float], known: Pace, pays: bool
) -> None:
    assert known.pays(waiting, serving_s) == pays
    serving = [(group("a"), seconds) for seconds in serving_s]
    chosen = queue(a=waiting).next_group([], serving, known)
    assert chosen == (group("a") if pays else None)


def test_a_group_that_nobody_serves_is_begun_where_no_more_workers_pay_for_another() -> None:
    assert queue(a=5, b=1).next_group([], [(group("a"), 0.1)], pace(0.1)) == group("b")


def test_a_worker_that_is_ready_is_used_whether_or_not_another_would_pay() -> None:
    serving = [(group("a"), 0.1)]
    assert queue(a=1).next_group([None], serving, pace(0.1)) == group("a")
    assert queue(a=1).next_group([group("a")], serving, pace(0.1)) == group("a")


def test_tasks_of_a_group_come_in_order_and_one_that_is_put_back_comes_first() -> None:
    waiting = queue(a=2, b=1)
    first = waiting.take(group("a"))
    second = waiting.take(group("a"))
    assert (first.label, second.label) == (0, 1)
    assert group("a") not in waiting
    assert group("b") in waiting
    waiting.put_back(second)
    waiting.put_back(first)
    assert [waiting.take(group("a")).label for _ in range(2)] == [0, 1]
    waiting.take(group("b"))
    assert not waiting
    assert waiting.next_group([], [], UNKNOWN) is None
