"""Shared memory descriptors of tcgen05, and the matrices that they describe.

A shared memory descriptor (PTX ISA 9.0, 9.7.16.4.1) has 64 bits; lengths are in units of 16 bytes:

    0–13   start of the matrix             46–48  0b001, which Mosaic leaves 0
    16–29  leading dimension byte offset   49–51  base offset of the swizzling pattern
    32–45  stride dimension byte offset    52     the leading dimension is an absolute address
                                           61–63  swizzling

Shared memory is read in chunks of 16 bytes, which stay together in every layout. The layouts are
documented above `make_umma_desc` in CUTLASS' mma_sm100_desc.hpp; the functions below implement
them.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pallasc.emulator.tensors.misuse import unsupported
from pallasc.emulator.tensors.swizzles import PIECE_BYTES, swizzled
from pallasc.emulator.tensors.tensor_memory import TensorCoreError

CHUNK_BYTES = PIECE_BYTES
ATOM_ROWS = 8

# Bits 61–63 of the descriptor -> bytes of a swizzled row, bytes that stay together.
_SWIZZLES = {0: (16, 16), 1: (128, 32), 2: (128, 16), 4: (64, 16), 6: (32, 16)}


class SharedDescriptor(NamedTuple):
    """A matrix in shared memory.

    Attributes:
        start: address of its first byte.
        leading: bytes to the next atom along the contiguous dimension.
        stride: bytes to the next atom along the other dimension.
        row: bytes of a row of the swizzling pattern, 16 without swizzling.
        atom: bytes that swizzling moves together.
    """

    start: int
    leading: int
    stride: int
    row: int
    atom: int


@functools.lru_cache(maxsize=4096)
def parse_shared(descriptor: int) -> SharedDescriptor:
    """Parse a shared memory descriptor.

    Raises:
        UnsupportedError: it uses a base offset or an absolute leading dimension.
        TensorCoreError: its constant bits or its swizzling are invalid.
    """
    version, mode = descriptor >> 46 & 7, descriptor >> 61
    if version > 1 or descriptor >> 53 & 0xFF or mode not in _SWIZZLES:
        raise TensorCoreError(
            f"{descriptor:#018x} is not a shared memory descriptor of tcgen05: bits 46–48 are "
            f"{version}, bits 53–60 {descriptor >> 53 & 0xFF}, and the swizzling is {mode}"
        )
    if descriptor >> 49 & 7:
        raise unsupported(f"the base offset of shared memory descriptor {descriptor:#018x}")
    if descriptor >> 52 & 1:
        raise unsupported(
            f"the absolute leading dimension of shared memory descriptor {descriptor:#018x}"
        )
    start, leading, stride = ((descriptor >> bit & 0x3FFF) << 4 for bit in (0, 16, 32))
    return SharedDescriptor(start, leading, stride, *_SWIZZLES[mode])


@functools.lru_cache(maxsize=1024)
def k_major_chunks(matrix: SharedDescriptor, rows: int, row_bytes: int) -> NDArray[np.intp]:
    """Return the chunk addresses of a matrix with contiguous rows: int[rows, row_bytes / 16].

    Args:
        matrix: the matrix in shared memory.
        rows: M or N.
        row_bytes: bytes of K elements.

    Raises:
        UnsupportedError: a row extends into another swizzled row, or 32 bytes stay together.
    """
    row, chunk = np.arange(rows)[:, None], np.arange(row_bytes // CHUNK_BYTES)
    atoms = matrix.start + row // ATOM_ROWS * matrix.stride + row % ATOM_ROWS * matrix.row
    if matrix.row == CHUNK_BYTES:
        return _frozen(atoms + chunk * matrix.leading)
    if matrix.atom != CHUNK_BYTES:
        raise unsupported("a K-major matrix with swizzling that keeps 32 bytes together")
    if matrix.start % matrix.row + row_bytes > matrix.row:
        raise unsupported(
            f"a K-major matrix whose rows of {row_bytes} bytes start {matrix.start % matrix.row} "
            f"bytes into a swizzled row of {matrix.row}"
        )
    return _frozen(_swizzled(matrix, atoms + chunk * CHUNK_BYTES))


@functools.lru_cache(maxsize=1024)
def mn_major_chunks(matrix: SharedDescriptor, depth: int, line_bytes: int) -> NDArray[np.intp]:
    """Return the chunk addresses of a matrix with contiguous columns: int[depth, line_bytes / 16].

    Args:
        matrix: the matrix in shared memory.
        depth: K.
        line_bytes: bytes of M or N elements.

    Raises:
        UnsupportedError: it starts within a swizzled row.
    """
    k, chunk = np.arange(depth)[:, None], np.arange(line_bytes // CHUNK_BYTES)
    if matrix.row == CHUNK_BYTES:
        lines = k // ATOM_ROWS * matrix.leading + k % ATOM_ROWS * CHUNK_BYTES
        return _frozen(matrix.start + lines + chunk * matrix.stride)
    if matrix.start % matrix.row:
        raise unsupported(
            f"an MN-major matrix that starts {matrix.start % matrix.row} bytes into a swizzled row"
        )
    rows = ATOM_ROWS if matrix.atom == CHUNK_BYTES else ATOM_ROWS // 2
    block, within = np.divmod(chunk * CHUNK_BYTES, matrix.row)
    lines = matrix.start + k // rows * matrix.stride + k % rows * matrix.row
    return _frozen(_swizzled(matrix, lines + block * matrix.leading + within))


def _swizzled(matrix: SharedDescriptor, addresses: NDArray[np.intp]) -> NDArray[np.intp]:
    if matrix.atom == CHUNK_BYTES:
        return swizzled(addresses, matrix.row)
    # `Swizzle<2, 5, 2>` in CUTLASS: atoms of 32 bytes, exchanged by the row modulo 4.
    return addresses ^ (addresses >> 7 & 3) << 5


def _frozen(array: NDArray[np.intp]) -> NDArray[np.intp]:
    array.setflags(write=False)
    return array


def read_chunks(shared: NDArray[np.uint8], chunks: NDArray[Any], user: str) -> NDArray[np.uint8]:
    """Return the contents of shared memory at `chunks`: uint8[..., 16].

    Args:
        shared: shared memory of one block; address 0 is its first byte.
        chunks: addresses, multiples of 16.
        user: the name of the reader, for the error.

    Raises:
        TensorCoreError: an address is beyond shared memory.
    """
    highest = int(chunks.max())
    if highest + CHUNK_BYTES > len(shared):
        raise TensorCoreError(
            f"{user} reads shared memory at {highest:#x}, the block has {len(shared):#x} bytes",
            rule="out-of-bounds",
        )
    whole = len(shared) // CHUNK_BYTES * CHUNK_BYTES
    found: NDArray[np.uint8] = shared[:whole].reshape(-1, CHUNK_BYTES)[chunks >> 4]
    return found
