"""Figures of speed, computed from times."""

from __future__ import annotations

from typing import Any

import pytest

from pallasc.cli.bench import Figures, Limits, moved_bytes, parse_flop
from pallasc.errors import SpecError
from pallasc.specs.artifacts.plan import Binding, Buffer, LaunchPlan
from pallasc.specs.artifacts.signature import Signature

LIMITS = Limits("m", memory_gb_per_s=1000.0, fp32_tflop_per_s=10.0, l2_bytes=1000)


def _figures(times_us: list[float], **changes: Any) -> Figures:
    given = {"moved_bytes": 1_000_000, "flop": None, "limits": LIMITS, "cold": True}
    return Figures.of(times_us, **{**given, **changes})


@pytest.mark.parametrize(
    ("times_us", "median", "least", "p90"),
    [
        ([5.0], 5, 5, 5),
        ([4.0, 2.0], 3, 2, 4),
        ([float(n) for n in range(10, 0, -1)], 5.5, 1, 9),
        ([float(n) for n in range(1, 101)], 50.5, 1, 90),
    ],
)
def test_times_are_ranked(times_us: list[float], median: float, least: float, p90: float) -> None:
    found = _figures(times_us)
    assert (found.median_us, found.min_us, found.p90_us) == (median, least, p90)


def test_rates_follow_from_the_median() -> None:
    found = _figures([2.0, 2.0, 9.0], flop=4e6)
    assert found.gb_per_s == 500  # a million bytes in 2 µs
    assert found.memory_share == 0.5
    assert found.tflop_per_s == 2


@pytest.mark.parametrize(
    ("moved", "cold", "is_known"),
    [(1000, True, True), (1000, False, False), (1001, False, True)],
)
def test_a_share_of_the_memory_needs_that_it_is_read(
    moved: int, cold: bool, is_known: bool
) -> None:
    found = _figures([1.0], moved_bytes=moved, cold=cold)
    assert (found.memory_share is not None) is is_known


def test_what_is_not_known_is_none() -> None:
    found = _figures([1.0], limits=None)
    assert (found.memory_share, found.flop, found.tflop_per_s) == (None, None, None)
    assert _figures([0.0], flop=1.0).gb_per_s is None


def test_an_input_updated_in_place_moves_twice() -> None:
    buffers = (Buffer("input", 40), Buffer("input", 80), Buffer("output", 120))
    inputs = (Binding("a", "f32", (10,), 0), Binding("b", "f32", (20,), 1))
    outputs = (Binding("out.0", "f32", (10,), 0), Binding("out.1", "f32", (30,), 2))
    plan = LaunchPlan(buffers, inputs, outputs, (), [0, 1], {"tuple": [0, 1]})
    assert moved_bytes(Signature.of(plan)) == 40 + 80 + 120 + 40


@pytest.mark.parametrize(
    ("text", "value"), [("12", 12), ("1.5e3", 1500), ("{2 * m * n}", 24), ("{m}", 3)]
)
def test_operations_are_a_number_or_a_product(text: str, value: float) -> None:
    assert parse_flop(text, {"m": 3, "n": 4}) == value


@pytest.mark.parametrize("text", ["", "x", "0", "-3", "nan", "{m - 3}", "{d}"])
def test_other_operations_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="must be a positive number of operations"):
        parse_flop(text, {"m": 3, "d": "bf16"})
