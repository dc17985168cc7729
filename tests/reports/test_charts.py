"""Plots over the matrix."""

from __future__ import annotations

import sys
from xml.etree import ElementTree

from pallasc.reports.drawings import Point, draw

SVG = "{http://www.w3.org/2000/svg}"
POINTS = [
    Point(f"v-{n}", f"k[<m>={n % 3}]", {"m": str(n % 3)}, 100.0 + n, f"{100 + n}", n == 4)
    for n in range(9)
]


def _draw(points: list[Point] = POINTS, by: str = "m") -> ElementTree.Element:
    return ElementTree.fromstring(draw("Registers", "", points, by))


def test_every_variant_is_a_link_with_its_name_and_value() -> None:
    links = _draw().findall(f".//{SVG}a")
    assert {link.get("href") for link in links} == {f"#v-{n}" for n in range(9)}
    titles = {link.findtext(f"{SVG}title") for link in links}
    assert "k[<m>=1]: 104" in titles


def test_variants_of_one_value_stand_side_by_side_and_higher_values_higher() -> None:
    circles = _draw().findall(f".//{SVG}circle")
    places = [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in circles]
    assert len({x for x, _ in places}) == len(places)
    links = [link.get("href") for link in _draw().iter(f"{SVG}a")]
    heights = dict(zip(links, (y for _, y in places), strict=True))
    assert heights["#v-8"] < heights["#v-0"]


def test_a_plot_has_neither_scripts_nor_styles_nor_a_date() -> None:
    names = {each.tag.removeprefix(SVG) for each in _draw().iter()}
    assert names <= {"svg", "g", "rect", "path", "text", "a", "title", "circle"}
    assert draw("Registers", "", POINTS, "m") == draw("Registers", "", POINTS, "m")
    assert "<!--" not in draw("Registers", "", POINTS, "m")


def test_a_plot_leaves_no_finder_behind_that_python_warns_of() -> None:
    draw("registers", "", [Point("a", "a", {}, 1.0, "1")], "")
    assert [finder for finder in sys.meta_path if not hasattr(finder, "find_spec")] == []
