"""Copies from shared to tensor memory: tcgen05.cp (PTX ISA 9.0, 9.7.16.9.2).

The source is a K-major matrix with the number of rows in the shape. Shapes with fewer than 128 rows
write every row to several warps' lanes; CUTLASS' copy_traits_sm100.hpp has the tables.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pallasc.emulator.tensors.misuse import unsupported
from pallasc.emulator.tensors.tcgen05_descriptors import (
    k_major_chunks,
    parse_shared,
    read_chunks,
)
from pallasc.emulator.tensors.tensor_memory import TensorMemory, split_address

# shape and multicast -> rows, bytes per row, and for each copy of the rows the lane of row 32 · i.
# The rows of `4x256b` are 32 lanes apart.
_SHAPES: dict[tuple[str, ...], tuple[int, int, tuple[tuple[int, ...], ...]]] = {
    ("128x256b",): (128, 32, ((0, 32, 64, 96),)),
    ("128x128b",): (128, 16, ((0, 32, 64, 96),)),
    ("4x256b",): (4, 32, ()),
    ("64x128b", "warpx2::02_13"): (64, 16, ((0, 32), (64, 96))),
    ("64x128b", "warpx2::01_23"): (64, 16, ((0, 64), (32, 96))),
    ("32x128b", "warpx4"): (32, 16, ((0,), (32,), (64,), (96,))),
}


@dataclass(frozen=True, slots=True)
class Copy:
    """One tcgen05.cp.

    Attributes:
        opcode: the whole mnemonic.
        group: number of blocks whose tensor memory is written, each from its own shared memory.
        rows: number of rows of the source.
        row_bytes: bytes per row of the source.
        shape: shape and multicast, as in the mnemonic.
    """

    opcode: str
    group: int
    rows: int
    row_bytes: int
    shape: tuple[str, ...]


@functools.cache
def parse_copy(opcode: str) -> Copy:
    """Parse the mnemonic of a tcgen05.cp.

    Raises:
        UnsupportedError: a part of it is unknown, or it decompresses.
    """
    parts = tuple(opcode.split("."))
    groups = {"cta_group::1": 1, "cta_group::2": 2}
    if parts[:2] != ("tcgen05", "cp") or len(parts) < 4 or parts[2] not in groups:
        raise unsupported(opcode)
    if parts[3:] not in _SHAPES:
        raise unsupported(f"the shape of {opcode}")
    rows, row_bytes, _ = _SHAPES[parts[3:]]
    return Copy(opcode, groups[parts[2]], rows, row_bytes, parts[3:])


@functools.cache
def _lanes(shape: tuple[str, ...]) -> NDArray[np.intp]:
    """Return the lane of each row in each of its copies: int[copies, rows]."""
    rows, _, starts = _SHAPES[shape]
    if not starts:
        return np.arange(rows)[None] * 32
    row = np.arange(rows)
    return np.stack([np.array(start)[row // 32] + row % 32 for start in starts])


def copied_chunks(copy: Copy, descriptor: int) -> NDArray[np.intp]:
    """Return the addresses of the 16-byte chunks that are read in each block's shared memory."""
    return k_major_chunks(parse_shared(descriptor), copy.rows, copy.row_bytes)


def written_cells(copy: Copy, address: int) -> list[tuple[NDArray[np.intp], range]]:
    """Return lanes and columns of tensor memory that are written in each block."""
    lane, column = split_address(address)
    columns = range(column, column + copy.row_bytes // 4)
    return [(lanes, columns) for lanes in _lanes(copy.shape) + lane]


def execute_copy(
    copy: Copy,
    address: int,
    descriptor: int,
    shared: Sequence[NDArray[np.uint8]],
    memories: Sequence[TensorMemory],
) -> None:
    """Copy into the tensor memory of one block or of both blocks of a pair.

    Args:
        copy: the instruction.
        address: address of the destination, the same in both blocks.
        descriptor: descriptor of the source, the same in both blocks.
        shared: shared memory of each block of the group.
        memories: tensor memory of each block.

    Raises:
        TensorCoreError: source or destination is outside the block's memory.
    """
    chunks = copied_chunks(copy, descriptor)
    cells = written_cells(copy, address)
    for source, memory in zip(shared, memories, strict=True):
        words = read_chunks(source, chunks, copy.opcode).reshape(copy.rows, -1).view(np.uint32)
        for lanes, columns in cells:
            memory.write_block(lanes, columns, words, copy.opcode)
