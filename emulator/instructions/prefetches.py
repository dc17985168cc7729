"""`cp.async.bulk.prefetch`: requested bytes are counted (PTX ISA 9.0, 9.7.9.25.4.3)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pallasc.emulator.instructions.builder import Builder, Read, refusal
from pallasc.emulator.instructions.memory import lanes
from pallasc.emulator.instructions.tensor_copies import (
    boxes,
    map_and_coordinates,
    map_of,
    scalars,
)
from pallasc.emulator.machine.block import Prefetch
from pallasc.emulator.machine.memory import Fault
from pallasc.emulator.machine.warp import Step, Warp
from pallasc.emulator.ptx.syntax import Instruction
from pallasc.emulator.tensors import tensor_maps

_U4 = np.dtype("u4")


def prefetch(instruction: Instruction, builder: Builder, parts: Sequence[str]) -> Step:
    """`cp.async.bulk.prefetch` to L2: requested bytes are counted, and boxes must be valid."""
    source, *more = instruction.operands[: -1 if "L2::cache_hint" in parts else None]
    if parts[0] == "L2":
        return _prefetch_bytes(builder.address(source), builder.read(more[0], _U4))
    box_of = boxes(parts)
    im2col = "im2col" in parts
    offsets = scalars(builder, more.pop(0), np.dtype("u2")) if im2col and more else None
    if more:
        raise refusal(instruction)
    map_at, coordinates = map_and_coordinates(instruction, builder, source)

    def run(w: Warp, place: int) -> int:
        maps = map_at(w)
        for lane in lanes(w):
            tensor_map, base = map_of(w, int(maps[lane]))
            where = coordinates(w, lane)
            if offsets is not None:
                box = tensor_maps.im2col(tensor_map, where, offsets(w, lane), 0)
            else:
                box = box_of(tensor_map, where, 0)
            _fetch(w, place, base, tuple(where), box.bytes)
        return place + 1

    return run


def _prefetch_bytes(start: Read, size: Read) -> Step:
    def run(w: Warp, place: int) -> int:
        addresses, sizes = start(w), size(w)
        for lane in lanes(w):
            begin, length = int(addresses[lane]), int(sizes[lane])
            if (begin | length) % 16:
                raise Fault(
                    "misaligned", "the address or size of a bulk prefetch is not a multiple of 16"
                )
            if length:
                _fetch(w, place, begin, (), length)
        return place + 1

    return run


def _fetch(w: Warp, place: int, address: int, coordinates: tuple[int, ...], size: int) -> None:
    """Count the bytes that a lane requests, and notify the observer."""
    machine = w.block.machine
    region, _ = machine.memory.find(address, 1 if coordinates else size)
    machine.fetches(w.block, size)
    if machine.observer is not None:
        machine.observer.prefetched(w, place, Prefetch(region.label, address, coordinates, size))
