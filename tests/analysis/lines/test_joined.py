"""What an instruction counts for."""

from __future__ import annotations

import pytest

from pallasc.analysis.lines import LineCosts, is_wait
from pallasc.analysis.sass import Instruction


def instruction(opcode: str, live: int | None = None) -> Instruction:
    """Return an instruction with an opcode, and as many registers live."""
    return Instruction(0, "", opcode, (), "", live, bytes(16))


@pytest.mark.parametrize(
    ("opcode", "waits"),
    [
        ("BAR.SYNC.DEFER_BLOCKING", True),
        ("BAR.ARV", False),
        ("SYNCS.PHASECHK.TRANS64.TRYWAIT", True),
        ("SYNCS.ARRIVE.TRANS64", False),
        ("WARPGROUP.DEPBAR.LE", True),
        ("WARPGROUP.ARRIVE", False),
        ("DEPBAR.LE", True),
        ("LDGDEPBAR", False),
        ("UCGABAR_WAIT", True),
    ],
)
def test_waits_are_told_from_arrivals(opcode: str, waits: bool) -> None:
    assert is_wait(instruction(opcode)) == waits


def test_a_line_has_sums_and_the_most_registers() -> None:
    costs = LineCosts()
    for opcode, live in (("STL", 9), ("LDL.64", 40), ("HGMMA.64x64x16.F32", 12), ("LDS", None)):
        costs.add(instruction(opcode, live))
    assert costs.counts == {
        "instructions": 4, "local": 2, "tensor": 1, "shared": 1, "waits": 0, "registers": 40,
    }  # fmt: skip
