"""Layouts of the matrices of `mma.sync` and `wgmma` in the registers of warps.

For each tile of 8 rows and 16 bytes, lane `l` of a warp holds the 4 bytes `l % 4` of row `l // 4`
(PTX ISA 9.0, 9.7.14.5, "Matrix Fragments for mma.m16n8k…"; 9.7.15.5.1.1 for `wgmma`). Register
arrays are uint32[registers, lanes], with the lanes of one warp, or of consecutive warps that hold
16 rows each. 64-bit elements have the same layout in uint64, with four per row.
"""

from __future__ import annotations

import numpy as np

_ACCUMULATOR_TYPES = {
    "f32": np.float32, "f16": np.float16, "s32": np.int32, "f64": np.float64,
}  # fmt: skip


def rows_of_a(registers: np.ndarray, row_tiles: int = 2) -> np.ndarray:
    """Return operand A as [rows, words per row]; its registers go down the tiles of rows first."""
    warps = registers.shape[1] // 32
    tiles = np.ascontiguousarray(registers).reshape(-1, row_tiles, warps, 8, 4)
    return tiles.transpose(2, 1, 3, 0, 4).reshape(warps * row_tiles * 8, -1)


def columns_of_b(registers: np.ndarray) -> np.ndarray:
    """Return operand B of one warp as [8 columns, words per column]."""
    return np.ascontiguousarray(registers).reshape(-1, 8, 4).transpose(1, 0, 2).reshape(8, -1)


def matrix_of(registers: np.ndarray, dtype: str, row_tiles: int = 2) -> np.ndarray:
    """Return the accumulators [rows, columns] in the type f32, f16, s32 or f64."""
    warps = registers.shape[1] // 32
    values = np.ascontiguousarray(registers).view(_ACCUMULATOR_TYPES[dtype])
    if dtype == "f16":
        tiles = values.reshape(-1, row_tiles, warps, 8, 4, 2).transpose(2, 1, 3, 0, 4, 5)
    else:
        tiles = values.reshape(-1, row_tiles, 2, warps, 8, 4).transpose(3, 1, 4, 0, 5, 2)
    return tiles.reshape(warps * row_tiles * 8, -1)


def registers_of(matrix: np.ndarray, row_tiles: int = 2) -> np.ndarray:
    """Return the registers that hold accumulators, the inverse of `matrix_of`."""
    rows, columns = matrix.shape
    warps = rows // (8 * row_tiles)
    tiles = matrix.reshape(warps, row_tiles, 8, columns // 8, 4, 2)
    if matrix.dtype == np.float16:
        values = np.ascontiguousarray(tiles.transpose(3, 1, 0, 2, 4, 5))
    else:
        values = np.ascontiguousarray(tiles.transpose(3, 1, 5, 0, 2, 4))
    words: np.ndarray = values.view(np.uint64 if matrix.dtype == np.float64 else np.uint32)
    return words.reshape(-1, 32 * warps)
