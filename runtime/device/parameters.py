"""The memory that launches read their parameters from: one block a plan, filled once.

Tensor maps are encoded for the first block; later ones get a copy with other addresses, which costs
a third.

A block holds, for all launches of a plan together: the arrays of pointers to parameters that
`kernelParams` asks for, the pointers that are passed, and the parameters passed by value, each at
a multiple of 128 bytes, with their tensor maps encoded in place.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pallasc.runtime.device.driver import Driver
from pallasc.runtime.device.tensor_maps import (
    MAP_ALIGNMENT,
    Encode,
    encoder_name,
    make_encoder,
    make_replacer,
)
from pallasc.specs.artifacts.plan import MAP_BYTES, Bytes, Launch, Pointer

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
        words = 8 * (sum(counts) + len(passed))
        self._values_at = _align(words)
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
                elif isinstance(one, Bytes):
                    self._targets.append(self._values_at + len(values))
                    values += self._value(one, self._targets[-1], launch.kernel)
        self._values = bytes(values)
        gap = self._values_at - words
        self._layout = struct.Struct(f"={words // 8}Q{gap}x{len(values)}s")
        # The same with its tensor maps encoded, once that has been done for a first block.
        self._encoded: bytes | None = None
        self._replace = make_replacer(driver) if self._maps else None
        self._free: list[tuple[Any, int, int]] = []

    def _value(self, parameter: Bytes, start: int, kernel: str) -> bytes:
        for offset, tensor_map in parameter.tensor_maps:
            self._maps.append(
                _Map(
                    start + offset,
                    tensor_map.buffer,
                    tensor_map.offset,
                    make_encoder(self._driver, tensor_map, kernel),
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
        owner, start, base = self._take()
        encoded = self._encoded
        self._layout.pack_into(
            owner,
            start,
            *[base + target for target in self._targets],
            *[addresses[buffer] + offset for buffer, offset in self._passed],
            self._values if encoded is None else encoded,
        )
        if self._maps:
            self._set_maps(base, addresses, encoded is not None)
        return owner, base

    def _set_maps(self, base: int, addresses: Sequence[int], are_encoded: bool) -> None:
        """Let the tensor maps of a block describe buffers at these addresses."""
        replace = self._replace
        if not are_encoded or replace is None:
            for one in self._maps:
                self._encode(one, base + one.at, addresses[one.buffer] + one.offset)
            self._encoded = ctypes.string_at(base + self._values_at, len(self._values))
            return
        for one in self._maps:
            address = addresses[one.buffer] + one.offset
            code = replace(base + one.at, address) if one.is_aligned else 1
            if code:
                self._encode(one, base + one.at, address)

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

    def _take(self) -> tuple[Any, int, int]:
        """Return memory for a block: its owner, and the block's place in it and address."""
        try:
            return self._free.pop()
        except IndexError:
            step = _align(max(1, self._layout.size))
            owner = (ctypes.c_char * (step * _BLOCKS_AT_A_TIME + MAP_ALIGNMENT))()
            start = ctypes.addressof(owner)
            gap = _align(start) - start
            places = range(gap, gap + step * _BLOCKS_AT_A_TIME, step)
            made = [(owner, place, start + place) for place in places]
            self._free.extend(made[1:])
            return made[0]


def _align(size: int) -> int:
    return -(-size // MAP_ALIGNMENT) * MAP_ALIGNMENT
