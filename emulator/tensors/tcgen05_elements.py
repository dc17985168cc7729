"""Decodes elements of the matrices of tcgen05.mma to float64, which holds all of them exactly.

Elements come in chunks of 16 bytes. `.kind::f8f6f4` and `.kind::mxf8f6f4` keep 16 elements in each
chunk, regardless of their size: 6-bit elements fill the first 12 bytes, 4-bit elements the first 8
(PTX ISA 9.0, 9.7.16.10.4). The first element is in the lowest bits.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from pallasc.emulator.tensors import elements


class Element(NamedTuple):
    """A type of elements.

    Attributes:
        name: as in the manual; `e2m1x2` is `e2m1` without padding.
        bits: bits per element.
        per_chunk: elements in 16 bytes.
    """

    name: str
    bits: int
    per_chunk: int

    @property
    def padded(self) -> bool:
        """True if a chunk has bits that belong to no element."""
        return self.bits * self.per_chunk < 128


ELEMENTS = {
    element.name: element
    for element in (
        Element("f16", 16, 8),
        Element("bf16", 16, 8),
        Element("tf32", 32, 4),
        Element("e4m3", 8, 16),
        Element("e5m2", 8, 16),
        Element("e2m3", 6, 16),
        Element("e3m2", 6, 16),
        Element("e2m1", 4, 16),
        Element("e2m1x2", 4, 32),
        Element("u8", 8, 16),
        Element("s8", 8, 16),
    )
}

_TABLES = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e2m1x2": ml_dtypes.float4_e2m1fn,
    "ue8m0": ml_dtypes.float8_e8m0fnu,
}


@functools.cache
def _table(name: str, bits: int) -> NDArray[np.float64]:
    """Return the value of every bit pattern of a small type."""
    values: NDArray[Any] = np.arange(1 << bits, dtype=np.uint8).view(_TABLES[name])
    return values.astype(np.float64)


def decode(element: Element, chunks: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return the elements of chunks: float64[..., chunks · per_chunk].

    Args:
        element: their type.
        chunks: uint8[..., chunks, 16], contiguous.
    """
    flat = chunks.reshape(*chunks.shape[:-2], -1)
    if element.bits >= 8:
        return elements.decode(flat.view(f"u{element.bits // 8}"), element.name)
    return _table(element.name, element.bits).take(_patterns(element, chunks, flat))


def _patterns(
    element: Element, chunks: NDArray[np.uint8], flat: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    """Return the bits of each element in a separate byte."""
    used = chunks[..., : element.bits * element.per_chunk // 8]
    parts: tuple[Any, ...] = (used & 15, used >> 4)
    if element.bits == 4:
        return np.stack(parts, axis=-1).reshape(*flat.shape[:-1], -1)
    low, middle, high = (used[..., i::3].astype(np.uint32) for i in range(3))
    word = low | middle << np.uint32(8) | high << np.uint32(16)
    parts = tuple(word >> np.uint32(6 * i) & np.uint32(63) for i in range(4))
    return np.stack(parts, axis=-1).reshape(*flat.shape[:-1], -1)


def decode_scales(name: str, patterns: NDArray[Any]) -> NDArray[np.float64]:
    """Return the value of scale factors `ue8m0`, or `ue4m3`, whose sign bit is ignored."""
    if name == "ue8m0":
        return _table("ue8m0", 8).take(patterns)
    return _table("e4m3", 8).take(patterns & 0x7F)
