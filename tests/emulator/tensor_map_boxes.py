"""Tensor maps of numpy arrays, and their boxes in shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pallasc.emulator.tensors import tensor_maps
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


def load(map: TensorMap, box: tensor_maps.Box, array: np.ndarray, before: int = 0) -> np.ndarray:
    shared = np.full(SHARED_BYTES, 0xCC, np.uint8)
    memory = np.concatenate([np.full(before, 0xEE, np.uint8), array.reshape(-1).view(np.uint8)])
    tensor_maps.load(map, box, memory, before, shared)
    outside = np.ones(SHARED_BYTES, np.bool_)
    outside[box.shared_address : box.shared_address + box.bytes] = False
    assert (shared[outside] == 0xCC).all()
    return shared
