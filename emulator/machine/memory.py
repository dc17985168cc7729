"""Memory by address: global allocations, a block's shared memory, local memory of lanes.

Addresses are 64 bits wide and generic. The top bits tell the space, so that a generic access finds
its memory: global memory has its allocations at `GLOBAL`, shared memory its window at `SHARED`,
where a block of rank r in its cluster begins at r << 24, as it does on NVIDIA's GPUs.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pallasc.emulator.machine.faults import Fault

Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]
Addresses = npt.NDArray[np.int64]

GLOBAL = 0x10_0000_0000
PARAMETERS = 1 << 60
LOCAL = 2 << 60
SHARED = 3 << 60
RANK_SHIFT = 24
OFFSET_MASK = (1 << RANK_SHIFT) - 1
"""The lower bits of a shared address: the offset in the shared memory of its block."""
RESERVED = 1024
"""Bytes at the start of each block's shared memory that the system has for itself."""

_GUARD = 1 << 16
_PADDING = 16
UNSIGNED = {1: np.dtype("u1"), 2: np.dtype("u2"), 4: np.dtype("u4"), 8: np.dtype("u8")}


class Region:
    """Some bytes at an address, readable in words of 1, 2, 4 and 8 bytes.

    The allocation behind `data` is padded to 16 bytes, so that views of every width exist.
    `is_scratch`: it belongs to kernels alone, and the user has no name for it. `device`: whose
    memory it is, None where that is not known.
    """

    __slots__ = ("base", "data", "device", "is_scratch", "label", "size", "views", "written")

    def __init__(self, base: int, size: int, label: str = "", fill: int = 0) -> None:
        self.base = base
        self.device: int | None = None
        self.is_scratch = False
        self.size = size
        self.label = label
        padded = -(-size // _PADDING) * _PADDING
        self.data: Bytes = np.full(padded, fill, np.uint8)
        self.views = {width: self.data.view(dtype) for width, dtype in UNSIGNED.items()}

    @classmethod
    def over(cls, base: int, data: Bytes, label: str = "") -> Region:
        """Return a region whose bytes are these, not a copy of them."""
        region = cls(base, 0, label)
        region.size = data.size
        region.data = data
        for width, dtype in UNSIGNED.items():
            region.views[width] = data[: data.size // width * width].view(dtype)
        return region

    def adopt(self, data: Bytes) -> None:
        """Take these bytes as the content, from the start."""
        self.data[: data.size] = data


@dataclass(slots=True)
class GlobalMemory:
    """All allocations of all devices; addresses differ between devices.

    Args:
        resolve: returns the memory that lies at an address of none of the allocations, if any does;
            its addresses must be outside of theirs.
    """

    bases: list[int] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    next: int = GLOBAL
    multicast: dict[int, tuple[int, ...]] = field(default_factory=dict)
    resolve: Callable[[int], Region | None] | None = None

    def allocate(self, size: int, alignment: int = 256, label: str = "", fill: int = 0) -> Region:
        """Return a new allocation; what lies between two belongs to none."""
        alignment = max(alignment, 256)
        base = -(-self.next // alignment) * alignment
        region = Region(base, size, label, fill)
        self.next = base + region.data.size + _GUARD
        self.bases.append(base)
        self.regions.append(region)
        return region

    def free(self, region: Region) -> None:
        """Forget an allocation; its addresses are never used again."""
        at = self.regions.index(region)
        del self.bases[at], self.regions[at]

    def map_multicast(self, members: tuple[int, ...], size: int) -> int:
        """Return an address that stands for the same bytes at all of these addresses."""
        base = -(-self.next // 256) * 256
        self.next = base + size + _GUARD
        self.multicast[base] = (*members, size)
        return base

    def members(self, address: int) -> tuple[int, ...]:
        """Return the addresses that a multicast address stands for."""
        for base, (*members, size) in self.multicast.items():
            if base <= address < base + size:
                return tuple(member + address - base for member in members)
        raise Fault("out-of-bounds", f"{address:#x} is not a multicast address")

    def targets(self, address: int) -> tuple[int, ...]:
        """Return where a write to this address goes: to every member of a multicast address."""
        if self.multicast and any(b <= address < b + m[-1] for b, m in self.multicast.items()):
            return self.members(address)
        return (address,)

    def find(self, address: int, size: int = 1) -> Region:
        """Return the allocation that holds these bytes.

        Raises:
            Fault: no allocation does.
        """
        at = bisect.bisect_right(self.bases, address) - 1
        if at < 0 or address >= self.regions[at].base + self.regions[at].size:
            found = None if self.resolve is None else self.resolve(address)
            if found is not None:
                at += 1
                self.bases.insert(at, found.base)
                self.regions.insert(at, found)
        if at >= 0:
            region = self.regions[at]
            if address + size <= region.base + region.size:
                return region
            if address < region.base + region.size + _GUARD:
                name = region.label or "an allocation"
                raise Fault(
                    "out-of-bounds",
                    f"an access of {size} bytes at offset {address - region.base} of {name}, "
                    f"which has {region.size} bytes",
                )
        raise Fault(
            "out-of-bounds", f"an access of {size} bytes at {address:#x}, which is not allocated"
        )


def load(
    region: Region, offsets: Addresses, mask: Mask | None, width: int, count: int
) -> list[np.ndarray]:
    """Return `count` words of `width` bytes at each lane's offset; zero where the mask is False."""
    view = region.views[width]
    index = offsets >> (width.bit_length() - 1)
    if mask is None:
        return [view[index + i] for i in range(count)]
    words = []
    for i in range(count):
        word = np.zeros(len(offsets), view.dtype)
        word[mask] = view[index[mask] + i]
        words.append(word)
    return words


def store(
    region: Region,
    offsets: Addresses,
    mask: Mask | None,
    width: int,
    values: list[npt.NDArray[np.generic]],
) -> None:
    """Write words of `width` bytes at each lane's offset where the mask is True."""
    view = region.views[width]
    index = offsets >> (width.bit_length() - 1)
    if mask is not None:
        index = index[mask]
        values = [value[mask] for value in values]
    for i, value in enumerate(values):
        view[index + i] = value
