"""The memory that launches read their parameters from: one block a plan, filled once.

A block holds, for all launches of a plan together: the arrays of pointers to parameters that
`kernelParams` asks for, the pointers that are passed, and the parameters passed by value, each at
a multiple of 128 bytes, with their tensor maps encoded in place.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pallasc.runtime.driver import Driver
from pallasc.runtime.tensor_maps import MAP_ALIGNMENT, Encode, encoder_name, make_encoder
from pallasc.specs.plan import MAP_BYTES, Bytes, Launch, Pointer

_BLOCKS_AT_A_TIME = 16


@dataclass(frozen=True, slots=True)
class _Map:
    """A tensor map: its place in the block, the array it describes, and how it is encoded."""

    at: int
    buffer: int
    offset: int
    encode: Encode
    function: str
    kernel: str
    is_aligned: bool


class ParameterBlocks:
    """Makes the parameter blocks of a plan's launches.

    Args:
        driver: the opened driver.
        launches: the launches of the plan.

    Attributes:
        starts: where in a block the `kernelParams` array of each launch lies.
    """

    def __init__(self, driver: Driver, launches: Sequence[Launch]) -> None:
        self._driver = driver
        self.starts: list[int] = []
        counts = [len(launch.parameters) for launch in launches]
        passed = [
            (one.buffer, one.offset)
            for launch in launches
            for one in launch.parameters
            if isinstance(one, Pointer)
        ]
        self._passed = tuple(passed)
        self._words = struct.Struct(f"={sum(counts) + len(passed)}Q")
        self._values_at = _align(self._words.size)
        self._targets: list[int] = []
        self._maps: list[_Map] = []
        values = bytearray()
        pointer_at = 8 * sum(counts)
        for launch in launches:
            self.starts.append(8 * len(self._targets))
            for one in launch.parameters:
                if isinstance(one, Pointer):
                    self._targets.append(pointer_at)
                    pointer_at += 8
                else:
                    self._targets.append(self._values_at + len(values))
                    values += self._value(one, self._targets[-1], launch.kernel)
        self._values = bytes(values) if any(values) else b""
        self._size = self._values_at + len(values)
        self._lock = threading.Lock()
        self._free: list[tuple[Any, int]] = []

    def _value(self, parameter: Bytes, start: int, kernel: str) -> bytes:
        for offset, tensor_map in parameter.tensor_maps:
            self._maps.append(
                _Map(
                    start + offset,
                    tensor_map.buffer,
                    tensor_map.offset,
                    make_encoder(self._driver, tensor_map),
                    encoder_name(tensor_map),
                    kernel,
                    (start + offset) % MAP_ALIGNMENT == 0,
                )
            )
        return bytes.fromhex(parameter.data).ljust(_align(parameter.size), b"\0")

    def make(self, addresses: Sequence[int]) -> tuple[Any, int]:
        """Return a new block for buffers at these addresses: what owns it, and where it starts.

        Raises:
            DriverError: the driver refuses a tensor map.
        """
        owner, base = self._take()
        self._words.pack_into(
            owner,
            base - ctypes.addressof(owner),
            *[base + target for target in self._targets],
            *[addresses[buffer] + offset for buffer, offset in self._passed],
        )
        if self._values:
            ctypes.memmove(base + self._values_at, self._values, len(self._values))
        for one in self._maps:
            self._encode(one, base + one.at, addresses[one.buffer] + one.offset)
        return owner, base

    def _encode(self, one: _Map, where: int, address: int) -> None:
        if one.is_aligned:
            code = one.encode(where, address)
        else:
            scratch = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGNMENT)
            aside = _align(ctypes.addressof(scratch))
            code = one.encode(aside, address)
            ctypes.memmove(where, aside, MAP_BYTES)
        if code:
            what = f"a tensor map of {one.kernel} cannot be encoded"
            raise self._driver.error(code, one.function, what)

    def _take(self) -> tuple[Any, int]:
        with self._lock:
            if not self._free:
                owner = (ctypes.c_char * (self._size * _BLOCKS_AT_A_TIME + MAP_ALIGNMENT))()
                first = _align(ctypes.addressof(owner))
                step = _align(self._size)
                self._free = [(owner, first + n * step) for n in range(_BLOCKS_AT_A_TIME)]
            return self._free.pop()


def _align(size: int) -> int:
    return -(-size // MAP_ALIGNMENT) * MAP_ALIGNMENT
