"""Bulk tensor copies: the bytes of a box, and its loads, stores and reductions.

PTX ISA 9.0, 5.5 "Tensors", describes the modes; `cuTensorMapEncodeTiled` and
`cuTensorMapEncodeIm2col` (CUDA driver API, "Tensor Map Object Management") define the constraints
on arguments.

A box is a list of rows, each consisting of consecutive elements of the tensor. In shared memory,
rows are dense, with the first dimension innermost, before the swizzle. Loads fill elements outside
the tensor, and stores skip them; their bytes count for the mbarrier.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import ml_dtypes
import numpy as np

from pallasc.emulator.numbers.table import combined
from pallasc.emulator.tensors.descriptors import (
    PERIOD_BYTES,
    PIECE_BYTES,
    OperandError,
    piece_order,
    unsupported,
)
from pallasc.specs.artifacts.plan import ELEMENT_BYTES, TensorMap

SHARED_ALIGNMENT = 128
"""Alignment of a bulk tensor copy's address in shared memory (PTX ISA 9.0, 5.5.6)."""


@dataclass(frozen=True, slots=True, eq=False)
class Box:
    """The elements that one bulk tensor copy moves.

    Attributes:
        shared_address: start of the box in shared memory.
        row_offsets: int64[rows], the start of each row, in bytes from the map's address.
        row_inside: bool[rows], True for rows in the tensor; None if all are.
        columns: the half-open range of a row's elements that are in the tensor.
        row_elements: elements per row.
        element_bytes: the size of an element.
        swizzle: width in bytes, 0 for none.
        bytes: the bytes announced to the mbarrier: the full box, including out-of-bounds elements.
    """

    shared_address: int
    row_offsets: np.ndarray
    row_inside: np.ndarray | None
    columns: tuple[int, int]
    row_elements: int
    element_bytes: int
    swizzle: int
    bytes: int

    @property
    def global_rows(self) -> np.ndarray:
        """int64[rows inside]: the start, in bytes, of each row's part in the tensor."""
        first, end = self.columns
        if first >= end:
            return self.row_offsets[:0]
        rows = self.row_offsets if self.row_inside is None else self.row_offsets[self.row_inside]
        return rows + first * self.element_bytes if first else rows

    @property
    def global_row_bytes(self) -> int:
        """The size of each row's part in the tensor."""
        return max(0, self.columns[1] - self.columns[0]) * self.element_bytes


def tiled(map: TensorMap, coordinates: Sequence[int], shared_address: int) -> Box:
    """Return the box of a copy in mode `.tile`.

    Args:
        map: made by `cuTensorMapEncodeTiled`.
        coordinates: coordinates of the box's first element, minor first, signed.
        shared_address: start of the box in shared memory.

    Raises:
        UnsupportedError: a property of the map is not modeled.
        OperandError: the address is misaligned, or the rank differs from the map's.
    """
    if map.im2col is not None:
        raise OperandError("a tensor copy in mode .tile uses a tensor map made for .im2col")
    shape = _checked(map, coordinates, shared_address)
    offset = coordinates[0] * shape.element_bytes
    inside: np.ndarray | None = None
    for n, (at, row) in enumerate(zip(coordinates[1:], shape.row_indices, strict=True), start=1):
        offset += at * map.strides[n - 1]
        last = at + (_count(map, n) - 1) * map.element_strides[n]
        if at < 0 or last >= map.dims[n]:
            within = (row >= -at) & (row < map.dims[n] - at)
            inside = within if inside is None else inside & within
    return _box(map, shape, shared_address, coordinates[0], shape.rows + offset, inside)


