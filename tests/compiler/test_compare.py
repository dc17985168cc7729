"""Comparing results with those of a reference."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pallasc.compiler import arrays as comparison
from pallasc.compiler.arrays import Comparison, Mismatch, array_of, compare_arrays, settle_tolerance
from pallasc.specs.spec import Tolerance

NAN, INF = float("nan"), float("inf")


def _compare(got: Any, wanted: Any, *, rtol: float = 0.0, atol: float = 0.0) -> Comparison:
    pair = [one if isinstance(one, np.ndarray) else np.array(one, "f4") for one in (got, wanted)]
    return compare_arrays(*pair, rtol=rtol, atol=atol)


@pytest.mark.parametrize(
    ("got", "wanted", "tolerance", "mismatches"),
    [
        ([1.0, 2.0], [1.0, 2.0], {}, 0),
        ([1.0, 2.5], [1.0, 2.0], {}, 1),
        ([1.0, 2.5], [1.0, 2.0], {"atol": 0.5}, 0),
        ([1.0, 2.5], [1.0, 2.0], {"rtol": 0.25}, 0),
        ([1.0, 2.5], [1.0, 2.0], {"rtol": 0.24}, 1),
        ([1.0, 2.5], [1.0, 2.0], {"rtol": 0.125, "atol": 0.25}, 0),
        ([0.0], [-0.0], {}, 0),
        ([NAN, 1.0], [NAN, 1.0], {}, 0),
        ([NAN, 1.0], [1.0, NAN], {"atol": INF}, 2),
        ([INF, -INF], [INF, -INF], {}, 0),
        ([INF, INF], [-INF, 1.0], {"rtol": 1e9}, 2),
        ([3e38], [-3e38], {"atol": 1.0}, 1),
    ],
)
def test_what_is_within_the_tolerance_is_right(
    got: list[float], wanted: list[float], tolerance: dict[str, float], mismatches: int
) -> None:
    assert _compare(got, wanted, **tolerance).mismatches == mismatches


def test_arrays_longer_than_a_slice_are_compared_to_their_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(comparison, "_SLICE", 3)
    got = np.arange(10, dtype=np.float32).reshape(2, 5)
    wanted = got.copy()
    wanted[1, 1], wanted[1, 4] = 5, 1
    found = _compare(got, wanted)
    assert (found.count, found.mismatches, found.max_abs) == (10, 2, 8.0)
    assert found.first == Mismatch((1, 1), "6.0", "5.0")


@pytest.mark.parametrize("shape", [(), (0, 4)])
def test_arrays_without_dimensions_or_elements_are_compared(shape: tuple[int, ...]) -> None:
    assert _compare(np.zeros(shape), np.zeros(shape)).mismatches == 0
    if not shape:
        assert _compare(np.zeros(()), np.ones(())).first == Mismatch((), "0.0", "1.0")


@pytest.mark.parametrize(
    ("tolerance", "dtype", "settled"),
    [
        (None, "i32", (0.0, 0.0)),
        (None, "bool", (0.0, 0.0)),
        (None, "f32", (2.0**-21, 2.0**-21)),
        (None, "bf16", (2.0**-5, 2.0**-5)),
        (None, "f8e4m3fn", (0.5, 0.5)),
        (Tolerance(rtol=0.1), "f32", (0.1, 0.0)),
        (Tolerance(atol=0.1), "f32", (0.0, 0.1)),
    ],
)
def test_tolerances_have_defaults(
    tolerance: Tolerance | None, dtype: str, settled: tuple[float, float]
) -> None:
    assert settle_tolerance(tolerance, dtype) == settled


@pytest.mark.parametrize(
    ("dtype", "data", "values"),
    [
        ("f32", np.array([1.5, 2], "f4").tobytes(), [1.5, 2]),
        ("bf16", b"\x80\x3f\x00\x40", [1, 2]),
        ("bool", b"\1\0", [1, 0]),
        ("i4", b"\xf1", [1, -1]),
        ("u4", b"\xf1", [1, 15]),
        ("i2", b"\x0e", [-2, -1]),
        ("f4e2m1fn", b"\x92", [1, -0.5]),
    ],
)
def test_device_bytes_become_arrays(
    dtype: str, data: bytes, values: list[float], tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(data)
    found = array_of(np.fromfile(tmp_path / "a", np.uint8), dtype, [2])
    assert found.astype(np.float32).tolist() == values
