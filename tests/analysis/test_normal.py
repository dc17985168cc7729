"""The normal form of code."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sass_text import code_of

from pallasc.analysis.compare import normalised
from pallasc.analysis.sass import Code

TEXT = """
    LDC R7, c[0x0][0x28]
    S2R R4, SR_TID.X
    ISETP.EQ.U32.AND P3, PT, R4.reuse, RZ, !P2
    @!P3 BRA `(.L_x_1)
    .L_x_0:
    UIADD3 UR9, UP1, UPT, UR6, 0x80, URZ
    STG.E desc[UR6][R4.64], R7
    BSSY B3, `(.L_x_1)
    .L_x_1:
    @P3 BRA `(.L_x_0)
"""


def test_names_are_numbered_by_their_first_use() -> None:
    assert normalised(code_of(TEXT)) == (
        "LDC R0, c[0x0][0x28]",
        "S2R R1, SR_TID.X",
        "ISETP.EQ.U32.AND P0, PT, R1, RZ, !P1",
        "@!P0 BRA `(L0)",
        "L1: UIADD3 UR0, UP0, UPT, UR1, 0x80, URZ",
        "STG.E desc[UR1][R1.64], R0",
        "BSSY B0, `(L0)",
        "L0: @P0 BRA `(L1)",
    )


def test_other_registers_labels_and_hints_are_the_same_code() -> None:
    swapped = re.sub(r"\bR(\d)\b", lambda m: f"R{int(m[1]) + 8}", TEXT)
    swapped = swapped.replace("UR9", "UR33").replace("P3", "P5").replace(".reuse", "")
    swapped = swapped.replace("L_x_0", "L_x_7").replace("B3", "B0")
    assert normalised(code_of(swapped)) == normalised(code_of(TEXT))


def test_other_operations_constants_and_uses_are_other_code() -> None:
    for old, new in [
        ("0x80", "0x90"),
        ("!P2", "P2"),
        ("R4.64], R7", "R4.64], R4"),
        ("SR_TID.X", "SR_TID.Y"),
    ]:
        assert old in TEXT
        assert normalised(code_of(TEXT.replace(old, new))) != normalised(code_of(TEXT))


def test_the_normal_form_of_real_code_has_a_line_for_each_instruction(
    together: Mapping[str, Mapping[str, Code]],
) -> None:
    for codes in together.values():
        for code in codes.values():
            lines = normalised(code)
            assert len(lines) == len(code.instructions)
            assert not any(".reuse" in line or ".L_x" in line for line in lines)
            # What is numbered by first use begins at 0 and leaves no number out.
            for kind in ("R", "UR", "P", "UP"):
                seen = [int(n) for line in lines for n in re.findall(rf"\b{kind}(\d+)\b", line)]
                first = list(dict.fromkeys(seen))
                assert first == sorted(first)
                assert first == list(range(len(first)))
