"""Tensor maps as pictures: the box in its array, and how a swizzle permutes the pieces of a row."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from pallasc.specs.artifacts.plan import Bytes, Launch, TensorMap
from pallasc.specs.artifacts.tensor_maps import ELEMENT_BYTES

SIDE = 150
"""The longer side of the picture of an array, in pixels."""
_THINNEST = 3
"""The shorter side is at least the longer one divided by this."""
_LEAST = 4
PIECE_BYTES = 16
"""The unit that a swizzle moves."""
_PERIOD_ROWS = 8
_MASKS = {32: 0x10, 64: 0x30, 128: 0x70}
"""Address bits that are XORed with the bits three positions above: `emulator/tensors/swizzles`."""


class MapPicture(NamedTuple):
    """A tensor map, drawn; lengths in pixels.

    Attributes:
        parameter, offset: its position among the parameters of its launch.
        tensor_map: the tensor map.
        axes: the dimensions drawn across and down, counted from the minor one; None for none.
            Dimensions that the box divides are drawn first: Mosaic tiles arrays, so the minor
            dimensions are often the dimensions of a tile, which a box contains entirely.
        box_bytes: bytes that one copy moves.
        boxes: number of boxes that tile the array.
        width, height: size of the array in these two dimensions.
        box_width, box_height: size of the box in it.
        pieces: the swizzle: for each row of 16-byte pieces, the piece at each position; empty
            without a swizzle.
        elements_per_piece: elements in 16 bytes.
    """

    parameter: int
    offset: int
    tensor_map: TensorMap
    axes: tuple[int | None, int | None]
    box_bytes: int
    boxes: int
    width: float
    height: float
    box_width: float
    box_height: float
    pieces: tuple[tuple[int, ...], ...]
    elements_per_piece: int


def draw_maps(launch: Launch) -> list[MapPicture]:
    """Return the pictures of the tensor maps of a launch; equal ones are drawn once."""
    seen, pictures = set(), []
    for number, offset, tensor_map in _maps(launch):
        key = repr(tensor_map)
        if key not in seen:
            seen.add(key)
            pictures.append(_draw(number, offset, tensor_map))
    return pictures


def _maps(launch: Launch) -> Iterator[tuple[int, int, TensorMap]]:
    for number, parameter in enumerate(launch.parameters):
        if isinstance(parameter, Bytes):
            for offset, tensor_map in parameter.tensor_maps:
                yield number, offset, tensor_map


def _draw(number: int, offset: int, tensor_map: TensorMap) -> MapPicture:
    element_bytes = ELEMENT_BYTES.get(tensor_map.dtype, 1)
    axes = _axes(tensor_map)
    (across, box_across), (down, box_down) = (
        (tensor_map.dims[axis], tensor_map.box[axis]) if axis is not None else (1, 1)
        for axis in axes
    )
    scale = SIDE / max(across, down)
    width, height = (max(SIDE / _THINNEST, size * scale) for size in (across, down))
    return MapPicture(
        number,
        offset,
        tensor_map,
        axes,
        math.prod(tensor_map.box) * element_bytes,
        math.prod(
            -(-n // max(1, b)) for n, b in zip(tensor_map.dims, tensor_map.box, strict=False)
        ),
        round(width, 1),
        round(height, 1),
        round(min(width, max(_LEAST, width * box_across / across)), 1),
        round(min(height, max(_LEAST, height * box_down / down)), 1),
        swizzle_rows(tensor_map.swizzle),
        PIECE_BYTES // element_bytes,
    )


def _axes(tensor_map: TensorMap) -> tuple[int | None, int | None]:
    """Return the dimensions to draw across and down, the minor one across."""
    rank = min(len(tensor_map.dims), len(tensor_map.box))
    divided = [axis for axis in range(rank) if tensor_map.box[axis] < tensor_map.dims[axis]]
    whole = [axis for axis in range(rank) if axis not in divided]
    chosen = sorted([*divided, *whole][:2])
    return (chosen[0] if chosen else None, chosen[1] if len(chosen) > 1 else None)


def swizzle_rows(swizzle_bytes: int) -> tuple[tuple[int, ...], ...]:
    """Return, for each row of shared memory, the piece that a swizzle puts at each position.

    Rows are as wide as the swizzle and pieces have 16 bytes. The pattern repeats after eight rows.
    Empty without a swizzle.
    """
    mask = _MASKS.get(swizzle_bytes, 0)
    if not mask:
        return ()
    width = swizzle_bytes // PIECE_BYTES
    places = (row * swizzle_bytes + piece * PIECE_BYTES for row in range(_PERIOD_ROWS)
              for piece in range(width))  # fmt: skip
    order = [(place ^ (place >> 3 & mask)) // PIECE_BYTES % width for place in places]
    return tuple(tuple(order[at : at + width]) for at in range(0, len(order), width))
