"""Loops, from branches."""

from collections.abc import Mapping

from sass_text import code_of

from pallasc.analysis.loops import loops
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
    assert outer.mix == {"integer": 1, "floating": 1, "control": 2}
    assert inner.mix == {"floating": 1, "control": 1}


def test_a_barrier_that_is_used_twice_makes_no_loop() -> None:
    uses = [f"BSSY B0, `(.L_x_{n})\nFADD R0, R0, R1\nBSYNC B0\n.L_x_{n}:\n" for n in range(2)]
    assert _headers(code_of("".join(uses) + "EXIT")) == []


def test_a_loop_that_only_polls_a_barrier_is_one_of_waiting() -> None:
    poll = ".L_x_0:\nSYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R9+URZ], R8\n@!P0 BRA `(.L_x_0)\nEXIT"
    work = poll.replace("SYNCS", "FADD R0, R0, R1\nSYNCS")
    assert [loops(code_of(text))[0].is_wait for text in (poll, work)] == [True, False]


def test_the_loops_of_real_kernels(together: Mapping[str, Mapping[str, Code]]) -> None:
    found = {name: loops(code) for name, codes in together.items() for code in codes.values()}

    def depths(name: str, kind: str) -> set[int]:
        return {loop.depth for loop in found[name] if kind in loop.mix}

    # One warpgroup copies, the others multiply, each in its own loop over the pipeline's steps.
    assert depths("hopper_matmul", "tensor") == depths("hopper_matmul", "tma") == {1}
    # A kernel that keeps its blocks has a loop over tiles around it.
    assert {1, 2} <= depths("jax_blackwell_matmul", "tensor")
    # Nothing but waiting is repeated in a kernel that adds one block.
    assert all(loop.is_wait for loop in found["add"])
