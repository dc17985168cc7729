"""Plans that are executed on numpy arrays give the buffers that JAX's interpreter gives.

And plans that are wrong in one place do not: a step left out, another offset or buffer, less
filled, steps in another order.
"""

from __future__ import annotations

from typing import Any

import pytest

# Cases of several steps, or several results, or memory that is changed in place.
NAMES = [
    "added", "added_twice", "aligned_slice", "around", "backward", "closed_over", "constant",
    "counted", "doubled", "doubled_twice", "empty", "forward", "jitted", "mapped",
    "misaligned_slice", "nested_loops", "passed_through", "product", "rows", "scalar", "scanned",
    "several", "signalled", "signalled_twice", "slice_of_result", "three", "transposed_constant",
    "tree", "twice", "two_references", "whole_numbers", "written_slice", "zeroed",
]  # fmt: skip

# A loop's counter is written and read by kernels, but the plan has its rounds already; nor does
# anything read a constant of an empty array, or care in which order independent steps are.
LOOPS = {"counted", "nested_loops", "rows", "scanned"}
INDEPENDENT = {"empty": ["constant 4 not there"], "tree": ["steps turned round"]}


def test_every_case_was_executed(executed: dict[str, Any]) -> None:
    assert sorted(executed) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_gives_what_jax_gives(executed: dict[str, Any], name: str) -> None:
    assert executed[name]["agrees"]


@pytest.mark.parametrize("name", sorted(set(NAMES) - LOOPS))
def test_a_plan_that_is_wrong_in_one_place_gives_something_else(
    executed: dict[str, Any], name: str
) -> None:
    assert executed[name]["changes"] > 2
    assert executed[name]["unnoticed"] == INDEPENDENT.get(name, [])


@pytest.mark.parametrize("name", sorted(LOOPS))
def test_most_of_what_is_wrong_in_a_loop_is_noticed(executed: dict[str, Any], name: str) -> None:
    result = executed[name]
    assert len(result["unnoticed"]) < result["changes"] / 3
    assert "steps turned round" not in result["unnoticed"]


def test_the_cases_have_what_plans_are_made_of(executed: dict[str, Any]) -> None:
    kinds = {step for result in executed.values() for step in result["steps"]}
    roles = {role for result in executed.values() for role in result["buffers"]}
    origins = {origin for result in executed.values() for origin in result["origins"]}
    assert kinds >= {"copy", "launch"}
    assert roles == {"input", "output", "constant", "temporary"}
    assert origins == {"mosaic", "xla"}
    several = [r for r in executed.values() if len(r["steps"]) > 1 or r["outputs"] > 1]
    assert len(several) >= 20


def test_a_counted_loop_is_its_body_once_for_each_round(executed: dict[str, Any]) -> None:
    assert executed["counted"]["origins"].count("mosaic") == 5
    assert executed["scanned"]["origins"].count("mosaic") == 8
    assert executed["nested_loops"]["origins"].count("mosaic") == 12
