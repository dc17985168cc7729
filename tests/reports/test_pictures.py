"""Pictures of plans and tensor maps, plots, and compressed texts of a page."""

from xml.etree import ElementTree

import pytest

from pallasc.emulator.tensors.descriptors import piece_order
from pallasc.reports.drawings import MOST_STEPS, Point, draw, draw_maps, draw_plan, swizzle_rows
from pallasc.reports.page import _environment
from pallasc.reports.variant import Blocks, unpacked
from pallasc.specs.artifacts.plan import (
    Binding,
    Buffer,
    Bytes,
    Copy,
    Fill,
    Launch,
    LaunchPlan,
    Pointer,
    TensorMap,
)

MAP = TensorMap(0, 0, "bfloat16", (64, 4096), (128,), (64, 128), (1, 1), swizzle=128)
LAUNCH = Launch(
    "k", "c", (4, 1, 1), None, (128, 1, 1), 0, False,
    (Bytes(128, "", ((0, MAP),)), Pointer(2, 0), Pointer(1, 0)),
)  # fmt: skip
PLAN = LaunchPlan(
    (Buffer("input", 8), Buffer("temporary", 8), Buffer("output", 8)),
    (Binding("x", "bf16", (4,), 0),),
    (Binding("", "bf16", (4,), 2),),
    (Fill(1, 0, 8), LAUNCH, Copy(1, 0, 2, 0, 8)),
    None,
    None,
)


@pytest.mark.parametrize("swizzle", [32, 64, 128])
def test_a_swizzle_is_drawn_as_the_emulator_moves_its_pieces(swizzle: int) -> None:
    rows, width = swizzle_rows(swizzle), swizzle // 16
    order = piece_order(0, len(rows) * width, swizzle)
    assert [piece for row in rows for piece in row] == [int(each) % width for each in order]


def test_a_box_is_drawn_in_the_dimensions_that_it_divides() -> None:
    (picture,) = draw_maps(LAUNCH)
    assert picture.axes == (0, 1)
    assert (picture.box_bytes, picture.boxes, picture.elements_per_piece) == (16384, 32, 8)
    assert picture.box_width == picture.width
    assert 0 < picture.box_height < picture.height


def test_steps_touch_the_lanes_of_their_buffers() -> None:
    picture = draw_plan(PLAN)
    assert [lane.role for lane in picture.lanes] == ["input", "temporary", "output"]
    assert [(row.kind, row.touches, row.reads) for row in picture.rows] == [
        ("fill", (1,), ()),
        ("mosaic", (0, 1, 2), (0,)),
        ("copy", (1, 2), (1,)),
    ]
    assert picture.lanes[0].arrays == ("x: bf16[4]",)


def test_of_many_steps_the_first_are_drawn_and_the_others_counted() -> None:
    steps = tuple(Fill(1, 0, 8) for _ in range(MOST_STEPS + 7))
    picture = draw_plan(LaunchPlan(PLAN.buffers, (), (), steps, None, None))
    assert (len(picture.rows), picture.hidden_steps) == (MOST_STEPS, 7)


# ---- plots over the matrix


SVG = "{http://www.w3.org/2000/svg}"
POINTS = [
    Point(f"v-{n}", f"k[<m>={n % 3}]", {"m": str(n % 3)}, 100.0 + n, f"{100 + n}", n == 4)
    for n in range(9)
]


def test_every_variant_is_a_link_with_its_name_and_value_side_by_side_and_higher() -> None:
    template = _environment().get_template("chart.html.j2")
    chart = draw("Registers", "", POINTS, "m")
    plot = ElementTree.fromstring(template.render(chart=chart))
    texts = [each.text for each in plot.iter(f"{SVG}text")]
    assert texts == ["Registers", "0", "20", "40", "60", "80", "100", "0", "1", "2", "m"]
    links = plot.findall(f".//{SVG}a")
    assert {link.get("href") for link in links} == {f"#v-{n}" for n in range(9)}
    assert "k[<m>=1]: 104" in {link.findtext(f"{SVG}title") for link in links}
    circles = plot.findall(f".//{SVG}circle")
    places = [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in circles]
    assert len({x for x, _ in places}) == len(places)
    heights = {a.get("href"): y for a, (_, y) in zip(links, places, strict=True)}
    assert heights["#v-8"] < heights["#v-0"]


# ---- compressed texts of a page


def test_a_text_comes_back_and_its_block_holds_no_element() -> None:
    blocks = Blocks()
    name = blocks.add("</script> ☃ " * 1000)
    ((stored, content),) = blocks.items()
    assert (stored, unpacked(content)) == (name, "</script> ☃ " * 1000)
    assert "<" not in content
    assert len(content) < 200
    assert blocks.add("text") == blocks.add("text") != blocks.add("other")
    assert blocks.add("text", name="page") == "page"
    assert len(blocks.items()) == 4
    blocks.add("\ud800")
    assert unpacked(blocks.items()[-1][1]) == "?"
