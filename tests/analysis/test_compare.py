"""Comparison of two sides: which variants are pairs, and when machine code counts as the same."""

from __future__ import annotations

import pytest
from sass_text import code_of

from pallasc.analysis.compare import align, compare_code, normal_hunks, normalised, raw_hunks
from pallasc.analysis.sides import Side, Subject, side_of
from pallasc.specs.resources import Resources


def side(*params: str, name: str = "k", target: str = "b200") -> Side:
    subjects = []
    for text in params:
        key = f"{name}[{text}]@{target}"
        each = dict(part.split("=") for part in text.split(","))
        subjects.append(Subject(key, name, each, target, Resources(), None, None, key))
    return side_of("side", subjects)


def labels(first: Side, second: Side, *, by_parameters: bool = False) -> list[tuple[str, str]]:
    pairs = align(first, second, by_parameters=by_parameters)
    return [(p.first.id if p.first else "", p.second.id if p.second else "") for p in pairs]


def test_variants_pair_by_id_and_the_rest_is_on_one_side() -> None:
    assert labels(side("n=1", "n=2"), side("n=2", "n=3")) == [
        ("k[n=1]@b200", ""),
        ("k[n=2]@b200", "k[n=2]@b200"),
        ("", "k[n=3]@b200"),
    ]


def test_single_variants_pair_whatever_they_are() -> None:
    (pair,) = align(side("n=1"), side("m=2", name="other", target="h100-sxm"))
    assert pair.label == "k[n=1]@b200 → other[m=2]@h100-sxm"


def test_two_selections_pair_by_the_parameters_that_they_share() -> None:
    first = side("n=1,tile=64", "n=2,tile=64")
    second = side("n=2,tile=128", "n=1,tile=128", "n=4,tile=128")
    assert labels(first, second, by_parameters=True) == [
        ("k[n=1,tile=64]@b200", "k[n=1,tile=128]@b200"),
        ("k[n=2,tile=64]@b200", "k[n=2,tile=128]@b200"),
        ("", "k[n=4,tile=128]@b200"),
    ]
    elsewhere = side("n=1", "n=2", target="h100-sxm")
    assert labels(side("n=1", "n=2"), elsewhere, by_parameters=True)[0] == (
        "k[n=1]@b200",
        "k[n=1]@h100-sxm",
    )


FIRST = """
    S2R R4, SR_TID.X
    LDG.E R5, desc[UR4][R2.64]
    .L_x_0:
    FADD R6, R5, R5
    IADD3 R4, R4, 0x1, RZ
    ISETP.LT.AND P0, PT, R4.reuse, 0x80, PT
    @P0 BRA `(.L_x_0)
    STG.E desc[UR4][R2.64], R6
    EXIT
"""
RENAMED = FIRST.replace("R6", "R9").replace("L_x_0", "L_x_7").replace("UR4", "UR8")
REORDERED = FIRST.replace(
    "    FADD R6, R5, R5\n    IADD3 R4, R4, 0x1, RZ\n",
    "    IADD3 R4, R4, 0x1, RZ\n    FADD R6, R5, R5\n",
)


def test_names_are_numbered_by_their_first_use() -> None:
    text = """
        LDC R7, c[0x0][0x28]
        ISETP.EQ.U32.AND P3, PT, R4.reuse, RZ, !P2
        @!P3 BRA `(.L_x_1)
        .L_x_0:
        UIADD3 UR9, UP1, UPT, UR6, 0x80, URZ
        STG.E desc[UR6][R4.64], R7
        BSSY B3, `(.L_x_1)
        .L_x_1:
        @P3 BRA `(.L_x_0)
    """
    assert normalised(code_of(text)) == (
        "LDC R0, c[0x0][0x28]",
        "ISETP.EQ.U32.AND P0, PT, R1, RZ, !P1",
        "@!P0 BRA `(L0)",
        "L1: UIADD3 UR0, UP0, UPT, UR1, 0x80, URZ",
        "STG.E desc[UR1][R1.64], R0",
        "BSSY B0, `(L0)",
        "L0: @P0 BRA `(L1)",
    )


def test_registers_labels_and_hints_alone_show_nothing() -> None:
    first, second = code_of(FIRST), code_of(RENAMED.replace(".reuse", ""))
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
    hunks = normal_hunks(code_of(FIRST), code_of(FIRST.replace("0x80", "0x40")))
    assert [line for line in hunks if line[0] in "+-"] == [
        "-ISETP.LT.AND P0, PT, R0, 0x80, PT",
        "+ISETP.LT.AND P0, PT, R0, 0x40, PT",
    ]
    assert hunks[0].startswith("@@ ")


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("0x1,", "0x2,", "changed"),
        ("LDG.E", "LDG.E.64", "changed"),
        ("@P0", "@!P0", "changed"),
        ("FADD R6, R5, R5", "FADD R6, R5, R4", "reordered"),
    ],
)
def test_what_decides_a_result_is_never_a_renaming(old: str, new: str, kind: str) -> None:
    assert compare_code(code_of(FIRST), code_of(FIRST.replace(old, new))).verdict == kind
