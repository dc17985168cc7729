"""Bulk tensor copies that reduce, against Python's numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensor_map_boxes
from tensor_map_boxes import arange, load, make_map

from pallasc.emulator.tensors import tensor_maps
from pallasc.errors import UnsupportedError
from pallasc.specs.artifacts.plan import TensorMap


def python_reduction(operation: str, old: int, new: int) -> int:
    """What each operation does to integers."""
    return {
        "add": old + new,
        "min": min(old, new),
        "max": max(old, new),
        "inc": 0 if old >= new else old + 1,
        "dec": new if old == 0 or old > new else old - 1,
        "and": old & new,
        "or": old | new,
        "xor": old ^ new,
    }[operation]


INTEGERS = itertools.product(
    ["uint32", "int32", "uint64", "int64"], ["add", "min", "max", "and", "or", "xor"]
)


@pytest.mark.parametrize(("dtype", "operation"), [*INTEGERS, ("uint32", "inc"), ("uint32", "dec")])
def test_integers_are_reduced(dtype: str, operation: str):
    limits = np.iinfo(dtype)
    few = [limits.min, limits.max, 0, 1, 2, 5, limits.max - 1, limits.min + 1]
    pairs = list(itertools.product(few, repeat=2))
    old = np.array([a for a, _ in pairs], dtype).reshape(8, 8)
    new = np.array([b for _, b in pairs], dtype).reshape(8, 8)
    map = make_map(old, (8, 8))
    memory = old.copy().view(np.uint8).reshape(-1)
    shared = np.ascontiguousarray(new).view(np.uint8).reshape(-1)
    box = tensor_maps.tiled(map, (0, 2), 0)
    tensor_map_boxes.reduce(map, box, memory, 0, shared, operation=operation)
    result = memory.view(dtype).reshape(8, 8)
    assert (result[:2] == old[:2]).all()
    bits = np.dtype(dtype).itemsize * 8
    for y, x in itertools.product(range(6), range(8)):
        wanted = python_reduction(operation, int(old[y + 2, x]), int(new[y, x]))
        assert int(result[y + 2, x]) % (1 << bits) == wanted % (1 << bits)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_floats_are_added_and_rounded_to_even(dtype: str):
    numpy_dtype = tensor_maps.NUMPY_TYPES[dtype]
    random = np.random.default_rng(1)
    old = random.normal(size=(8, 8)).astype(numpy_dtype)
    new = random.normal(size=(8, 8)).astype(numpy_dtype)
    one_and_half_step = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}[dtype]
    old[0, :4] = [1, 1 + 2 * one_and_half_step, np.inf, np.nan]
    new[0, :4] = [one_and_half_step, one_and_half_step, -np.inf, 1]
    map = make_map(old, (8, 8), dtype=dtype)
    memory = old.copy().view(np.uint8).reshape(-1)
    box = tensor_maps.tiled(map, (0, 0), 0)
    tensor_map_boxes.reduce(map, box, memory, 0, new.view(np.uint8).reshape(-1), operation="add")
    result = memory.view(numpy_dtype).reshape(8, 8).astype(np.float64)
    with np.errstate(invalid="ignore"):
        wanted = (old.astype(np.float64) + new.astype(np.float64)).astype(numpy_dtype)
    assert np.array_equal(result, wanted.astype(np.float64), equal_nan=True)
    assert result[0, 0] == 1
    assert result[0, 1] == 1 + 4 * one_and_half_step
    assert np.isnan(result[0, 2:4]).all()


def test_sums_of_f32_alone_flush_subnormals() -> None:
    for dtype, tiny in (("float32", 2.0**-130), ("float16", 2.0**-20), ("float64", 2.0**-1030)):
        old = np.array([tiny, -tiny, 1], dtype)
        found = tensor_maps.combined("add", old, old)
        assert found.tolist() == [0, 0, 2] if dtype == "float32" else (found == old * 2).all()
        assert np.signbit(found).tolist() == [False, True, False]


def test_a_reduction_undoes_the_swizzle_and_clips():
    old = np.zeros((10, 48), np.int32)
    map = make_map(old, (32, 8), swizzle=128)
    source = arange(8, 32, dtype=np.int32)
    packed = make_map(source, (32, 8), swizzle=128)
    shared = load(packed, tensor_maps.tiled(packed, (0, 0), 0x480), source)
    memory = old.view(np.uint8).reshape(-1)
    box = tensor_maps.tiled(map, (40, -2), 0x480)
    for _ in range(2):
        tensor_map_boxes.reduce(map, box, memory, 0, shared, operation="add")
    assert (old[:6, 40:] == 2 * source[2:, :8]).all()
    assert np.count_nonzero(old) == 6 * 8


@pytest.mark.parametrize(
    ("dtype", "operation"),
    [("uint8", "add"), ("float32", "max"), ("uint64", "inc"), ("float16", "and")],
)
def test_what_has_no_reduction_is_refused_by_name(dtype: str, operation: str):
    array = np.zeros((8, 16), dtype)
    map = make_map(array, (16, 8))
    box = tensor_maps.tiled(map, (0, 0), 0)
    memory = array.view(np.uint8).reshape(-1)
    with pytest.raises(UnsupportedError, match=rf"{dtype} by \.{operation}"):
        tensor_map_boxes.reduce(map, box, memory, 0, memory.copy(), operation=operation)


def test_a_reduction_of_elements_that_overlap_is_refused():
    map = TensorMap(0, 0, "uint32", (8, 4), (0,), (8, 4), (1, 1))
    box = tensor_maps.tiled(map, (0, 0), 0)
    with pytest.raises(UnsupportedError, match="overlap"):
        tensor_map_boxes.reduce(
            map, box, np.zeros(32, np.uint8), 0, np.zeros(128, np.uint8), operation="add"
        )
