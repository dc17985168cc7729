"""Arrays of several devices as one: the device is the first dimension, whatever the layout."""

from __future__ import annotations

import numpy as np
import pytest

from pallasc.emulator.arrays import from_bytes, join_bytes, numpy_dtype, of_devices, to_bytes
from pallasc.specs.artifacts.plan import Binding


@pytest.mark.parametrize(
    ("dtype", "shape", "layout"),
    [("f32", (2, 3), None), ("bf16", (2, 3), (0, 1)), ("i4", (3,), None), ("i4", (3, 5), None)],
)
def test_bytes_of_devices_are_joined(
    dtype: str, shape: tuple[int, ...], layout: tuple[int, ...] | None
) -> None:
    own = Binding("x", dtype, shape, 0, layout)
    kind = numpy_dtype(dtype)
    whole = np.random.default_rng(0).integers(-8, 8, (4, *shape)).astype(kind)
    parts = [to_bytes(array, own).tobytes() for array in whole]
    joined = np.frombuffer(join_bytes(parts, own), np.uint8)
    np.testing.assert_array_equal(from_bytes(joined, of_devices(own, 4)), whole)


def test_the_device_is_the_slowest_dimension() -> None:
    own = Binding("x", "u8", (2, 3), 0, (0, 1))
    whole = of_devices(own, 2)
    assert (whole.shape, whole.layout) == ((2, 2, 3), (1, 2, 0))
    array = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    first = array[0].T.reshape(-1).tolist()
    assert to_bytes(array, whole)[:6].tolist() == first


def test_one_device_has_no_dimension_of_its_own() -> None:
    own = Binding("x", "f32", (2, 3), 0)
    assert of_devices(own, 1) is own
