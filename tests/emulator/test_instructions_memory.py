"""Loads, stores and atomic operations: widths, spaces, vectors, and what reaches outside."""

from __future__ import annotations

import numpy as np
import pytest
from small_kernels import Run, run

from pallasc.emulator.machine.memory import Fault
from pallasc.errors import UnsupportedError

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


@pytest.mark.parametrize(
    ("lines", "rule", "words"),
    [
        ("ld.global.u32 %r1, [%a0+2];", "misaligned", "an access of 4 bytes at the misaligned"),
        ("ld.global.v2.b32 {%r1, %r2}, [%a0+4];", "misaligned", "an access of 8 bytes"),
        ("ld.global.u32 %r1, [%a0+64];", "out-of-bounds", "offset 64 of .*, which has 64 bytes"),
        ("st.global.v4.b32 [%a0+64], {%r1, %r1, %r1, %r1};", "out-of-bounds", "16 bytes"),
        ("mov.b64 %rd1, 0; ld.global.u32 %r1, [%rd1];", "out-of-bounds", "which is not allocated"),
        ("mov.u32 %r1, s; ld.shared.u32 %r2, [%r1+2048];", "out-of-bounds", "of shared memory"),
        ("mov.u64 %rd1, l; st.local.u32 [%rd1+4096], %r1;", "out-of-bounds", "of local memory"),
        ("atom.global.add.u32 %r1, [%a0+1], 1;", "misaligned", "4 bytes"),
        ("red.shared.add.u32 [s+4096], 1;", "out-of-bounds", "of shared memory"),
    ],
)
def test_what_is_misaligned_or_outside_is_a_fault(lines: str, rule: str, words: str) -> None:
    with pytest.raises(Fault, match=words) as caught:
        run(lines, np.zeros(64, np.uint8), variables=SHARED + " .local .align 4 .b8 l[16];")
    assert caught.value.rule == rule
    assert caught.value.instruction is not None
    assert caught.value.instruction.text.split()[0] in lines
    assert caught.value.actor is not None


def test_a_lane_that_is_not_at_work_may_have_any_address() -> None:
    found = run(
        "mov.b64 %rd1, 0; setp.eq.u32 %p1, %t, 0; @%p1 mov.b64 %rd1, %a0; mov.u32 %r1, 1;"
        "@%p1 ld.global.u32 %r1, [%rd1]; st.global.u32 [%out], %r1;",
        np.array([9], np.uint32),
    )
    assert found.tolist() == [9] + [1] * 31


def test_compare_and_swap_gives_one_lane_the_word() -> None:
    kernel = Run(
        "add.u32 %r2, %t, 1; atom.global.cas.b32 %r1, [%a0], 0, %r2; st.global.u32 [%out], %r1;",
        np.zeros(1, np.uint32),
    )
    assert kernel.run().tolist() == [0] + [1] * 31
    assert kernel.inputs[0].data[:4].view(np.uint32)[0] == 1


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


@pytest.mark.parametrize(
    "line",
    [
        "ld.global.L3::warm.u32 %r1, [%a0];",
        "ld.global.v3.u32 {%r1, %r2, %r3}, [%a0];",
        "st.quick.u32 [%a0], %r1;",
        "red.global.v2.add.f32 [%a0], {%r1, %r2};",
    ],
)
def test_a_part_that_is_not_known_is_refused_with_its_line(line: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        run(line, np.zeros(64, np.uint8))
    assert line.split()[0] in str(caught.value)
