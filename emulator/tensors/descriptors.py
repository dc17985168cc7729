"""Matrices in shared memory: swizzles, and the descriptors of `wgmma` and `tcgen05`.

A swizzle of 32, 64 or 128 bytes exchanges pieces of 16 bytes: bits 4 and up of an address are XORed
with the same number of bits from bit 7 up (CUTLASS: `Swizzle<B, 4, 3>`). Tensor copies and matrix
descriptors both apply it to the address in the shared window, regardless of a tile's start.

A descriptor has 64 bits; lengths are in units of 16 bytes. For `wgmma` (PTX ISA 9.0,
9.7.15.5.1.2.2) and for `tcgen05` (9.7.16.4.1):

    0-13   start of the matrix             46-48  tcgen05: 0b001, which Mosaic leaves 0
    16-29  leading dimension byte offset   49-51  base offset of the swizzling pattern
    32-45  stride dimension byte offset    52     tcgen05: the leading dimension is an address
                                           62-63  wgmma: swizzle, 0 none, 1 128, 2 64, 3 32 bytes
                                           61-63  tcgen05: swizzle

Shared memory is read in chunks of 16 bytes, which stay together in every layout. Matrices consist
of tiles of 8 rows, each row as wide as the swizzle (16 bytes without one). The meaning of the two
offsets depends on the contiguous dimension (CUTLASS, `make_gmma_desc` in
cute/atom/mma_traits_sm90_gmma.hpp and `make_umma_desc` in mma_sm100_desc.hpp):

    contiguous   swizzle   leading byte offset             stride byte offset
    K            none      to the next 16 bytes along K    to the next 8 rows of M or N
    K            some      unused                          to the next 8 rows of M or N
    M or N       none      to the next 8 of K              to the next 16 bytes along M or N
    M or N       some      to the next row width of M/N    to the next 8 of K

The swizzle applies to the final address, so that a matrix may start inside a tile.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pallasc.errors import CheckError, UnsupportedError


class OperandError(CheckError):
    """An instruction has operands that the hardware does not allow.

    The machine converts it to a fault with a location; `rule` is the fault's rule.
    """

    def __init__(
        self, message: str, *, rule: str = "invalid-operand", hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.rule = rule


def unsupported(what: str) -> UnsupportedError:
    """Return the error for an unsupported opcode or feature (a noun phrase)."""
    return UnsupportedError(f"the emulator does not support {what}")


PIECE_BYTES = 16
"""Size of the pieces that a swizzle exchanges."""

PERIOD_BYTES = 1024
"""Addresses that differ by a multiple of this are swizzled in the same way."""

_MASKS = {0: 0, 32: 0x10, 64: 0x30, 128: 0x70}


def swizzled(addresses: np.ndarray, swizzle_bytes: int) -> np.ndarray:
    """Return the swizzled addresses in shared memory.

    Raises:
        UnsupportedError: there is no swizzle of this width.
    """
    mask = _mask(swizzle_bytes)
    return addresses ^ (addresses >> 3 & mask) if mask else addresses


@lru_cache(maxsize=512)
def piece_order(start: int, pieces: int, swizzle_bytes: int) -> np.ndarray:
    """Return, for each piece of shared memory from `start` on, the index of the tile's piece there.

    A swizzle is its own inverse, so the result is also the destination of each piece of the tile.

    Args:
        start: the first address modulo `PERIOD_BYTES`, a multiple of the swizzle's width.
        pieces: number of pieces of 16 bytes.
        swizzle_bytes: 32, 64 or 128.
    """
    addresses = start + PIECE_BYTES * np.arange(pieces, dtype=np.int64)
    order = (swizzled(addresses, swizzle_bytes) - start) // PIECE_BYTES
    order.flags.writeable = False
    return order


def _mask(swizzle_bytes: int) -> int:
    if swizzle_bytes not in _MASKS:
        raise unsupported(f"a swizzle of {swizzle_bytes} bytes")
    return _MASKS[swizzle_bytes]


CHUNK_BYTES = PIECE_BYTES
_ATOM_ROWS = 8

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


_FIELD = (1 << 14) - 1
_WGMMA_BITS = _FIELD | _FIELD << 16 | _FIELD << 32 | 7 << 49 | 3 << 62
_WGMMA_ROWS = (16, 128, 64, 32)


@lru_cache(maxsize=4096)
def parse_of_wgmma(descriptor: int) -> SharedDescriptor:
    """Parse a descriptor of `wgmma`.

    Raises:
        UnsupportedError: reserved bits or a base offset are set.
    """
    if descriptor & ~_WGMMA_BITS:
        raise unsupported(f"a matrix descriptor {descriptor:#018x} with reserved bits set")
    if base_offset := descriptor >> 49 & 7:
        raise unsupported(f"a matrix descriptor with base offset {base_offset}")
    return SharedDescriptor(*_lengths(descriptor), _WGMMA_ROWS[descriptor >> 62], CHUNK_BYTES)


def _lengths(descriptor: int) -> tuple[int, int, int]:
    """Return the start, the leading offset and the stride, in bytes."""
    start, leading, stride = ((descriptor >> bit & _FIELD) << 4 for bit in (0, 16, 32))
    return start, leading, stride


@lru_cache(maxsize=4096)
def parse_shared(descriptor: int) -> SharedDescriptor:
    """Parse a shared memory descriptor of `tcgen05`.

    Raises:
        UnsupportedError: the descriptor has a base offset or an absolute leading dimension.
        OperandError: the descriptor's constant bits or swizzling are invalid.
    """
    version, mode = descriptor >> 46 & 7, descriptor >> 61
    if version > 1 or descriptor >> 53 & 0xFF or mode not in _SWIZZLES:
        raise OperandError(
            f"{descriptor:#018x} is not a shared memory descriptor of tcgen05: bits 46–48 are "
            f"{version}, bits 53–60 {descriptor >> 53 & 0xFF}, and the swizzling is {mode}"
        )
    if descriptor >> 49 & 7:
        raise unsupported(f"the base offset of shared memory descriptor {descriptor:#018x}")
    if descriptor >> 52 & 1:
        raise unsupported(
            f"the absolute leading dimension of shared memory descriptor {descriptor:#018x}"
        )
    return SharedDescriptor(*_lengths(descriptor), *_SWIZZLES[mode])


@lru_cache(maxsize=1024)
def k_major_chunks(matrix: SharedDescriptor, rows: int, row_bytes: int) -> NDArray[np.intp]:
    """Return the chunk addresses of a matrix with contiguous rows: int[rows, row_bytes / 16].

    Args:
        matrix: the matrix in shared memory.
        rows: M or N.
        row_bytes: bytes of a row along K.

    Raises:
        UnsupportedError: a row extends into another swizzled row, or the swizzle keeps 32 bytes
            together.
    """
    row, chunk = np.arange(rows)[:, None], np.arange(row_bytes // CHUNK_BYTES)
    atoms = matrix.start + row // _ATOM_ROWS * matrix.stride + row % _ATOM_ROWS * matrix.row
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


@lru_cache(maxsize=1024)
def mn_major_chunks(matrix: SharedDescriptor, depth: int, line_bytes: int) -> NDArray[np.intp]:
    """Return the chunk addresses of a matrix with contiguous columns: int[depth, line_bytes / 16].

    Args:
        matrix: the matrix in shared memory.
        depth: K.
        line_bytes: bytes of a line along M or N.

    Raises:
        UnsupportedError: the matrix starts inside a swizzled row, and extends into another.
    """
    k, chunk = np.arange(depth)[:, None], np.arange(line_bytes // CHUNK_BYTES)
    if matrix.row == CHUNK_BYTES:
        lines = k // _ATOM_ROWS * matrix.leading + k % _ATOM_ROWS * CHUNK_BYTES
        return _frozen(matrix.start + lines + chunk * matrix.stride)
    within_row = matrix.start % matrix.row
    if within_row and within_row + line_bytes > matrix.row:
        raise unsupported(f"an MN-major matrix that starts {within_row} bytes into a swizzled row")
    rows = _ATOM_ROWS if matrix.atom == CHUNK_BYTES else _ATOM_ROWS // 2
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
        OperandError: an address is beyond shared memory.
    """
    highest = int(chunks.max())
    if highest + CHUNK_BYTES > len(shared):
        raise OperandError(
            f"{user} reads shared memory at {highest:#x}, the block has {len(shared):#x} bytes",
            rule="out-of-bounds",
        )
    whole = len(shared) // CHUNK_BYTES * CHUNK_BYTES
    found: NDArray[np.uint8] = shared[:whole].reshape(-1, CHUNK_BYTES)[chunks >> 4]
    return found
