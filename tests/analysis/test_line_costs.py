"""Costs of lines, and matrix instructions at the lines of their statements."""

from __future__ import annotations

import pytest

from pallasc.analysis.find_lines import with_products
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


PTX = """\
mov.u32 a, b;
wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {…};
add.s32 c, d, e;
add.s32 f, g, h;
wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {…};
"""


def code(*operations: int) -> bytes:
    """Return machine code with these operations."""
    return b"".join(number.to_bytes(2, "little") + bytes(14) for number in operations)


@pytest.mark.parametrize(
    ("operations", "told", "expected"),
    [
        ((0x9F0, 0x224, 0xDF0), [1, 3, 3], [2, 3, 5]),  # as many as statements: in their order
        ((0x9F0, 0x9F0, 0x9F0), [1, 3, 4], [2, 2, 5]),  # unrolled: the nearest
        ((0x224, 0x225), [1, 3], [1, 3]),
    ],
)
def test_products_have_the_line_of_their_statement(
    operations: tuple[int, ...], told: list[int], expected: list[int]
) -> None:
    assert with_products(code(*operations), PTX, told) == expected
