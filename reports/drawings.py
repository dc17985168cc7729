"""Drawings: plots of variants over a parameter, launch plans, and tensor maps.

Plots are inline SVG made by pygal. Measured in 2026: plotly's script adds 4.8 MB to a file and
bokeh's 1 MB, which every reader's browser must parse, and both draw with their own colors, on a
canvas that print and `prefers-color-scheme` do not reach. pygal (a single Python package) draws a
plot in 10 ms, as SVG. Only the shapes are kept here: its script, its style sheet and its date are
removed, so that the report's own style sets the colors, and equal variants give equal bytes.

A plan is a lane for each buffer and a row for each step that touches it. A tensor map is a box in
its array, and the order in which a swizzle puts the pieces of a row.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from xml.etree import ElementTree

from pallasc.reports.words import by
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

WIDTH, HEIGHT = 460, 250
_SPREAD = 0.7
"""The part of a category's width over which its dots are spread."""
_LABEL_CHARACTERS = 14
_SVG = "http://www.w3.org/2000/svg"
_DROPPED = {"style", "script", "defs", "desc", "title"}


class Point(NamedTuple):
    """A dot: link target, label, parameter values, height, tooltip text, and a mark."""

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


def draw(name: str, unit: str, points: Sequence[Point], axis: str) -> str:
    """Return the plot of a measure over a parameter as an SVG element.

    Args:
        name: the name of the measure.
        unit: the unit of its values, "" for none.
        points: the variants; those without a value are omitted.
        axis: the parameter, "" to draw all in one row.
    """
    known = [point for point in points if point.value is not None]
    groups: dict[str, list[Point]] = {}
    for point in known:
        groups.setdefault(point.params.get(axis, "") if axis else "all", []).append(point)
    chart = _chart(f"{name} ({unit})" if unit else name, known, list(groups), axis)
    for is_marked in (False, True):
        chart.add("", [
            {"value": (x, point.value), "label": number}
            for number, (x, point) in enumerate(_placed(groups)) if point.is_marked == is_marked
        ])  # fmt: skip
    return _svg(chart.render_tree(), name, [point for _, point in _placed(groups)])


def _placed(groups: Mapping[str, Sequence[Point]]) -> list[tuple[float, Point]]:
    """Return the points with their x positions; those in a category are spread to show them all."""
    return [
        (round(at + 1 + _SPREAD * ((number + 0.5) / len(group) - 0.5), 4), point)
        for at, group in enumerate(groups.values())
        for number, point in enumerate(group)
    ]


def _pygal() -> Any:
    """Import pygal without the import finder that it adds to `sys.meta_path`.

    The finder has no `find_spec`: Python 3.11 warns about it at each later import that finds
    nothing.
    """
    import pygal

    fixer = pygal.PluginImportFixer
    sys.meta_path[:] = [each for each in sys.meta_path if not isinstance(each, fixer)]
    return pygal


def _chart(title: str, points: Sequence[Point], categories: list[str], axis: str) -> Any:
    pygal = _pygal()
    from pygal.style import Style

    style = Style(label_font_size=12, title_font_size=14, major_label_font_size=12)
    most = max((point.value or 0 for point in points), default=0) or 1
    return pygal.XY(
        style=style,
        stroke=False,
        show_legend=False,
        js=[],
        no_prefix=True,
        explicit_size=False,
        width=WIDTH,
        height=HEIGHT,
        dots_size=4,
        title=title,
        x_title=axis or None,
        range=(0, most * 1.08),
        xrange=(0.5, max(1, len(categories)) + 0.5),
        x_labels=[
            {"value": at + 1, "label": _shortened(name)} for at, name in enumerate(categories)
        ],
        y_labels_major_count=5,
        truncate_label=-1,
        value_formatter="{:,.6g}".format,
        margin=8,
        show_minor_y_labels=True,
        max_scale=6,
        no_data_text="nothing is known",
    )


def _shortened(text: str) -> str:
    return text if len(text) <= _LABEL_CHARACTERS else f"{text[: _LABEL_CHARACTERS - 1]}…"


def _svg(tree: ElementTree.Element, name: str, points: Sequence[Point]) -> str:
    """Return pygal's drawing with links to variants, and with nothing but shapes."""
    ElementTree.register_namespace("", _SVG)
    svg = ElementTree.Element(
        "svg",
        {
            "xmlns": _SVG,
            "class": "chart",
            "viewBox": tree.get("viewBox", ""),
            "role": "group",
            "aria-label": f"{name}, {len(points)} variants",
        },
    )
    for child in tree:
        if copied := _copied(child, points):
            svg.append(copied[0])
    return ElementTree.tostring(svg, encoding="unicode", short_empty_elements=True)


def _copied(element: ElementTree.Element, points: Sequence[Point]) -> list[ElementTree.Element]:
    """Return an element without dropped content, in a list; the list is empty if it is dropped."""
    if not isinstance(element.tag, str) or element.tag in _DROPPED:
        return []
    kind = element.get("class", "")
    if kind == "dots":
        return [_dot(element, points)]
    if "text-overlay" in kind or "tooltip" in kind:
        return []
    kept = {
        name: value
        for name, value in element.attrib.items()
        if name not in ("style", "id", "rx", "ry")
    }
    copy = ElementTree.Element(element.tag, kept)
    copy.text = element.text
    for child in element:
        copy.extend(_copied(child, points))
    return [copy]


def _dot(element: ElementTree.Element, points: Sequence[Point]) -> ElementTree.Element:
    """Return a dot as a link to its variant, with a title that browsers show."""
    circle, label = element.find(".//circle"), element.findtext(".//desc[@class='label']", "0")
    point = points[int(label)]
    link = ElementTree.Element(
        "a", {"href": f"#{point.slug}", "class": "dot marked" if point.is_marked else "dot"}
    )
    title = ElementTree.SubElement(link, "title")
    title.text = f"{point.label}: {point.text}"
    place = (
        {}
        if circle is None
        else {n: str(round(float(circle.get(n, "0")), 1)) for n in ("cx", "cy")}
    )
    ElementTree.SubElement(link, "circle", {**place, "r": "4.5"})
    return link


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

    `touches` are lane positions; `reads` are those that are only read, as far as the plan shows.
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
    """Yield the buffers that a step is known to only read: sources of copies, constants, inputs.

    A plan does not show how a kernel uses an address, but inputs that are not outputs never change.
    """
    written = {binding.buffer for binding in plan.outputs}
    for buffer, _, _, writes in step.accesses():
        role = plan.buffers[buffer].role
        is_fixed = role == "constant" or (role == "input" and buffer not in written)
        if writes is False or (writes is None and is_fixed):
            yield buffer


def _title(step: Step) -> str:
    return step.kernel if isinstance(step, Launch) else step.title()


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
