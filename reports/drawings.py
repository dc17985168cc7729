"""Drawings: plots of variants over a parameter, launch plans, and tensor maps.

Plots are inline SVG from a template, not from a plotting library: plotly's script adds 4.8 MB to a
file, and bokeh's 1 MB (measured in 2026), which every reader's browser must parse. Both draw with
their own colors on a canvas, which does not follow print styles and `prefers-color-scheme`.

The drawing of a plan has a lane for each buffer, and a row for each step, with marks in the lanes
of the buffers that the step uses. A tensor map is drawn as a box in its array, with the order in
which a swizzle puts the pieces of a row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pallasc.reports.content import by
from pallasc.specs.arrays import array_text
from pallasc.specs.artifacts.plan import (
    ELEMENT_BYTES,
    Bytes,
    Launch,
    LaunchPlan,
    Step,
    TensorMap,
    kind_of,
)

_SPREAD = 0.7
"""The part of a category's width over which its dots are spread."""
_LABEL_CHARACTERS = 14


class Point(NamedTuple):
    """A dot for a variant: page, label, parameters, value, tooltip text, and if it is marked."""

    slug: str
    label: str
    params: Mapping[str, str]
    value: float | None
    text: str
    is_marked: bool = False


def varying(params: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the parameters that have more than one value, in order."""
    values: dict[str, dict[str, None]] = {}
    for point in params:
        for name, value in point.items():
            values.setdefault(name, {})[value] = None
    return [name for name, found in values.items() if len(found) > 1]


PLOT = {"width": 460, "height": 250, "left": 64, "right": 452, "top": 30, "bottom": 205}
"""Size of a plot, and position of its axes."""


class ChartPicture(NamedTuple):
    """A plot of a measure over a parameter: a dot for each variant; lengths in pixels.

    Attributes:
        title: the name of the measure, with its unit.
        name: the name of the measure.
        axis: the parameter, "" if all dots are in one row.
        ticks: height and text of each value on the vertical axis.
        labels: position and text of each value of the parameter.
        dots: position, height and variant.
    """

    title: str
    name: str
    axis: str
    ticks: list[tuple[float, str]]
    labels: list[tuple[float, str]]
    dots: list[tuple[float, float, Point]]


def draw(name: str, unit: str, points: Sequence[Point], axis: str) -> ChartPicture:
    """Return the plot of a measure over a parameter.

    Args:
        name: the name of the measure.
        unit: the unit of its values, "" for none.
        points: the variants; those without a value are omitted.
        axis: the parameter, "" to draw all in one row.
    """
    left, top, bottom = PLOT["left"], PLOT["top"], PLOT["bottom"]
    groups: dict[str, list[tuple[float, Point]]] = {}
    for point in points:
        if point.value is not None:
            group = point.params.get(axis, "") if axis else "all"
            groups.setdefault(group, []).append((point.value, point))
    most = 1.08 * max((value for own in groups.values() for value, _ in own), default=1) or 1.0
    room = (PLOT["right"] - left) / max(1, len(groups))

    def height(value: float) -> float:
        return round(bottom - (bottom - top) * value / most, 1)

    # The dots of a category are spread over most of its width, so that all are visible.
    dots = [
        (
            round(left + room * (at + 0.5 + _SPREAD * ((number + 0.5) / len(own) - 0.5)), 1),
            height(value),
            point,
        )
        for at, own in enumerate(groups.values())
        for number, (value, point) in enumerate(own)
    ]
    labels = [
        (round(left + room * (at + 0.5), 1), _shortened(group)) for at, group in enumerate(groups)
    ]
    ticks = [(height(value), f"{value:,.6g}") for value in _round_values(most)]
    return ChartPicture(f"{name} ({unit})" if unit else name, name, axis, ticks, labels, dots)


def _round_values(most: float) -> list[float]:
    """Return at most seven round numbers from 0 to `most`."""
    power = 10.0 ** math.floor(math.log10(most))
    step = next(power * part for part in (0.2, 0.5, 1, 2) if most <= 6 * power * part)
    return [step * number for number in range(int(most / step) + 1)]


def _shortened(text: str) -> str:
    return text if len(text) <= _LABEL_CHARACTERS else f"{text[: _LABEL_CHARACTERS - 1]}…"


LANE = 22
ROW = 30
MOST_STEPS = 200
"""Maximum number of steps drawn; a plan may have thousands, from loops with a known trip count."""
MOST_LANES = 60
"""Maximum number of buffers drawn."""


class Lane(NamedTuple):
    """A buffer: its number, how it is used, and its position in the picture."""

    number: int
    role: str
    size: int
    arrays: tuple[str, ...]
    x: int
    first: int
    last: int


class Row(NamedTuple):
    """A step: its kind, the buffers that it touches, and its position in the picture.

    `touches` are positions of lanes. `reads` are the lanes whose buffers the step certainly does
    not write.
    """

    number: int
    kind: str
    title: str
    detail: str
    touches: tuple[int, ...]
    reads: tuple[int, ...]
    y: int


class PlanPicture(NamedTuple):
    """All lanes and rows, and the numbers of steps and buffers omitted for lack of space."""

    lanes: tuple[Lane, ...]
    rows: tuple[Row, ...]
    hidden_steps: int
    hidden_buffers: int

    @property
    def width(self) -> int:
        """Width of the lanes in pixels."""
        return LANE * max(1, len(self.lanes))

    @property
    def height(self) -> int:
        """Height of the rows in pixels."""
        return ROW * max(1, len(self.rows))


def draw_plan(plan: LaunchPlan) -> PlanPicture:
    """Return the picture of a plan; lanes in the order of inputs, temporaries, outputs."""
    shown = plan.steps[:MOST_STEPS]
    order = _order(plan)
    position = {number: at for at, number in enumerate(order[:MOST_LANES])}
    rows = tuple(_row(number, step, position, plan) for number, step in enumerate(shown))
    lanes = tuple(
        _lane(number, at, plan, [row.number for row in rows if at in row.touches])
        for number, at in position.items()
    )
    return PlanPicture(lanes, rows, len(plan.steps) - len(shown), len(order) - len(position))


def _order(plan: LaunchPlan) -> list[int]:
    ranks = {"input": 0, "constant": 1, "temporary": 2, "output": 3}
    numbers = range(len(plan.buffers))
    return sorted(numbers, key=lambda number: (ranks[plan.buffers[number].role], number))


def _lane(number: int, at: int, plan: LaunchPlan, used: list[int]) -> Lane:
    buffer = plan.buffers[number]
    arrays = tuple(
        f"{binding.path}: {array_text(binding.dtype, binding.shape, binding.layout)}".lstrip(": ")
        for binding in (*plan.inputs, *plan.outputs)
        if binding.buffer == number
    )
    first, last = (min(used), max(used)) if used else (0, -1)
    return Lane(
        number, buffer.role, buffer.size, arrays, at * LANE + LANE // 2, first * ROW, last * ROW
    )


def _row(number: int, step: Step, position: dict[int, int], plan: LaunchPlan) -> Row:
    touched, read = list(dict.fromkeys(_touched(step))), set(_read(step, plan))
    at = {buffer: position[buffer] for buffer in touched if buffer in position}
    return Row(
        number,
        step.origin if isinstance(step, Launch) else kind_of(step),
        _title(step),
        _detail(step),
        tuple(sorted(at.values())),
        tuple(sorted(at[buffer] for buffer in at if buffer in read)),
        number * ROW + ROW // 2,
    )


def _touched(step: Step) -> Iterator[int]:
    """Yield the buffers that a step reads or writes."""
    yield from (access.buffer for access in step.accesses())


def _read(step: Step, plan: LaunchPlan) -> Iterator[int]:
    """Yield the buffers that a step certainly does not write: copied sources, constants, inputs.

    A plan does not show if a kernel writes to an address, but inputs that are not outputs never
    change.
    """
    written = {binding.buffer for binding in plan.outputs}
    for buffer, _, _, writes in step.accesses():
        role = plan.buffers[buffer].role
        is_fixed = role == "constant" or (role == "input" and buffer not in written)
        if writes is False or (writes is None and is_fixed):
            yield buffer


def _title(step: Step) -> str:
    return step.kernel if isinstance(step, Launch) else str(step)


def _detail(step: Step) -> str:
    if not isinstance(step, Launch):
        return ""
    dims = [f"grid {by(step.grid)}", f"block {by(step.block)}"]
    if step.cluster is not None:
        dims.append(f"cluster {by(step.cluster)}")
    dims.append(f"{step.dynamic_smem_bytes:,} bytes of shared memory")
    return ", ".join([*dims, "pdl"] if step.pdl else dims)


SIDE = 150
"""The longer side of the picture of an array, in pixels."""
_THINNEST = 3
"""The shorter side is at least the longer one divided by this."""
_LEAST = 4
PIECE_BYTES = 16
"""The unit that a swizzle moves."""
_PERIOD_ROWS = 8
_MASKS = {32: 0x10, 64: 0x30, 128: 0x70}
"""Address bits that are XORed with the bits three positions above: `emulator/tensors/matrices`."""


class MapPicture(NamedTuple):
    """A tensor map, drawn; lengths in pixels.

    Attributes:
        parameter, offset: position of the tensor map in the launch's parameters.
        tensor_map: the tensor map.
        axes: the dimensions drawn across and down, counted from the minor one; None for none.
            Dimensions longer than the box are preferred: Mosaic tiles arrays, so the minor
            dimensions are often the dimensions of a tile, which a box contains entirely.
        box_bytes: bytes that one copy moves.
        boxes: number of boxes that tile the array.
        width, height: size of the array in these two dimensions.
        box_width, box_height: size of the box in the array.
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
