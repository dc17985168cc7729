"""Classes of instructions."""

from __future__ import annotations

from collections.abc import Mapping

from pallasc.analysis.sass.classes import classify
from pallasc.analysis.sass.disassembly import disassemble_all


def test_no_instruction_of_the_library_is_unknown(cubins: Mapping[str, bytes]) -> None:
    unknown = {
        each.mnemonic
        for codes in disassemble_all(cubins).values()
        for code in codes.values()
        for each in code.instructions
        if classify(each) == "other"
    }
    assert unknown == set()
