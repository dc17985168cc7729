"""Loads, stores and atomic operations: widths, spaces, vectors, and what reaches outside."""

import numpy as np
import pytest
from small_kernels import Run, run

LANES = np.arange(32, dtype=np.int64)
SHARED = ".shared .align 16 .b8 s[2048];"


def test_lanes_that_are_not_at_work_neither_load_nor_store() -> None:
    values = np.arange(8, dtype=np.uint32) + 5
    found = run(
        "mov.u32 %r1, 77; setp.lt.u32 %p1, %t, 8; mad.wide.u32 %rd1, %t, 4, %a0;"
        "@%p1 ld.global.u32 %r1, [%rd1]; setp.ne.u32 %p2, %t, 3; @%p2 st.global.u32 [%out], %r1;",
        values,
    )
    expected = np.where(LANES < 8, LANES + 5, 77)
    expected[3] = 0
    assert found.tolist() == expected.tolist()


def test_lanes_of_one_load_reach_different_arrays() -> None:
    found = run(
        "and.b32 %r1, %t, 1; setp.eq.u32 %p1, %r1, 0; selp.b64 %rd1, %a0, %a1, %p1;"
        "mad.wide.u32 %rd1, %t, 4, %rd1; ld.global.u32 %r2, [%rd1]; st.global.u32 [%out], %r2;",
        np.arange(32, dtype=np.uint32),
        np.arange(32, dtype=np.uint32) + 100,
    )
    assert found.tolist() == np.where(LANES % 2, LANES + 100, LANES).tolist()


@pytest.mark.parametrize("generic", [False, True])
def test_sums_of_f32_flush_subnormals_in_global_memory_alone(generic: bool) -> None:
    tiny = np.float32(2.0**-130)
    old = np.array([tiny, -tiny, 1, 1.5 * 2.0**-126, -tiny], np.float32)
    new = np.array([tiny, -tiny, tiny, -(2.0**-126), 1], np.float32)
    start = np.zeros((4, 32), np.float32)
    start[:, :5] = [old, new, old, old]
    in_global, in_shared = ("red", "atom") if generic else ("red.global", "atom.shared")
    shared = "cvta.shared.u64 %rd3, %rd2;" if generic else "mov.u64 %rd3, %rd2;"
    kernel = Run(
        "mad.wide.u32 %rd1, %t, 4, %a0; ld.global.u32 %r1, [%rd1+128];"
        "mov.u32 %r2, s; mad.wide.u32 %rd2, %t, 4, 0; cvt.u64.u32 %rd4, %r2;"
        f"add.u64 %rd2, %rd2, %rd4; {shared}"
        "ld.global.u32 %r3, [%rd1]; st.shared.u32 [%rd2], %r3;"
        f"{in_global}.add.f32 [%rd1+256], %r1; {in_shared}.add.f32 %r4, [%rd3], %r1;"
        "ld.shared.u32 %r3, [%rd2]; st.global.u32 [%rd1+384], %r3;",
        start,
        variables=SHARED,
    )
    kernel.run()
    found = kernel.inputs[0].data[:512].view(np.float32).reshape(4, 32)[:, :5]
    np.testing.assert_array_equal(found[3], old + new)
    np.testing.assert_array_equal(found[2], [0, 0, 1, 0, 1])
    np.testing.assert_array_equal(np.signbit(found[2]), [False, True, False, False, False])
