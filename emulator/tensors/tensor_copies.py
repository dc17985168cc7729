"""The bytes of bulk tensor copies: loads, stores and reductions of a box.

`tensor_maps.py` defines boxes, and which of their elements are in the tensor.
"""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from pallasc.emulator.numbers.atomics import flushed_sum, greater, lesser
from pallasc.emulator.tensors.misuse import OperandError, unsupported
from pallasc.emulator.tensors.swizzles import PERIOD_BYTES, PIECE_BYTES, piece_order
from pallasc.emulator.tensors.tensor_maps import Box, element_bytes
from pallasc.specs.artifacts.plan import ELEMENT_BYTES, TensorMap

_NAN = {
    "float16": 0x7FFF, "bfloat16": 0x7FFF, "float32": 0x7FFFFFFF, "float64": 0x7FFFFFFFFFFFFFFF,
}  # fmt: skip
NUMPY_TYPES = {name: np.dtype(name) for name in ELEMENT_BYTES if name != "bfloat16"} | {
    "bfloat16": np.dtype(ml_dtypes.bfloat16)
}


def fill_value(map: TensorMap) -> bytes:
    """Return the element that loads write for out-of-bounds positions: zero or NaN.

    Raises:
        UnsupportedError: the map fills with NaN and its elements are integers.
    """
    size = element_bytes(map.dtype)
    if not map.nan_fill:
        return bytes(size)
    if map.dtype not in _NAN:
        raise unsupported(f"a tensor map of {map.dtype} that fills with NaN")
    return _NAN[map.dtype].to_bytes(size, "little")


def load(
    map: TensorMap, box: Box, global_bytes: np.ndarray, base_offset: int, shared: np.ndarray
) -> None:
    """Copy a box from global to shared memory.

    Args:
        map: the tensor map.
        box: the box to copy.
        global_bytes: uint8[n], the allocation.
        base_offset: offset of the map's address in `global_bytes`.
        shared: uint8[n], the shared memory of a block.

    Raises:
        OperandError: the box exceeds the allocation or shared memory.
    """
    _target(box, shared)[...] = read_global(map, box, global_bytes, base_offset)


def read_global(map: TensorMap, box: Box, global_bytes: np.ndarray, base_offset: int) -> np.ndarray:
    """Return uint8[box.bytes]: the bytes that a load writes at `shared_address`.

    Raises:
        OperandError: the box exceeds the allocation.
    """
    row_bytes = box.row_elements * box.element_bytes
    rows = len(box.row_offsets)
    found = _windows(box, global_bytes, base_offset)
    if box.row_inside is None and box.global_row_bytes == row_bytes:
        dense = found
    else:
        dense = np.zeros((rows, row_bytes), np.uint8)
        if map.nan_fill:
            value = np.frombuffer(fill_value(map), np.uint8)
            dense.reshape(-1, box.element_bytes)[...] = value
        if found.size:
            first = box.columns[0] * box.element_bytes
            target = dense[:, first : first + box.global_row_bytes]
            target[slice(None) if box.row_inside is None else box.row_inside] = found
    return _reordered(box, dense.reshape(-1))


def store(
    map: TensorMap, box: Box, global_bytes: np.ndarray, base_offset: int, shared: np.ndarray
) -> None:
    """Copy a box from shared to global memory; arguments and errors are as for `load`."""
    write_global(map, box, global_bytes, base_offset, _target(box, shared))


def write_global(
    map: TensorMap, box: Box, global_bytes: np.ndarray, base_offset: int, data: np.ndarray
) -> None:
    """Store `data`, the bytes of shared memory from `shared_address` on, to global memory."""
    if box.global_row_bytes and len(starts := box.global_rows):
        windows = _view(box, starts, global_bytes, base_offset)
        windows[starts + base_offset] = _inner(box, data)


def reduce(
    map: TensorMap,
    box: Box,
    global_bytes: np.ndarray,
    base_offset: int,
    shared: np.ndarray,
    *,
    operation: str,
) -> None:
    """Combine a box of shared memory with global memory, element by element.

    Integers wrap. Sums of floats round to nearest even; sums of f32 flush subnormals, as PTX ISA
    9.0, 9.7.9.25.4.2, requires for copies without a tensor map. If one operand is NaN, `min` and
    `max` return the other, and -0.0 is smaller than +0.0, as for the instructions `min` and `max`.

    Args:
        map: the tensor map, whose element type is the operation's.
        box: the box to combine.
        global_bytes: uint8[n], the allocation.
        base_offset: offset of the map's address in `global_bytes`.
        shared: uint8[n], the shared memory of a block.
        operation: add, min, max, inc, dec, and, or, xor.

    Raises:
        UnsupportedError: the operation is not supported for these elements, or elements overlap.
        OperandError: the box exceeds the allocation or shared memory.
    """
    reduce_global(map, box, global_bytes, base_offset, _target(box, shared), operation=operation)


