"""The integers of PTX."""

from __future__ import annotations

import pytest

from pallasc.analysis.threads import operation


@pytest.mark.parametrize(
    ("opcode", "operands", "expected"),
    [
        ("mov.u32", (7,), 7),
        ("mov.pred", (-1,), 1),
        ("add.s32", (0xFFFFFFFF, 2), 1),
        ("sub.s32", (1, 2), 0xFFFFFFFF),
        ("mul.lo.s16", (171, 384), (171 * 384) & 0xFFFF),
        ("mul.hi.u32", (1 << 31, 4), 2),
        ("mul.hi.s32", (0xFFFFFFFF, 1), 0xFFFFFFFF),
        ("mul.wide.s32", (0xFFFFFFFE, 3), (1 << 64) - 6),
        ("mul.wide.u32", (0xFFFFFFFE, 3), 0xFFFFFFFE * 3),
        ("mad.lo.s32", (3, 4, 5), 17),
        ("div.s32", (0xFFFFFFF9, 2), 0xFFFFFFFD),
        ("rem.s32", (0xFFFFFFF9, 2), 0xFFFFFFFF),
        ("rem.u32", (7, 4), 3),
        ("shr.s32", (0x80000000, 31), 0xFFFFFFFF),
        ("shr.u32", (0x80000000, 31), 1),
        ("shr.s32", (0x80000000, 99), 0xFFFFFFFF),
        ("shl.b32", (1, 32), 0),
        ("shl.b32", (0xFFFFFFFF, 4), 0xFFFFFFF0),
        ("not.b16", (0,), 0xFFFF),
        ("and.b32", (-1, 6), 6),
        ("min.s32", (0xFFFFFFFF, 1), 0xFFFFFFFF),
        ("min.u32", (0xFFFFFFFF, 1), 1),
        ("setp.lt.s32", (0xFFFFFFFF, 0), 1),
        ("setp.lt.u32", (0xFFFFFFFF, 0), 0),
        ("setp.lo.u32", (1, 2), 1),
        ("setp.eq.and.b32", (1, 1, 0), 0),
        ("setp.ne.or.b32", (1, 1, 1), 1),
        ("selp.b32", (4, 3, 0), 3),
        ("not.pred", (1,), 0),
        ("xor.pred", (1, 1), 0),
        ("cvt.u32.u64", (1 << 32 | 5,), 5),
        ("cvt.s64.s32", (0xFFFFFFFF,), (1 << 64) - 1),
        ("cvt.u64.u32", (0xFFFFFFFF,), 0xFFFFFFFF),
        ("cvt.u32.u16", (0x1FFFF,), 0xFFFF),
    ],
)
def test_results(opcode: str, operands: tuple[int, ...], expected: int) -> None:
    compute = operation(opcode)
    assert compute is not None
    assert compute(*operands) == expected


@pytest.mark.parametrize(
    "opcode",
    ["add.f32", "ld.global.b32", "setp.lt.f32", "cvt.rn.f32.s32", "add.cc.s32", "shl", "popc.b32"],
)
def test_what_is_not_an_integer_instruction_of_ours_is_not_computed(opcode: str) -> None:
    assert operation(opcode) is None
