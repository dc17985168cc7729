"""Plans that are executed on numpy arrays give the buffers that JAX's interpreter gives.

And plans that are wrong in one place do not: a step left out, another offset or buffer, less
filled, steps in another order.
"""

from __future__ import annotations

from typing import Any

import pytest

ALIAS, SCRATCH, RESULTS, LAUNCHES = "alias", "scratch", "several results", "several launches"
PROPERTIES: dict[str, set[str]] = {
    "added_twice": {ALIAS, LAUNCHES},
    "aliased_kept": {ALIAS, RESULTS, LAUNCHES},
    "aliased_temporary": {ALIAS, LAUNCHES},
    "aligned_slice": set(),
    "around": {LAUNCHES},
    "backward": {RESULTS, LAUNCHES},
    "closed_over": {ALIAS, RESULTS},
    "counted": {LAUNCHES},
    "doubled": {SCRATCH},
    "doubled_twice": {SCRATCH, LAUNCHES},
    "empty": {RESULTS},
    "forward": {SCRATCH, LAUNCHES},
    "jitted": {SCRATCH, LAUNCHES},
    "mapped": set(),
    "misaligned_slice": {RESULTS},
    "nested_loops": {LAUNCHES},
    "passed_through": {RESULTS},
    "product": {RESULTS, LAUNCHES},
    "scalar": {RESULTS, LAUNCHES},
    "scanned": {RESULTS, LAUNCHES},
    "signalled_twice": {ALIAS, LAUNCHES},
    "slice_of_result": set(),
    "transposed_constant": set(),
    "tree": {RESULTS, LAUNCHES},
    "two_references": {ALIAS, RESULTS, LAUNCHES},
    "whole_numbers": {RESULTS, LAUNCHES},
    "written_slice": {LAUNCHES},
    "zeroed": {RESULTS, LAUNCHES},
}
"""What each case has."""

NAMES = sorted(PROPERTIES)

# A loop's counter is written and read by kernels, but the plan has its rounds already.
LOOPS = {"counted", "nested_loops", "scanned"}

# What gives the same numbers in another way: x + y is y + x, x + 0 is x - 0, and a result that
# is an input, or the same as another result, may be read from there; nothing reads a constant of
# an empty array, or cares in which order independent steps are, or reads a copy or its original.
EQUAL = {
    "added_twice": ["first and last array swapped"],
    "aliased_kept": [
        "step 2 parameter 0 is the next buffer", "step 2 parameter 1 map 0 of the next buffer",
    ],
    "empty": ["constant 4 not there"],
    "passed_through": ["result 0 is buffer 1", "result 1 is buffer 4", "result 2 is buffer 3"],
    "tree": ["steps turned round", "result 3 is buffer 0", "result 4 is buffer 1"],
    "zeroed": [
        "result 0 is buffer 0", "result 0 is buffer 2", "result 1 is buffer 0",
        "result 1 is buffer 1",
    ],
}  # fmt: skip


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
    assert set(executed[name]["unnoticed"]) <= set(EQUAL.get(name, []))


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


@pytest.mark.parametrize("name", NAMES)
def test_a_case_has_the_properties_it_is_listed_with(executed: dict[str, Any], name: str) -> None:
    result = executed[name]
    found = {
        ALIAS: result["aliased"],
        SCRATCH: result["shared_bytes"] > 0,
        RESULTS: result["outputs"] > 1,
        LAUNCHES: len(result["origins"]) > 1,
    }
    has = {what for what, there in found.items() if there}
    assert has >= PROPERTIES[name]
    # Blocks of `pl.pallas_call` lie in shared memory where Mosaic compiles it.
    assert has - PROPERTIES[name] <= {SCRATCH}


def test_a_counted_loop_is_its_body_once_for_each_round(executed: dict[str, Any]) -> None:
    assert executed["counted"]["origins"].count("mosaic") == 5
    assert executed["scanned"]["origins"].count("mosaic") == 8
    assert executed["nested_loops"]["origins"].count("mosaic") == 12
