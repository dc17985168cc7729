"""Operands of arithmetic in the text of a kernel: pairs, three sources, wider registers."""

import numpy as np
import small_kernels


def run(body: str) -> np.ndarray:
    """Run lines that leave their result in %r2; return it of all lanes, whose numbers are %r1."""
    return small_kernels.run(f"mov.u32 %r1, %t; {body} st.global.b32 [%out], %r2;")


LANES = np.arange(32)


def test_a_comparison_with_two_destinations():
    found = run(
        "setp.lt.u32 %p1|%p2, %r1, 7; selp.b32 %r3, 1, 0, %p1; selp.b32 %r4, 2, 0, %p2;"
        "or.b32 %r2, %r3, %r4;"
    )
    assert found.tolist() == np.where(LANES < 7, 1, 2).tolist()


def test_a_joined_comparison_with_a_negated_predicate():
    found = run(
        "setp.lt.u32 %p1, %r1, 20; setp.gt.and.u32 %p2|%p3, %r1, 3, !%p1;"
        "selp.b32 %r3, 1, 0, %p2; selp.b32 %r4, 2, 0, %p3; or.b32 %r2, %r3, %r4;"
    )
    assert found.tolist() == np.where(LANES < 20, 0, 1).tolist()


def test_a_narrow_type_in_a_wider_register():
    found = run("sub.s32 %r3, %r1, 16; cvt.s8.s32 %r4, %r3; cvt.s32.s8 %r2, %r4;")
    assert found.view(np.int32).tolist() == (LANES - 16).tolist()
    found = run("add.s32 %r3, %r1, 250; cvt.u16.u32 %h1, %r3; cvt.u32.u8 %r2, %h1;")
    assert found.tolist() == ((LANES + 250) % 256).tolist()


def test_the_flag_goes_from_one_instruction_to_the_next() -> None:
    body = """
      add.u32 %r3, %r1, 4294967280;
      add.cc.u32 %r4, %r3, 8;
      addc.u32 %r2, %r1, 100;
    """
    lanes = np.arange(32, dtype=np.uint64)
    carries = ((lanes + 4294967280) % 2**32 + 8) >> np.uint64(32)
    np.testing.assert_array_equal(run(body), lanes + 100 + carries)


def test_lanes_that_are_not_at_work_keep_their_flag() -> None:
    body = """
      setp.lt.u32 %p1, %r1, 5;
      @%p1 add.cc.u32 %r4, 4294967295, 1;
      addc.u32 %r2, %r1, 0;
    """
    lanes = np.arange(32)
    np.testing.assert_array_equal(run(body), lanes + (lanes < 5))
