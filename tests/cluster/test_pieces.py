"""What travels together, what is sent first, and what is given up."""

from __future__ import annotations

from pallasc.compiler.cluster.pieces import Backlog, Item, Piece
from pallasc.compiler.workers.messages import Group, Task
from pallasc.errors import CompileError, ToolError

ONE: Group = ("sm_90a", "/specs", ())
OTHER: Group = ("sm_80", "/specs", ())


def task(number: int, group: Group = ONE) -> Task:
    return Task(number, group, None)  # type: ignore[arg-type]


def labels(items: list[Item]) -> list[int]:
    return [item.task.label for item in items]


def test_items_travel_alone_until_their_pace_is_known_and_then_by_group() -> None:
    backlog = Backlog([task(0), task(1), task(2), task(3, OTHER), task(4)])
    assert labels(backlog.take()) == [0]
    backlog.pace(0.01)
    assert labels(backlog.take()) == [1, 2, 4]
    assert labels(backlog.take()) == [3]
    assert not backlog


def test_what_takes_long_travels_alone() -> None:
    backlog = Backlog([task(0), task(1)])
    backlog.pace(0.3)
    assert labels(backlog.take()) == [0]


def test_what_is_put_back_comes_first_and_alone_once_something_went_wrong() -> None:
    backlog = Backlog([task(number) for number in range(4)])
    backlog.pace(0.001)
    first = backlog.take()
    first[1].deaths = 1
    backlog.put_back(first)
    assert [labels(backlog.take()) for _ in range(3)] == [[0], [1], [2, 3]]


def test_more_is_sent_ahead_as_more_is_done() -> None:
    backlog = Backlog()
    assert backlog.ahead(2) == 24
    for _ in range(100):
        backlog.pace(0.1)
    assert backlog.ahead(2) == 200


def test_an_item_is_given_up_when_it_was_broken_alone_three_times() -> None:
    item = Item(task(0))
    how = {"by_death": False, "address": "dask://head:8786"}
    for alone in (False, True):
        assert item.give_up("OSError: no", alone=alone, **how) is None  # type: ignore[arg-type]
    error = item.give_up("OSError: no", alone=True, **how)  # type: ignore[arg-type]
    assert isinstance(error, ToolError)
    assert error.message == "the workers of dask://head:8786 fail at it: OSError: no"


def test_an_item_over_which_workers_died_is_given_up() -> None:
    item = Item(task(0))
    assert item.give_up("KilledWorker", alone=False, by_death=True, address="") is None
    error = item.give_up("KilledWorker", alone=True, by_death=True, address="")
    assert isinstance(error, CompileError)
    piece = Piece([Item(task(0))])
    assert [piece.note_death() is None for _ in range(3)] == [True, True, False]
