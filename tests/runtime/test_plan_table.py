"""Bound plans by key: how many there are, which of them leaves, and who still has it then."""

from __future__ import annotations

import itertools
import threading
import weakref
from typing import Any

import made
import pytest

from pallasc.runtime.calls import plan_table
from pallasc.runtime.calls.plan_table import PlanKey, PlanTable
from pallasc.runtime.device.devices import active, get_device


def _plan(number: int) -> Any:
    return lambda: (number,)


def _key(number: int) -> PlanKey:
    return (0, 0, number * 256)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> PlanTable:
    monkeypatch.setattr(plan_table, "MOST_PLANS", 100)
    return PlanTable()


def _found(table: PlanTable, sets: int, rounds: int = 20) -> float:
    """Return the share of launches that find their plan, where sets of addresses go round."""
    found = 0
    for turn in range(rounds):
        for number in range(sets):
            if _key(number) in table.plans:
                found += turn >= rounds // 2
            else:
                table.put(_key(number), _plan(number))
    return found / (sets * (rounds - rounds // 2))


@pytest.mark.parametrize(
    ("sets", "least", "most"),
    [(50, 1, 1), (100, 1, 1), (101, 0.9, 1), (150, 0.3, 0.6), (200, 0.1, 0.3), (1000, 0, 0.05)],
)
def test_more_sets_of_addresses_cost_gradually_more(
    sets: int, least: float, most: float, table: PlanTable
) -> None:
    assert least <= _found(table, sets) <= most


def test_threads_leave_as_many_plans_as_there_is_room_for(table: PlanTable) -> None:
    gate = threading.Barrier(8)
    failed: list[BaseException] = []

    def work(first: int) -> None:
        gate.wait()
        try:
            for number in itertools.islice(itertools.cycle(range(first, first + 90)), 1000):
                plan = table.plans.get(_key(number))
                if plan is None:
                    table.put(_key(number), _plan(number))
                elif plan()[0] != number:
                    raise ValueError(f"the plan of another key for {number}")
                if number % 50 == 0:
                    table.drop(_key(number))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(30 * number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(table.plans) <= 100
    assert set(table.plans) == set(table._keys)


def test_a_plan_that_leaves_while_it_is_used_keeps_its_parameters(
    runtime: Any, framework: Any, python_only: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory serves another plan only when nobody has the plan any more."""
    monkeypatch.setattr(plan_table, "MOST_PLANS", 3)
    kernel = made.kernel(made.add())
    a, b, out = (framework.tensor("f32[4, 64]") for _ in range(3))
    for _ in range(2):
        kernel.into(a, b, out=out)
    (route,) = kernel._routes.values()
    (key,) = route.plans
    plan = route.plans[key]
    others = [framework.tensor("f32[4, 64]") for _ in range(100)]
    for other in others:
        kernel.into(a, b, out=other)
    assert key not in route.plans
    assert len({launch.pointer(2) for launch in runtime.launches}) == 101
    plan()
    assert runtime.launches[-1].pointer(2) == out.pointer


def test_memory_of_plans_that_have_left_is_used_again(
    runtime: Any, framework: Any, python_only: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_table, "MOST_PLANS", 20)
    kernel = made.kernel(made.add())
    a, b = (framework.tensor("f32[4, 64]") for _ in range(2))
    blocks: set[int] = set()
    gone = []
    with active(get_device(0)):
        for _ in range(300):
            kernel.into(a, b, out=framework.tensor("f32[4, 64]"))
            (route,) = kernel._routes.values()
            plan: Any = next(reversed(route.plans.values()))
            blocks.add(plan.args[2])
            gone.append(weakref.ref(plan))
    del plan
    assert sum(reference() is not None for reference in gone) == 20
    assert len(blocks) <= 32  # two pieces of memory with sixteen blocks each
