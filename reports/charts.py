"""Plots of a kernel's variants over a parameter, as inline SVG made by pygal.

Measured in 2026: plotly's script adds 4.8 MB to a file and bokeh's 1 MB, which every reader's
browser must parse, and both draw with their own colors, on a canvas that print and
`prefers-color-scheme` do not reach. pygal (a single Python package) draws a plot in 10 ms, as SVG.
Only the shapes are kept here: its script, its style sheet and its date are removed, so that the
report's own style sets the colors, and equal variants give equal bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from xml.etree import ElementTree

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


class Measure(NamedTuple):
    """The quantity that a plot shows: its name, and the unit of its values."""

    name: str
    unit: str = ""


def varying(params: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the parameters that have more than one value, in order."""
    values: dict[str, dict[str, None]] = {}
    for point in params:
        for name, value in point.items():
            values.setdefault(name, {})[value] = None
    return [name for name, found in values.items() if len(found) > 1]


def draw(measure: Measure, points: Sequence[Point], by: str) -> str:
    """Return the plot of a measure over a parameter as an SVG element.

    Args:
        measure: the measure to draw.
        points: the variants; those without a value are omitted.
        by: the parameter, "" to draw all in one row.
    """
    known = [point for point in points if point.value is not None]
    groups: dict[str, list[Point]] = {}
    for point in known:
        groups.setdefault(point.params.get(by, "") if by else "all", []).append(point)
    chart = _chart(measure, known, list(groups), by)
    for is_marked in (False, True):
        chart.add("", [
            {"value": (x, point.value), "label": number}
            for number, (x, point) in enumerate(_placed(groups)) if point.is_marked == is_marked
        ])  # fmt: skip
    return _svg(chart.render_tree(), measure, [point for _, point in _placed(groups)])


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


def _chart(measure: Measure, points: Sequence[Point], categories: list[str], by: str) -> Any:
    pygal = _pygal()
    from pygal.style import Style

    style = Style(label_font_size=12, title_font_size=14, major_label_font_size=12)
    most = max((point.value or 0 for point in points), default=0) or 1
    unit = f" ({measure.unit})" if measure.unit else ""
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
        title=f"{measure.name}{unit}",
        x_title=by or None,
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


def _svg(tree: ElementTree.Element, measure: Measure, points: Sequence[Point]) -> str:
    """Return pygal's drawing with links to variants, and with nothing but shapes."""
    ElementTree.register_namespace("", _SVG)
    svg = ElementTree.Element(
        "svg",
        {
            "xmlns": _SVG,
            "class": "chart",
            "viewBox": tree.get("viewBox", ""),
            "role": "group",
            "aria-label": f"{measure.name}, {len(points)} variants",
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
