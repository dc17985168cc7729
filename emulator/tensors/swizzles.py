"""Where swizzled shared memory keeps its bytes.

A swizzle of 32, 64 or 128 bytes exchanges pieces of 16 bytes: bits 4 and up of an address are XORed
with as many bits from bit 7 up (CUTLASS: `Swizzle<B, 4, 3>`). Tensor copies and matrix descriptors
both apply it to the address in the shared window, wherever a tile starts.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from pallasc.emulator.tensors.misuse import unsupported

PIECE_BYTES = 16
"""What a swizzle moves as a whole."""

PERIOD_BYTES = 1024
"""Addresses that differ by a multiple of this are swizzled alike."""

_MASKS = {0: 0, 32: 0x10, 64: 0x30, 128: 0x70}


def swizzled(addresses: np.ndarray, swizzle_bytes: int) -> np.ndarray:
    """Return the addresses in shared memory that a swizzle makes of `addresses`.

    Raises:
        UnsupportedError: there is no swizzle of this width.
    """
    mask = _mask(swizzle_bytes)
    return addresses ^ (addresses >> 3 & mask) if mask else addresses


@lru_cache(maxsize=512)
def piece_order(start: int, pieces: int, swizzle_bytes: int) -> np.ndarray:
    """Return which piece of a tile lies in each piece of shared memory from byte `start` on.

    A swizzle is its own inverse, so this tells as well where each piece of the tile goes.

    Args:
        start: the first address modulo `PERIOD_BYTES`, a multiple of the swizzle's width.
        pieces: how many pieces of 16 bytes.
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
