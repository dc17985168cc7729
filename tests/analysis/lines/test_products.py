"""Matrix instructions have the lines of their statements."""

from __future__ import annotations

import pytest

from pallasc.analysis.find_lines import with_products

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


def test_without_a_statement_the_assemblers_line_stands() -> None:
    assert with_products(code(0x9F0), "mov.u32 a, b;", [1]) == [1]
