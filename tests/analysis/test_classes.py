"""Classes of instructions."""

from __future__ import annotations

from collections.abc import Mapping

from pallasc.analysis.sass import Code, classify


def test_no_instruction_of_the_library_is_unknown(
    together: Mapping[str, Mapping[str, Code]],
) -> None:
    unknown = {
        each.mnemonic
        for codes in together.values()
        for code in codes.values()
        for each in code.instructions
        if classify(each) == "other"
    }
    assert unknown == set()
