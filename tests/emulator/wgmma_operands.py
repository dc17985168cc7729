"""Operands of `wgmma` as Mosaic and CUTLASS lay them out."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np

NUMPY_TYPES = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "s8": np.int8,
    "u8": np.uint8,
}
D_TYPES = {"f32": np.float32, "f16": np.float16, "s32": np.int32}
SWIZZLE_BITS = {0: 0, 32: 1, 64: 2, 128: 3}
SWIZZLE_CODES = {0: 0, 128: 1, 64: 2, 32: 3}


def opcode(n: int, d: str, a: str, b: str = "") -> str:
    k = 32 // np.dtype(NUMPY_TYPES[a]).itemsize
    return f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{d}.{a}.{b or a}"


def random_matrix(rows: int, columns: int, dtype: str, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    if dtype in ("s8", "u8"):
        limits = np.iinfo(NUMPY_TYPES[dtype])
        return random.integers(limits.min, limits.max + 1, (rows, columns)).astype(
            NUMPY_TYPES[dtype]
        )
    values = random.normal(size=(rows, columns)).astype(np.float32)
    if dtype == "tf32":
        return (values.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return values.astype(NUMPY_TYPES[dtype])


def encode(start: int, leading: int, stride: int, swizzle: int) -> int:
    """Put a descriptor together, as `encode_descriptor` of Mosaic does."""
    return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | SWIZZLE_CODES[swizzle] << 62


def put(shared: np.ndarray, address: int, element: np.ndarray, swizzle: int) -> None:
    """Store an element at a swizzled address, bit by bit."""
    for bit in range(SWIZZLE_BITS[swizzle]):
        address ^= (address >> 7 + bit & 1) << 4 + bit
    shared[address : address + element.nbytes] = np.frombuffer(element.tobytes(), np.uint8)


def fill(
    shared: np.ndarray,
    start: int,
    matrix: np.ndarray,
    tile: tuple[int, int],
    *,
    columns_first: bool = False,
    swizzle: int = 0,
) -> tuple[int, int]:
    """Lay a matrix out in tiles, each of them contiguous and row-major.

    Returns the byte strides from tile to tile, along rows and along columns of tiles.
    """
    rows, columns = matrix.shape
    tile_bytes = tile[0] * tile[1] * matrix.itemsize
    down, right = rows // tile[0], columns // tile[1]
    row_stride, column_stride = tile_bytes * right, tile_bytes
    if columns_first:
        row_stride, column_stride = tile_bytes, tile_bytes * down
    for row, column in itertools.product(range(rows), range(columns)):
        at = start + row // tile[0] * row_stride + column // tile[1] * column_stride
        at += (row % tile[0] * tile[1] + column % tile[1]) * matrix.itemsize
        put(shared, at, matrix[row, column], swizzle)
    return row_stride, column_stride


def a_place(thread: int, i: int, dtype: str) -> tuple[int, int]:
    """PTX ISA 9.0, 9.7.15.5.1.1: where element `i` of thread `t` lies in A."""
    warp, lane = divmod(thread, 32)
    group, within = divmod(lane, 4)
    if dtype == "f16":
        low = i < 2 or 4 <= i < 6
        column = within * 2 + (i & 1) + (8 if i >= 4 else 0)
    elif dtype == "e4m3":
        low = i < 4 or 8 <= i < 12
        column = within * 4 + (i & 3) + (16 if i >= 8 else 0)
    else:
        low = i in (0, 2)
        column = within + (4 if i >= 2 else 0)
    return 16 * warp + group + (0 if low else 8), column