def im2col(
    map: TensorMap, coordinates: Sequence[int], offsets: Sequence[int], shared_address: int
) -> Box:
    """Return the box of a copy in mode `.im2col`, or `.im2col_no_offs` with no offsets.

    In each spatial dimension, windows start at the lower corner and at every element stride after
    it, before the tensor's size plus the upper corner. The copy takes `pixels_per_column` windows
    from `coordinates` on, with the first spatial dimension innermost and the images outermost (PTX
    ISA 9.0, 5.5.4).

    Args:
        map: made by `cuTensorMapEncodeIm2col`.
        coordinates: the first channel, the start of the first window, the image; signed.
        offsets: offsets of the pixel within its window, per spatial dimension; empty for zeros.
        shared_address: start of the box in shared memory.

    Raises:
        UnsupportedError: a property of the map is not modeled, or no window starts at
            `coordinates`.
        OperandError: the address is misaligned, or the rank differs from the map's.
    """
    if map.im2col is None:
        raise OperandError("a tensor copy in mode .im2col uses a tensor map made for .tile")
    shape = _checked(map, coordinates, shared_address)
    spatial = len(map.dims) - 2
    offsets = tuple(offsets) or (0,) * spatial
    if len(offsets) != spatial:
        raise OperandError(f"a tensor copy has {len(offsets)} offsets for {spatial} dimensions")
    if map.element_strides[-1] != 1:
        raise unsupported(f"im2col with a stride of {map.element_strides[-1]} images")
    lower, upper = map.im2col["lower"], map.im2col["upper"]
    steps = map.element_strides[1:-1]
    counts, starts = [], []
    for n, at in enumerate(coordinates[1:-1]):
        counts.append(-(-(map.dims[n + 1] + upper[n] - lower[n]) // steps[n]))
        start, rest = divmod(at - lower[n], steps[n])
        if rest or not 0 <= start < counts[n]:
            raise unsupported(
                f"im2col from coordinate {at} of dimension {n + 1}, at which no window starts"
            )
        starts.append(start)
    first = sum(start * math.prod(counts[:n]) for n, start in enumerate([*starts, coordinates[-1]]))
    index = first + np.arange(map.im2col["pixels_per_column"], dtype=np.int64)
    row_offsets = np.full(index.shape, coordinates[0] * shape.element_bytes, np.int64)
    inside = np.ones(index.shape, np.bool_)
    for n in range(spatial):
        index, window = np.divmod(index, counts[n])
        pixel = window * steps[n] + (lower[n] + offsets[n])
        row_offsets += pixel * map.strides[n]
        inside &= (pixel >= 0) & (pixel < map.dims[n + 1])
    row_offsets += index * map.strides[spatial]
    inside &= (index >= 0) & (index < map.dims[-1])
    return _box(
        map, shape, shared_address, coordinates[0], row_offsets, None if inside.all() else inside
    )


def gather4(map: TensorMap, column: int, rows: Sequence[int], shared_address: int) -> Box:
    """Return the box of a copy in mode `.tile::gather4` or `scatter4`: four rows of a matrix.

    Args:
        map: of rank 2, whose box is one row.
        column: column of the first element in each row.
        rows: the four rows, in their order in shared memory.
        shared_address: start of the box in shared memory.

    Raises:
        UnsupportedError: a property of the map is not modeled.
        OperandError: the address is misaligned, or the map is not of rank 2 with a box of one row.
    """
    if map.im2col is not None or len(map.dims) != 2 or map.box[1] != 1 or len(rows) != 4:
        raise OperandError(
            f"a gather or scatter of {len(rows)} rows needs 4 rows, and a tensor map of a matrix "
            f"whose box is one row; got sizes {map.dims} with box {map.box}"
        )
    shape = _checked(map, (column, rows[0]), shared_address)
    index = np.array(rows, np.int64)
    inside = (index >= 0) & (index < map.dims[1])
    row_offsets = column * shape.element_bytes + index * map.strides[0]
    return _box(map, shape, shared_address, column, row_offsets, None if inside.all() else inside)


def element_bytes(dtype: str) -> int:
    """Return the size of an element.

    Raises:
        UnsupportedError: the type is not modeled.
    """
    if dtype not in ELEMENT_BYTES:
        raise unsupported(f"a tensor map of {dtype}")
    return ELEMENT_BYTES[dtype]


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    """The rows of a map's box at coordinates of zero.

    Attributes:
        rows: int64[rows], the bytes from the box's start to each row.
        row_indices: for each outer dimension, int64[rows]: each row's index in this dimension.
    """

    rows: np.ndarray
    row_indices: tuple[np.ndarray, ...]
    element_bytes: int


def _checked(map: TensorMap, coordinates: Sequence[int], shared_address: int) -> _Shape:
    if len(coordinates) != len(map.dims):
        raise OperandError(
            f"a tensor copy of rank {len(coordinates)} uses a tensor map of rank {len(map.dims)}"
        )
    if shared_address % SHARED_ALIGNMENT:
        raise OperandError(
            f"a tensor copy's address in shared memory is misaligned: {shared_address:#x} is "
            f"{shared_address % SHARED_ALIGNMENT} bytes past a {SHARED_ALIGNMENT}-byte boundary",
            rule="misaligned",
        )
    counts = tuple(_count(map, n) for n in range(1, len(map.dims))) if map.im2col is None else ()
    inner = map.box[0] if map.im2col is None else map.im2col["channels_per_pixel"]
    strides = tuple(
        stride * step for stride, step in zip(map.strides, map.element_strides[1:], strict=True)
    )
    return _shape(
        map.dtype, inner, counts, strides, map.element_strides[1:], map.swizzle, map.interleave
    )


@lru_cache(maxsize=1024)
def _shape(
    dtype: str,
    inner: int,
    counts: tuple[int, ...],
    strides: tuple[int, ...],
    steps: tuple[int, ...],
    swizzle: int,
    interleave: int,
) -> _Shape:
    size = element_bytes(dtype)
    if interleave:
        raise unsupported(f"a tensor map with an interleave of {interleave} bytes")
    if inner * size % PIECE_BYTES:
        raise unsupported(f"a tensor map whose inner box is {inner * size} bytes")
    if swizzle and inner * size != swizzle:
        raise unsupported(
            f"a tensor map whose inner box is {inner * size} bytes with a swizzle of {swizzle}"
        )
    index = np.arange(math.prod(counts), dtype=np.int64)
    rows = np.zeros(index.shape, np.int64)
    row_indices = []
    for count, stride, step in zip(counts, strides, steps, strict=False):
        index, position = np.divmod(index, count)
        rows += position * stride
        row_indices.append(position * step)
    return _Shape(rows, tuple(row_indices), size)


def _count(map: TensorMap, dimension: int) -> int:
    """Return the elements of a box along an outer dimension."""
    return -(-map.box[dimension] // map.element_strides[dimension])


def _box(
    map: TensorMap,
    shape: _Shape,
    shared_address: int,
    first_column: int,
    row_offsets: np.ndarray,
    row_inside: np.ndarray | None,
) -> Box:
    inner = map.box[0] if map.im2col is None else map.im2col["channels_per_pixel"]
    columns = (max(0, -first_column), min(inner, map.dims[0] - first_column))
    return Box(
        shared_address=shared_address,
        row_offsets=row_offsets,
        row_inside=row_inside,
        columns=columns if columns[0] < columns[1] else (0, 0),
        row_elements=inner,
        element_bytes=shape.element_bytes,
        swizzle=map.swizzle,
        bytes=len(row_offsets) * inner * shape.element_bytes,
    )


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


def write_global(box: Box, global_bytes: np.ndarray, base_offset: int, data: np.ndarray) -> None:
    """Store `data`, the bytes of shared memory from `shared_address` on, to global memory."""
    if box.global_row_bytes and len(starts := box.global_rows):
        windows = _view(box, starts, global_bytes, base_offset)
        windows[starts + base_offset] = _inner(box, data)


def reduce_global(
    map: TensorMap,
    box: Box,
    global_bytes: np.ndarray,
    base_offset: int,
    data: np.ndarray,
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
        data: the bytes of shared memory from `shared_address` on.
        operation: add, min, max, inc, dec, and, or, xor.

    Raises:
        UnsupportedError: the operation is not supported for these elements, or elements overlap.
        OperandError: the box exceeds the allocation.
    """
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
    """View global memory as overlapping windows of a row's length: item n starts at byte n."""
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
