"""Tensor maps of numpy arrays, and their boxes in shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pallasc.emulator.tensors import tensor_maps
from pallasc.emulator.tensors.matrices import swizzled
from pallasc.specs.artifacts.plan import TensorMap

SHARED_BYTES = 1 << 16


def make_map(
    array: np.ndarray, box: Sequence[int], *, dtype: str = "", swizzle: int = 0, **others: Any
) -> TensorMap:
    """Describe a row-major array; `box` is minor first."""
    return TensorMap(
        buffer=0,
        offset=0,
        dtype=dtype or str(array.dtype),
        dims=tuple(reversed(array.shape)),
        strides=tuple(reversed(array.strides[:-1])),
        box=tuple(box),
        element_strides=others.pop("element_strides", (1,) * array.ndim),
        swizzle=swizzle,
        **others,
    )


def arange(*shape: int, dtype: Any = np.uint16) -> np.ndarray:
    """Distinct elements, none of them zero, where the type has that many."""
    return (np.arange(np.prod(shape)) % 65521 + 1).astype(dtype).reshape(shape)


def of(box: tensor_maps.Box, shared: np.ndarray) -> np.ndarray:
    """Return the bytes of shared memory that a box occupies."""
    return shared[box.shared_address : box.shared_address + box.bytes]


def copy_in(map: TensorMap, box: tensor_maps.Box, memory: Any, start: int, shared: Any) -> None:
    of(box, shared)[...] = tensor_maps.read_global(map, box, memory, start)


def copy_out(map: TensorMap, box: tensor_maps.Box, memory: Any, start: int, shared: Any) -> None:
    tensor_maps.write_global(map, box, memory, start, of(box, shared))


def reduce(
    map: TensorMap, box: tensor_maps.Box, memory: Any, start: int, shared: Any, *, operation: str
) -> None:
    tensor_maps.reduce_global(map, box, memory, start, of(box, shared), operation=operation)


def global_offsets(box: tensor_maps.Box) -> np.ndarray:
    """The byte offset of each element from the map's address, in shared order."""
    steps = box.element_bytes * np.arange(box.row_elements, dtype=np.int64)
    return (box.row_offsets[:, None] + steps).reshape(-1)


def inside(box: tensor_maps.Box) -> np.ndarray:
    """False for each element that is out of bounds."""
    first, end = box.columns
    found = np.zeros((len(box.row_offsets), box.row_elements), np.bool_)
    found[:, first:end] = True
    if box.row_inside is not None:
        found[~box.row_inside] = False
    return found.reshape(-1)


def shared_offsets(box: tensor_maps.Box) -> np.ndarray:
    """The byte offset of each element from the box's start, swizzled."""
    count = box.bytes // box.element_bytes
    addresses = box.shared_address + box.element_bytes * np.arange(count, dtype=np.int64)
    return swizzled(addresses, box.swizzle) - box.shared_address


def load(map: TensorMap, box: tensor_maps.Box, array: np.ndarray, before: int = 0) -> np.ndarray:
    shared = np.full(SHARED_BYTES, 0xCC, np.uint8)
    memory = np.concatenate([np.full(before, 0xEE, np.uint8), array.reshape(-1).view(np.uint8)])
    copy_in(map, box, memory, before, shared)
    outside = np.ones(SHARED_BYTES, np.bool_)
    outside[box.shared_address : box.shared_address + box.bytes] = False
    assert (shared[outside] == 0xCC).all()
    return shared