def reduce_global(
    map: TensorMap,
    box: Box,
    global_bytes: np.ndarray,
    base_offset: int,
    data: np.ndarray,
    *,
    operation: str,
) -> None:
    """Reduce as `reduce`, from `data`, the bytes of shared memory from `shared_address` on."""
    if operation not in REDUCTIONS or map.dtype not in REDUCTIONS[operation]:
        raise unsupported(f"a tensor copy that reduces {map.dtype} by .{operation}")
    starts = box.global_rows
    if not box.global_row_bytes or not len(starts):
        return
    if len(starts) > 1 and np.diff(np.sort(starts)).min() < box.global_row_bytes:
        raise unsupported("a tensor copy that reduces overlapping elements")
    windows = _view(box, starts, global_bytes, base_offset)
    at = starts + base_offset
    dtype = NUMPY_TYPES[map.dtype]
    old = windows[at].view(np.uint8).view(dtype)
    new = np.ascontiguousarray(_inner(box, data)).view(np.uint8).view(dtype)
    result = combined(operation, old, new)
    windows[at] = result.view(np.uint8).view(windows.dtype).reshape(at.shape)


REDUCTIONS = {
    "add": {"uint32", "int32", "uint64", "int64", "float16", "bfloat16", "float32", "float64"},
    "min": {"uint32", "int32", "uint64", "int64", "float16", "bfloat16"},
    "max": {"uint32", "int32", "uint64", "int64", "float16", "bfloat16"},
    "inc": {"uint32"},
    "dec": {"uint32"},
    "and": {"uint32", "int32", "uint64", "int64"},
    "or": {"uint32", "int32", "uint64", "int64"},
    "xor": {"uint32", "int32", "uint64", "int64"},
}

_UFUNCS = {
    "add": np.add, "min": np.minimum, "max": np.maximum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


def combined(operation: str, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Return the elements that a reduction writes, from old elements in memory and new ones."""
    if operation == "inc":
        return np.where(old >= new, np.uint32(0), old + np.uint32(1))
    if operation == "dec":
        return np.where((old == 0) | (old > new), new, old - np.uint32(1))
    change: Callable[[np.ndarray, np.ndarray], np.ndarray] = _UFUNCS[operation]
    if old.dtype == np.float32 and operation == "add":
        change = flushed_sum
    elif old.dtype.kind not in "iu" and operation in ("min", "max"):
        change = lesser if operation == "min" else greater
    with np.errstate(all="ignore"):
        return change(old, new)


def _target(box: Box, shared: np.ndarray) -> np.ndarray:
    """Return the part of shared memory that a box occupies."""
    end = box.shared_address + box.bytes
    if box.shared_address < 0 or end > len(shared):
        raise OperandError(
            f"a tensor copy of {box.bytes} bytes at {box.shared_address:#x} leaves the "
            f"{len(shared)} bytes of shared memory",
            rule="out-of-bounds",
        )
    return shared[box.shared_address : end]


def _windows(box: Box, global_bytes: np.ndarray, base_offset: int) -> np.ndarray:
    """Return uint8[rows inside, bytes per row] from global memory."""
    starts = box.global_rows
    width = box.global_row_bytes
    if not width or not len(starts):
        return np.empty((0, width), np.uint8)
    view = _view(box, starts, global_bytes, base_offset)
    found: np.ndarray = view[starts + base_offset].view(np.uint8)
    return found.reshape(len(starts), width)


def _view(box: Box, starts: np.ndarray, global_bytes: np.ndarray, base_offset: int) -> np.ndarray:
    """View every window of a row's length in global memory as one item."""
    width = box.global_row_bytes
    first, last = int(starts.min()) + base_offset, int(starts.max()) + base_offset + width
    if first < 0 or last > len(global_bytes):
        raise OperandError(
            f"a tensor copy reaches bytes {first} to {last - 1} of an allocation of "
            f"{len(global_bytes)} bytes",
            rule="out-of-bounds",
        )
    return np.ndarray(
        (len(global_bytes) - width + 1,), np.dtype((np.void, width)), global_bytes, 0, (1,)
    )


def _inner(box: Box, data: np.ndarray) -> np.ndarray:
    """Return the box's rows that are inside the tensor, one item per row."""
    row_bytes = box.row_elements * box.element_bytes
    dense = _reordered(box, data).reshape(-1, row_bytes)
    first, width = box.columns[0] * box.element_bytes, box.global_row_bytes
    if width != row_bytes:
        dense = dense[:, first : first + width]
    if box.row_inside is not None:
        dense = dense[box.row_inside]
    rows: np.ndarray = np.ascontiguousarray(dense).view(np.dtype((np.void, width)))
    return rows.reshape(-1)


def _reordered(box: Box, data: np.ndarray) -> np.ndarray:
    """Swizzle the bytes of a box, or unswizzle them, which is the same."""
    if not box.swizzle:
        return data
    start = box.shared_address % PERIOD_BYTES
    order = piece_order(start, box.bytes // PIECE_BYTES, box.swizzle)
    pieces: np.ndarray = np.ascontiguousarray(data).view(np.dtype((np.void, PIECE_BYTES)))
    reordered: np.ndarray = pieces[order].view(np.uint8)
    return reordered
