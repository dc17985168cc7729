"""Matrix descriptors of `wgmma`: the location of operands in shared memory.

A descriptor (PTX ISA 9.0, 9.7.15.5.1.2.2, "Matrix Descriptor") is 64 bits:

    0-13 start address, 16-29 leading byte offset, 32-45 stride byte offset, each in units of 16
    bytes; 49-51 base offset; 62-63 swizzle: 0 none, 1 128 bytes, 2 64 bytes, 3 32 bytes

Operands consist of tiles of 8 rows, each row as wide as the swizzle (16 bytes without one). The
meaning of the two offsets depends on the contiguous dimension (CUTLASS,
cute/atom/mma_traits_sm90_gmma.hpp, `make_gmma_desc`):

    contiguous   swizzle   leading byte offset             stride byte offset
    K            none      to the next 16 bytes along K    to the next 8 rows of M or N
    K            some      unused                          to the next 8 rows of M or N
    M or N       none      to the next 8 of K              to the next 16 bytes along M or N
    M or N       some      to the next row width of M/N    to the next 8 of K

The swizzle applies to the final sum, so that a start address may be inside a tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from pallasc.emulator.tensors.misuse import OperandError, unsupported
from pallasc.emulator.tensors.swizzles import PERIOD_BYTES, PIECE_BYTES, swizzled

_SWIZZLES = (0, 128, 64, 32)
_UNIT = 16
_FIELD = (1 << 14) - 1
_USED_BITS = _FIELD | _FIELD << 16 | _FIELD << 32 | 7 << 49 | 3 << 62
_TILE_ROWS = 8


@dataclass(frozen=True, slots=True)
class MatrixDescriptor:
    """A decoded descriptor; all fields except `base_offset` are in bytes."""

    start: int
    leading: int
    stride: int
    base_offset: int
    swizzle: int


def decode_descriptor(descriptor: int) -> MatrixDescriptor:
    """Decode a descriptor of `wgmma`.

    Raises:
        UnsupportedError: reserved bits are set.
    """
    if descriptor & ~_USED_BITS:
        raise unsupported(f"a matrix descriptor {descriptor:#018x} with reserved bits set")
    return MatrixDescriptor(
        start=(descriptor & _FIELD) * _UNIT,
        leading=(descriptor >> 16 & _FIELD) * _UNIT,
        stride=(descriptor >> 32 & _FIELD) * _UNIT,
        base_offset=descriptor >> 49 & 7,
        swizzle=_SWIZZLES[descriptor >> 62],
    )


def matrix_addresses(
    descriptor: MatrixDescriptor, *, rows: int, k: int, element_bytes: int, transposed: bool
) -> np.ndarray:
    """Return int64[rows, k]: the address in shared memory of each element.

    Args:
        descriptor: the decoded descriptor.
        rows: M or N.
        k: number of elements along K.
        element_bytes: the size of an element.
        transposed: True if M or N is contiguous, instead of K.

    Raises:
        UnsupportedError: the descriptor has a base offset.
    """
    if descriptor.base_offset:
        raise unsupported(f"a matrix descriptor with base offset {descriptor.base_offset}")
    low = descriptor.start % PERIOD_BYTES
    addresses = _addresses(
        low,
        descriptor.leading,
        descriptor.stride,
        descriptor.swizzle,
        rows,
        k,
        element_bytes,
        transposed,
    )
    return addresses + (descriptor.start - low)


def read_matrix(shared: np.ndarray, addresses: np.ndarray, element_bytes: int) -> np.ndarray:
    """Return the elements at `addresses` as unsigned integers of their size.

    Raises:
        OperandError: an address is outside shared memory.
    """
    last = int(addresses.max()) + element_bytes
    if last > len(shared):
        raise OperandError(
            f"a matrix operand reaches byte {last - 1:#x} of the {len(shared):#x} bytes of shared "
            f"memory",
            rule="out-of-bounds",
        )
    whole = shared[: len(shared) // element_bytes * element_bytes]
    found: np.ndarray = whole.view(f"u{element_bytes}")[addresses // element_bytes]
    return found


@lru_cache(maxsize=1024)
def _addresses(
    start: int,
    leading: int,
    stride: int,
    swizzle: int,
    rows: int,
    k: int,
    element_bytes: int,
    transposed: bool,
) -> np.ndarray:
    row = np.arange(rows, dtype=np.int64)[:, None]
    column = np.arange(k, dtype=np.int64)[None, :]
    width = swizzle or PIECE_BYTES
    across, down = (row, column) if transposed else (column, row)
    across_bytes = across * element_bytes
    if swizzle and not transposed:
        # K is at most 32 bytes, and continues from the start address within the row.
        across_offset = across_bytes
    else:
        step = stride if transposed and not swizzle else leading
        across_offset = across_bytes % width + across_bytes // width * step
    step = leading if transposed and not swizzle else stride
    down_offset = down % _TILE_ROWS * width + down // _TILE_ROWS * step
    addresses = swizzled(start + across_offset + down_offset, swizzle)
    addresses.flags.writeable = False
    return addresses
