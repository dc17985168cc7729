"""Classes of instructions."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from sass_text import code_of

from pallasc.analysis.nvdisasm import disassemble_all
from pallasc.analysis.sass import CLASSES, classify


def test_no_instruction_of_the_library_is_unknown(cubins: Mapping[str, bytes]) -> None:
    unknown = {
        each.mnemonic
        for codes in disassemble_all(cubins).values()
        for code in codes.values()
        for each in code.instructions
        if classify(each) == "other"
    }
    assert unknown == set()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("HGMMA.64x256x16.F32.BF16 R24, gdesc[UR4], R24, gsb0", "tensor"),
        ("UTCHMMA gdesc[UR8], gdesc[UR10], tmem[UR4], tmem[UR6], idesc[UR7], UP0", "tensor"),
        ("WARPGROUP.ARRIVE", "barrier"),
        ("LDTM.x32 R4, tmem[UR4]", "tensor_memory"),
        ("@UP0 UTMALDG.2D [UR8], [UR4], desc[UR6]", "tma"),
        ("LDG.E.128 R4, desc[UR4][R2.64]", "load_global"),
        ("LDGSTS.E.BYPASS.128 [R7], desc[UR4][R2.64]", "load_global"),
        ("STL [R1], R2", "local"),
        ("@!P1 SYNCS.PHASECHK.TRANS64 P1, [R9+URZ], R8", "barrier"),
        ("UIADD3 UR4, UR5, 0x1, URZ", "uniform"),
        ("UF2FP.BF16.F32.PACK_AB UR4, UR5, UR6", "uniform"),
        ("IMAD.MOV.U32 R3, RZ, RZ, R4", "integer"),
        ("MUFU.EX2 R3, R4", "floating"),
        ("NEWOPCODE R3", "other"),
        ("UNEWOPCODE R3", "other"),
    ],
)
def test_classes_of_instructions(text: str, expected: str) -> None:
    (instruction,) = code_of(text).instructions
    assert instruction.text == text
    assert classify(instruction) == expected
    assert expected in CLASSES
