"""Random inputs: the same for the same seed, and numbers that kernels can compute with."""

from __future__ import annotations

import hashlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pallasc.compiler.arrays import random_bytes
from pallasc.specs.arrays import DTYPES

WHOLE = [name for name, dtype in DTYPES.items() if name[0] in "iu" and dtype.bits >= 8]
FLOATS = ["f16", "bf16", "f32", "f64", "f8e4m3fn", "f8e5m2", "f8e4m3", "c64", "c128"]
OTHER_FLOATS = ["f8e4m3b11fnuz", "f8e4m3fnuz", "f8e5m2fnuz", "f8e3m4", "f8e8m0fnu"]


def _array(dtype: str, count: int = 20_000) -> Any:
    size = count * DTYPES[dtype].bits // 8
    name = DTYPES[dtype].jax_name.rstrip("_")
    kind = getattr(ml_dtypes, name, None) or np.dtype(name)
    return np.frombuffer(random_bytes(dtype, size, seed=1, name="x"), kind)


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_lie_between_an_eighth_and_two_of_either_sign(dtype: str) -> None:
    whole = _array(dtype)
    part = np.float64 if dtype == "c128" else np.float32
    parts = (whole.view(part) if dtype[0] == "c" else whole).astype(np.float64)
    assert np.abs(parts).min() == pytest.approx(0.125, rel=0.01)
    assert 1.7 < np.abs(parts).max() < 2
    assert abs(parts.mean()) < 0.02


@pytest.mark.parametrize("dtype", OTHER_FLOATS)
def test_floats_of_other_layouts_are_finite(dtype: str) -> None:
    found = _array(dtype).astype(np.float64)
    assert np.isfinite(found).all()
    assert len(np.unique(found)) >= 4


@pytest.mark.parametrize("dtype", WHOLE)
def test_whole_numbers_are_all_or_small(dtype: str) -> None:
    found = _array(dtype)
    limits = {"i8": (-128, 127), "u8": (0, 255)}.get(dtype, (0, 15))
    assert (found.min(), found.max()) == limits


def test_truth_values_are_0_and_1_and_packed_types_take_every_byte() -> None:
    assert set(_array("bool").view(np.uint8)) == {0, 1}
    for dtype in ("i4", "u4", "f4e2m1fn", "i2"):
        assert len(set(random_bytes(dtype, 20_000, seed=0, name="x"))) == 256


def test_names_and_seeds_choose_the_numbers() -> None:
    chosen = [("x", 0), ("y", 0), ("x", 1)]
    drawn = [random_bytes("f32", 4096, seed=seed, name=name) for name, seed in chosen]
    assert len(set(drawn)) == 3
    assert random_bytes("f32", 4096, seed=0, name="x") == drawn[0]


def test_a_shorter_array_is_the_beginning_of_a_longer_one() -> None:
    long = random_bytes("bf16", 2_000_002, seed=0, name="x")
    assert len(long) == 2_000_002
    assert long.startswith(random_bytes("bf16", 1_000_000, seed=0, name="x"))
    assert random_bytes("bf16", 0, seed=0, name="x") == b""


@pytest.mark.parametrize(
    ("dtype", "digest"),
    [
        ("bf16", "e7f7b3450d4ca0a3"),
        ("f8e4m3fn", "48f6531e7869be73"),
        ("i4", "3bf337d56d66896f"),
        ("i32", "5e4dffafecabb51c"),
    ],
)
def test_numbers_are_the_same_everywhere(dtype: str, digest: str) -> None:
    data = random_bytes(dtype, 1 << 20, seed=0, name="x")
    assert hashlib.sha256(data).hexdigest()[:16] == digest
