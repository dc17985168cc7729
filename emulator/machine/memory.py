"""Memory by address: global allocations, shared memory of blocks, local memory of lanes.

Addresses are 64 bits wide and generic. The top bits identify the state space, so that a generic
access finds its memory. Global memory has its allocations from `GLOBAL` on, and shared memory has
its window at `SHARED`, where a block of rank r in its cluster starts at r << 24, as on NVIDIA's
GPUs. A `Fault` ends the emulation: the kernel executed an operation that fails or is undefined on a
GPU.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pallasc.emulator.ptx.syntax import Instruction
from pallasc.emulator.tensors.descriptors import OperandError
from pallasc.errors import CheckError
from pallasc.specs.artifacts.plan import ELEMENT_BYTES, MAP_BYTES, TensorMap


@dataclass(frozen=True, slots=True)
class Actor:
    """A warp of a block, on a device."""

    device: int
    block: tuple[int, int, int]
    warp: int

    def __str__(self) -> str:
        x, y, z = self.block
        device = f" on device {self.device}" if self.device else ""
        return f"warp {self.warp} of block ({x}, {y}, {z}){device}"


class EmulationTimeout(CheckError):
    """An emulation exceeded its time limit."""


class Fault(CheckError):
    """An invalid operation of a kernel; `rule` names the kind.

    `instruction` and `actor` locate it; they are None if no single instruction or warp caused it.
    """

    def __init__(
        self,
        rule: str,
        message: str,
        *,
        instruction: Instruction | None = None,
        actor: Actor | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.rule = rule
        self.instruction = instruction
        self.actor = actor
        self.place: int | None = None  # index of the instruction in its kernel


def fault_of(error: Fault | OperandError) -> Fault:
    """Convert an error to a fault; the caller adds the warp and the instruction."""
    if isinstance(error, Fault):
        return error
    fault = Fault(error.rule, error.message, hint=error.hint)
    return fault.with_traceback(error.__traceback__)


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
"""Bytes at the start of each block's shared memory that are reserved for the system."""

_GUARD = 1 << 16
_PADDING = 16
UNSIGNED = {1: np.dtype("u1"), 2: np.dtype("u2"), 4: np.dtype("u4"), 8: np.dtype("u8")}


