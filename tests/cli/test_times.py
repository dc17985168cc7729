"""Durations in words, and the estimate of what is left."""

from __future__ import annotations

import pytest

from pallasc.cli.output.progress import time_left_s
from pallasc.cli.output.text import about, duration, elapsed


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (1.24, "1.2 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (14.5, "14 s"),
        (119.4, "119 s"),
        (119.6, "2 min 00 s"),
        (200, "3 min 20 s"),
        (3599.4, "59 min 59 s"),
        (3600, "1 h 00 min"),
        (7500, "2 h 05 min"),
    ],
)
def test_a_duration_is_as_fine_as_it_deserves(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.9, "0 s"), (1.99, "1 s"), (119.9, "119 s"), (120, "2 min 00 s")]
)
def test_what_runs_has_run_for_whole_seconds(seconds: float, text: str) -> None:
    assert elapsed(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.1, "about 5 s"),
        (5, "about 5 s"),
        (6, "about 10 s"),
        (21, "about 25 s"),
        (55, "about 55 s"),
        (56, "about 1 min"),
        (100, "about 2 min"),
        (5399, "about 90 min"),
        (5400, "about 2 h"),
    ],
)
def test_an_estimate_is_rough(seconds: float, text: str) -> None:
    assert about(seconds) == text


@pytest.mark.parametrize(
    ("left", "compiled_s", "running_s", "jobs", "expected"),
    [
        (10, [], [3.0], 2, None),
        (0, [2.0], [], 2, None),
        (10, [2.0, 4.0], [], 2, 15.0),
        (10, [3.0], [1.0, 2.0], 2, 13.5),
        (10, [3.0], [100.0, 1.0], 2, 13.0),
        (1, [3.0], [1.0], 8, 2.0),
        (3, [4.0], [], 8, 4.0),
        (2, [4.0], [4.0, 0.0], 8, 4.0),
        (1, [3.0], [50.0], 2, None),
    ],
)
def test_the_time_left_is_work_over_jobs_but_not_less_than_the_newest_needs(
    left: int,
    compiled_s: list[float],
    running_s: list[float],
    jobs: int,
    expected: float | None,
) -> None:
    found = time_left_s(left=left, compiled_s=compiled_s, running_s=running_s, jobs=jobs)
    assert found == pytest.approx(expected) if expected is not None else found is None
