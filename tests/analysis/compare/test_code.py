"""Differences in machine code: what counts as the same, as another order, as changed."""

from __future__ import annotations

import pytest
from sass_text import code_of

from pallasc.analysis.compare import compare_code, normal_hunks, raw_hunks

FIRST = """
    S2R R4, SR_TID.X
    LDG.E R5, desc[UR4][R2.64]
    .L_x_0:
    FADD R6, R5, R5
    IADD3 R4, R4, 0x1, RZ
    ISETP.LT.AND P0, PT, R4, 0x80, PT
    @P0 BRA `(.L_x_0)
    STG.E desc[UR4][R2.64], R6
    EXIT
"""
RENAMED = FIRST.replace("R6", "R9").replace("L_x_0", "L_x_7").replace("UR4", "UR8")
REORDERED = FIRST.replace(
    "    FADD R6, R5, R5\n    IADD3 R4, R4, 0x1, RZ\n",
    "    IADD3 R4, R4, 0x1, RZ\n    FADD R6, R5, R5\n",
)


def test_registers_and_labels_alone_show_nothing() -> None:
    first, second = code_of(FIRST), code_of(RENAMED)
    assert compare_code(first, second).verdict == "renamed"
    assert normal_hunks(first, second) == []
    assert raw_hunks(first, second) != []


def test_another_order_is_told_from_other_instructions() -> None:
    found = compare_code(code_of(FIRST), code_of(REORDERED))
    assert (found.verdict, found.removed, found.added) == ("reordered", 0, 0)
    assert (found.mix, found.loops) == ((), ())


def test_instructions_that_only_one_has_are_counted_by_class_and_loop() -> None:
    more = FIRST.replace("IADD3", "FMUL R6, R6, R6\n    IADD3").replace("0x80", "0x40")
    found = compare_code(code_of(FIRST), code_of(more))
    assert (found.verdict, found.before, found.after) == ("changed", 8, 9)
    assert (found.removed, found.added) == (1, 2)
    assert found.mix == (("floating", 1, 2),)
    (loop,) = found.loops
    assert (loop.number, loop.depth) == (0, 1)
    assert (loop.before["floating"], loop.after["floating"]) == (1, 2)


def _loop(name: str, *body: str) -> str:
    text = "\n".join(body)
    return f".L_x_{name}:\n{text}\nISETP.LT.AND P0, PT, R4, 0x80, PT\n@P0 BRA `(.L_x_{name})\n"


def test_a_loop_that_is_gone_leaves_the_others_in_their_pairs() -> None:
    copy, add = ["LDG.E R5, desc[UR4][R2.64]"] * 8, ["FADD R6, R5, R5"] * 6
    first = code_of(_loop("0", *copy) + _loop("1", *add) + "EXIT")
    second = code_of(_loop("1", *add, "FMUL R6, R6, R6") + "EXIT")
    gone, changed = compare_code(first, second).loops
    assert (gone.number, gone.after) == (0, {})
    assert (changed.number, changed.before["floating"], changed.after["floating"]) == (0, 6, 7)
    new, back = compare_code(second, first).loops
    assert (new.number, new.before) == (0, {})
    assert (back.number, back.before["floating"], back.after["floating"]) == (1, 7, 6)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda text: text.replace("0x1,", "0x2,"), "changed"),
        (lambda text: text.replace("LDG.E", "LDG.E.64"), "changed"),
        (lambda text: text.replace("@P0", "@!P0"), "changed"),
        (lambda text: text.replace("FADD R6, R5, R5", "FADD R6, R5, R4"), "reordered"),
    ],
)
def test_what_decides_a_result_is_never_a_renaming(change: object, kind: str) -> None:
    assert compare_code(code_of(FIRST), code_of(change(FIRST))).verdict == kind  # type: ignore[operator]


def test_hunks_have_what_is_around_a_change() -> None:
    hunks = normal_hunks(code_of(FIRST), code_of(FIRST.replace("0x80", "0x40")))
    assert [line for line in hunks if line[0] in "+-"] == [
        "-ISETP.LT.AND P0, PT, R0, 0x80, PT",
        "+ISETP.LT.AND P0, PT, R0, 0x40, PT",
    ]
    assert hunks[0].startswith("@@ ")