class Region:
    """Bytes at an address, accessible as words of 1, 2, 4 and 8 bytes.

    The allocation of `data` is padded to 16 bytes, so that views of every width exist. `device` is
    the owner of the memory, None if unknown.
    """

    __slots__ = ("base", "data", "device", "label", "size", "views")

    def __init__(self, base: int, size: int, label: str = "", fill: int = 0) -> None:
        self.base = base
        self.device: int | None = None
        self.size = size
        self.label = label
        padded = -(-size // _PADDING) * _PADDING
        self.data: Bytes = np.full(padded, fill, np.uint8)
        self.views = {width: self.data.view(dtype) for width, dtype in UNSIGNED.items()}

    def adopt(self, data: Bytes) -> None:
        """Copy `data` to the start of the region."""
        self.data[: data.size] = data


class Window(NamedTuple):
    """Addresses of the bytes from `start` to `end` of a region: byte n is at `origin + n`."""

    origin: int
    region: Region
    start: int
    end: int


@dataclass(slots=True)
class GlobalMemory:
    """All allocations of all devices; addresses differ between devices.

    Each allocation has a window for all of its bytes, and may have more windows for parts of it.
    """

    bases: list[int] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)  # sorted by base
    next: int = GLOBAL
    multicast: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def allocate(self, size: int, alignment: int = 256, label: str = "", fill: int = 0) -> Region:
        """Create an allocation; an address in the gap after it is out of bounds."""
        region = Region(self._reserve(size, alignment), size, label, fill)
        self.insert(Window(region.base, region, 0, size))
        return region

    def map_part(self, region: Region, start: int, size: int) -> int:
        """Map bytes of an allocation to new addresses, in a window without its other bytes."""
        base = self._reserve(size, 256) + start % 256
        self.insert(Window(base - start, region, start, start + size))
        return base

    def unmap_parts(self) -> None:
        """Remove the windows of parts of allocations."""
        self.windows = [window for window in self.windows if window.origin == window.region.base]
        self.bases = [window.origin for window in self.windows]

    def _reserve(self, size: int, alignment: int) -> int:
        alignment = max(alignment, 256)
        base = -(-self.next // alignment) * alignment
        self.next = base + size + _GUARD
        return base

    def insert(self, window: Window) -> None:
        """Add a window for addresses that no other window has."""
        base = window.origin + window.start
        at = bisect.bisect(self.bases, base)
        self.bases.insert(at, base)
        self.windows.insert(at, window)

    def map_multicast(self, members: tuple[int, ...], size: int) -> int:
        """Return a multicast address that refers to `size` bytes at each of these addresses."""
        base = self._reserve(size, 256)
        self.multicast[base] = (*members, size)
        return base

    def members(self, address: int) -> tuple[int, ...]:
        """Return the member addresses of a multicast address."""
        found = self.targets(address)
        if found == (address,):
            raise Fault("out-of-bounds", f"{address:#x} is not a multicast address")
        return found

    def targets(self, address: int) -> tuple[int, ...]:
        """Return the targets of a write to this address: every member of a multicast address."""
        for base, (*members, size) in self.multicast.items():
            if base <= address < base + size:
                return tuple(member + address - base for member in members)
        return (address,)

    def find(self, address: int, size: int = 1) -> tuple[Region, int]:
        """Return the allocation that holds these bytes, and their offset in it.

        Raises:
            Fault: no allocation holds them.
        """
        window = self.window(address, size)
        return window.region, address - window.origin

    def window(self, address: int, size: int = 1) -> Window:
        """Return the window that contains these bytes.

        Raises:
            Fault: no window contains them.
        """
        at = bisect.bisect(self.bases, address) - 1
        if at >= 0:
            window = self.windows[at]
            origin, region, start, end = window
            if address - origin + size <= end:
                return window
            if address < origin + end + _GUARD:
                name = region.label or "an allocation"
                if end - start < region.size:
                    name = f"an array in {name}"
                raise Fault(
                    "out-of-bounds",
                    f"an access of {size} bytes at offset {address - origin - start} of {name}, "
                    f"which has {end - start} bytes",
                )
        raise Fault(
            "out-of-bounds", f"an access of {size} bytes at {address:#x}, which is not allocated"
        )


def load(
    region: Region, offsets: Addresses, mask: Mask | None, width: int, count: int
) -> list[np.ndarray]:
    """Load `count` words of `width` bytes at each lane's offset; zero where the mask is False."""
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


_MAGIC = b"tensor map"


@dataclass(slots=True)
class TensorMaps:
    """Tensor maps; the encoded form of a map holds its index in `maps`."""

    maps: list[tuple[TensorMap, int]] = field(default_factory=list)

    @property
    def element_bytes(self) -> int:
        """Size of the smallest element of any map, at most 4; packed elements count as a byte."""
        return min([4, *(max(1, ELEMENT_BYTES.get(each.dtype, 1)) for each, _ in self.maps)])

    def encode(self, tensor_map: TensorMap, address: int) -> bytes:
        """Return 128 bytes that identify a map over the memory at `address`."""
        self.maps.append((tensor_map, address))
        data = _MAGIC + (len(self.maps) - 1).to_bytes(8, "little")
        return data.ljust(MAP_BYTES, b"\0")

    def decode(self, data: bytes) -> tuple[TensorMap, int]:
        """Return the map and the address that 128 bytes identify.

        Raises:
            Fault: the bytes are not a tensor map.
        """
        number = int.from_bytes(data[len(_MAGIC) : len(_MAGIC) + 8], "little")
        if not data.startswith(_MAGIC) or number >= len(self.maps):
            raise Fault(
                "no-tensor-map",
                "the address that a tensor copy is given does not hold a tensor map",
            )
        return self.maps[number]
