"""Loops, from branches."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from sass_text import code_of

from pallasc.analysis.loops import Loop, loops
from pallasc.analysis.nvdisasm import disassemble_all
from pallasc.analysis.sass import Code

NESTED = """
    MOV R0, RZ
    .L_x_0:
    IADD3 R0, R0, 0x1, RZ
    .L_x_1:
    FADD R1, R1, R2
    @P0 BRA `(.L_x_1)
    @P1 BRA `(.L_x_0)
    EXIT
"""


def _headers(code: Code) -> list[tuple[int, int, int | None]]:
    return [(loop.header, loop.depth, loop.parent) for loop in loops(code)]


def test_loops_are_nested() -> None:
    code = code_of(NESTED)
    assert _headers(code) == [(16, 1, None), (32, 2, 16)]
    outer, inner = loops(code)
    assert [each.address for each in outer.body] == [16, 32, 48, 64]
    assert [each.mnemonic for each in inner.body] == ["FADD", "BRA"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("EXIT", []),
        # ptxas ends every kernel with a branch to itself that nothing reaches.
        ("EXIT\n.L_x_0:\nBRA `(.L_x_0)", []),
        # A uniform predicate is an operand of the branch.
        (".L_x_0:\nFADD R0, R0, R1\nBRA.U UP0, `(.L_x_0)\nEXIT", [(0, 1, None)]),
        # Both sides of a branch meet at the convergence barrier, and nothing is repeated.
        (
            "BSSY B0, `(.L_x_1)\n@P0 BRA `(.L_x_0)\nFADD R0, R0, R1\n.L_x_0:\nBSYNC B0\n"
            ".L_x_1:\nEXIT",
            [],
        ),
        # A barrier that is left in a loop's middle.
        (
            ".L_x_2:\nBSSY B0, `(.L_x_1)\n@P0 BRA `(.L_x_0)\nFADD R0, R0, R1\n.L_x_0:\n"
            "BSYNC B0\n.L_x_1:\n@P1 BRA `(.L_x_2)\nEXIT",
            [(0, 1, None)],
        ),
        # A function that returns to the middle of the kernel closes no loop.
        ("CALL.REL.NOINC `(k)\nEXIT\nRET.REL.NODEC R2 `(k)", []),
        # An iteration whose middle lies behind the loop, as where a wait is not over at once.
        (
            ".L_x_0:\n@!P0 BRA `(.L_x_2)\n.L_x_1:\nFADD R0, R0, R1\n@P1 BRA `(.L_x_0)\nEXIT\n"
            ".L_x_2:\nSYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R9+URZ], R8\n@!P0 BRA `(.L_x_2)\n"
            "BRA `(.L_x_1)",
            [(0, 1, None), (64, 2, 0)],
        ),
    ],
)
def test_which_branches_close_loops(text: str, expected: list[tuple[int, int, int | None]]) -> None:
    assert _headers(code_of(text)) == expected


def test_a_loop_that_only_polls_a_barrier_is_one_of_waiting() -> None:
    poll = ".L_x_0:\nSYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R9+URZ], R8\n@!P0 BRA `(.L_x_0)\nEXIT"
    work = poll.replace("SYNCS", "FADD R0, R0, R1\nSYNCS")
    assert [loops(code_of(text))[0].is_wait for text in (poll, work)] == [True, False]


def _has(loop: Loop, mnemonic: str) -> bool:
    return any(each.mnemonic == mnemonic for each in loop.body)


def _depths(found: tuple[Loop, ...], mnemonic: str) -> set[int]:
    return {loop.depth for loop in found if _has(loop, mnemonic)}


def test_the_loops_of_real_kernels(cubins: Mapping[str, bytes]) -> None:
    found = {
        name: loops(code)
        for name, codes in disassemble_all(cubins).items()
        for code in codes.values()
    }
    # One warpgroup copies, the others multiply, each in loops of its own.
    attention = found["jax_attention"]
    copying = [loop for loop in attention if _has(loop, "UTMALDG")]
    working = [loop for loop in attention if _has(loop, "HGMMA")]
    assert len(copying) == 1
    assert working
    assert not any({*copying[0].body} & {*loop.body} for loop in working)
    # Steps of the pipeline, in a kernel that keeps its blocks within a loop over tiles.
    assert _depths(found["hopper_matmul"], "HGMMA") == {1}
    assert {1, 2} <= _depths(found["jax_blackwell_matmul"], "UTCHMMA")
    # Nothing but waiting is repeated in a kernel that adds one block.
    assert all(loop.is_wait for loop in found["add"])
