"""What a free place among the workers is used for."""

from __future__ import annotations

from typing import Any

import pytest

from pallasc.compiler.workers.messages import Group
from pallasc.compiler.workers.pool import next_group


def group(name: str) -> Group:
    return ("sm_90a", name, ())


@pytest.mark.parametrize(
    ("waiting", "idle", "busy", "expected"),
    [
        ({"a": 1, "b": 3}, [], [], "b"),
        ({"a": 2, "b": 3}, [], ["b"], "a"),
        ({"a": 1, "b": 3}, ["a"], [], "a"),
        ({"a": 1, "b": 3}, ["c"], [], "b"),
        ({"a": 1, "b": 9}, [], ["b"], "b"),
        ({"a": 1, "b": 9}, [None], ["b"], "b"),
        ({"a": 1}, [], ["a"], "a"),
    ],
)
def test_the_group_that_is_most_behind_is_served_next(
    waiting: dict[str, int], idle: list[Any], busy: list[str], expected: str
) -> None:
    counts = {group(name): count for name, count in waiting.items()}
    found = next_group(counts, [name and group(name) for name in idle], map(group, busy))
    assert found == group(expected)
