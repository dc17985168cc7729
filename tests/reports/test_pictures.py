"""Pictures of plans and of tensor maps."""

from __future__ import annotations

import pytest

from pallasc.emulator.tensors.matrices import piece_order
from pallasc.reports.drawings import MOST_STEPS, draw_maps, draw_plan, swizzle_rows
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
