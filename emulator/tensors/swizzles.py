"""Swizzles of shared memory.

A swizzle of 32, 64 or 128 bytes exchanges pieces of 16 bytes: bits 4 and up of an address are XORed
with the same number of bits from bit 7 up (CUTLASS: `Swizzle<B, 4, 3>`). Tensor copies and matrix
descriptors both apply it to the address in the shared window, regardless of a tile's start.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from pallasc.emulator.tensors.misuse import unsupported

PIECE_BYTES = 16
"""The unit that a swizzle moves as a whole."""

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
    """Return the index of the tile's piece in each piece of shared memory from `start` on.

    A swizzle is its own inverse, so this is also the destination of each piece of the tile.

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
