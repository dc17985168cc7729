"""Comparison of two sides: which variants are pairs, and when machine code counts as the same."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from sass_text import code_of

from pallasc.analysis.compare import (
    DEPTHS,
    Change,
    Comparison,
    Difference,
    align,
    compare,
    compare_code,
    hunks_of,
    normalised,
    raw_lines,
)
from pallasc.analysis.sides import Side, Subject, subject_of
from pallasc.specs.artifacts.artifact import Artifact, Resources


def side(*params: str, name: str = "k", target: str = "b200") -> Side:
    subjects = []
    for text in params:
        key = f"{name}[{text}]@{target}"
        each = dict(part.split("=") for part in text.split(","))
        subjects.append(Subject(key, name, each, target, Resources(), None, None, key))
    return Side("side", tuple(subjects))


def labels(first: Side, second: Side, *, by_parameters: bool = False) -> list[tuple[str, str]]:
    pairs, only_first, only_second = align(first, second, by_parameters=by_parameters)
    both = [(one.id, other.id) for one, other in pairs]
    return [
        *both,
        *((one.id, "") for one in only_first),
        *(("", other.id) for other in only_second),
    ]


def test_variants_pair_by_id_and_the_rest_is_on_one_side() -> None:
    assert labels(side("n=1", "n=2"), side("n=2", "n=3")) == [
        ("k[n=2]@b200", "k[n=2]@b200"),
        ("k[n=1]@b200", ""),
        ("", "k[n=3]@b200"),
    ]


def test_single_variants_pair_whatever_they_are() -> None:
    ((first, second),), *_ = align(side("n=1"), side("m=2", name="other", target="h100-sxm"))
    assert Difference(first, second).label == "k[n=1]@b200 → other[m=2]@h100-sxm"


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
    assert hunks_of(normalised(first), normalised(second)) == []
    assert hunks_of(raw_lines(first), raw_lines(second)) != []


def test_another_order_is_told_from_other_instructions() -> None:
    found = compare_code(code_of(FIRST), code_of(REORDERED))
    assert (found.verdict, found.removed, found.added) == ("reordered", 0, 0)
    assert found.mix == ()


def test_instructions_that_only_one_has_are_counted_by_class() -> None:
    more = FIRST.replace("IADD3", "FMUL R6, R6, R6\n    IADD3").replace("0x80", "0x40")
    found = compare_code(code_of(FIRST), code_of(more))
    assert (found.verdict, found.before, found.after) == ("changed", 8, 9)
    assert (found.removed, found.added) == (1, 2)
    assert found.mix == (("floating", 1, 2),)
    other = code_of(FIRST.replace("0x80", "0x40"))
    hunks = hunks_of(normalised(code_of(FIRST)), normalised(other))
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


def whole(artifacts: Mapping[str, Artifact]) -> Side:
    return Side("side", tuple(subject_of(each, name, ()) for name, each in artifacts.items()))


def refusing(cubins: Mapping[str, bytes]) -> Any:
    assert cubins == {}, "equal code must not be disassembled"
    return {}


def patched(artifact: Artifact, change: Any) -> Artifact:
    """Return an artifact whose first cubin has other machine code."""
    from pallasc.specs.artifacts.cubin import parse_elf
    from pallasc.specs.canonical import digest

    kernel = artifact.kernels[0]
    cubin = artifact.blob(kernel.cubin)
    section = parse_elf(cubin).section(f".text.{kernel.name}")
    assert section is not None
    code = change(section.content)
    other = cubin.replace(section.content, code)
    assert len(other) == len(cubin) and other != cubin  # noqa: PT018
    key = digest(other)
    text = repr(dict(artifact.record)).replace(kernel.cubin, key)
    blobs = {**artifact.blobs(), key: other}
    return Artifact(eval(text), blobs.__getitem__)


def test_a_comparison_with_itself_is_empty_and_disassembles_nothing(
    artifacts: Mapping[str, Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pallasc.analysis.compare.disassemble_all", refusing)
    for depth in DEPTHS:
        found = compare(whole(artifacts), whole(artifacts), depth=depth)
        assert not found
        assert (found.same, found.differing) == (len(artifacts), ())
    first = whole({name: artifacts[name] for name in ("add", "softmax")})
    second = whole({name: artifacts[name] for name in ("softmax", "hopper_matmul")})
    found = compare(first, second)
    assert found
    assert found.same == 1
    assert [each.name for each in found.only_first] == ["add"]
    assert [each.name for each in found.only_second] == ["hopper_matmul"]


def other_stalls(code: bytes) -> bytes:
    """Return code whose first instruction stalls for longer: bits 105 to 108."""
    return code[:13] + bytes([code[13] ^ 0x02]) + code[14:]


def test_scheduling_alone_is_a_difference_in_bytes_and_raw_and_none_in_sass(
    artifacts: Mapping[str, Artifact],
) -> None:
    first = {"add": artifacts["add"]}
    second = {"add": patched(artifacts["add"], other_stalls)}

    def at(depth: str) -> Comparison:
        return compare(whole(first), whole(second), depth=depth)

    (bytes_alone,) = at("resources").differing
    assert (bytes_alone.numbers, bytes_alone.plan) == ((), False)
    assert bytes_alone.kernels[0].code is None
    assert not at("mix")
    assert not at("sass")
    (raw,) = at("raw").differing
    assert raw.kernels[0].code is not None
    assert raw.kernels[0].code.verdict == "renamed"
    changed = [line for line in raw.kernels[0].hunks if line[0] in "+-"]
    assert len(changed) == 2
    assert changed[0][8:] == changed[1][8:]


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ([("registers", 8, 9)], "worse"),
        ([("registers", 9, 8)], "better"),
        ([("occupancy", 8, 16)], "better"),
        ([("occupancy", 16, 8), ("spill_bytes", 0, 4)], "worse"),
        ([("registers", 9, 8), ("cubin_bytes", 100, 200)], "mixed"),
        ([], ""),
    ],
)
def test_fewer_is_better_but_of_occupancy(changes: list[Any], verdict: str) -> None:
    (subject,) = side("n=1").variants
    numbers = tuple(Change(*each) for each in changes)
    assert Difference(subject, subject, numbers).verdict == verdict


def test_a_subject_without_artifact_is_compared_by_its_resources(
    artifacts: Mapping[str, Artifact],
) -> None:
    (subject,) = whole({"add": artifacts["add"]}).variants
    before = replace(
        subject,
        artifact=None,
        digest="0" * 64,
        resources=subject.resources._replace(registers=1, spill_bytes=None),
    )
    found = compare(Side("lock", (before,)), Side("now", (subject,)), depth="sass")
    (difference,) = found.differing
    assert [change.field for change in difference.numbers] == ["registers"]
    assert difference.kernels == ()
