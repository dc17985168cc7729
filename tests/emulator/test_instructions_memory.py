"""Loads, stores and atomic operations: widths, spaces, vectors, and what reaches outside."""

from __future__ import annotations

import numpy as np
import pytest
from small_kernels import Run, run

from pallasc.emulator.machine.faults import Fault
from pallasc.errors import UnsupportedError

LANES = np.arange(32, dtype=np.int64)
SHARED = ".shared .align 16 .b8 s[2048];"


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("u8", "u1"), ("s8", "i1"), ("u16", "u2"), ("s16", "i2"), ("u32", "u4"), ("s32", "i4")],
)
@pytest.mark.parametrize("space", ["global", ""])
def test_a_narrow_load_is_extended_as_its_type_says(kind: str, dtype: str, space: str) -> None:
    values = np.random.default_rng(1).integers(0, 1 << 32, 32, np.uint32).astype(dtype)
    size = values.itemsize
    where = f"ld.{space}.{kind}" if space else f"ld.{kind}"
    found = run(
        f"mad.wide.u32 %rd1, %t, {size}, %a0; {where} %r1, [%rd1]; st.global.u32 [%out], %r1;",
        values,
    )
    assert found.view(np.int32).tolist() == values.astype(np.int64).astype(np.int32).tolist()


@pytest.mark.parametrize(("kind", "size"), [("b8", 1), ("b16", 2), ("b32", 4), ("b64", 8)])
def test_a_store_writes_its_width_and_nothing_beside(kind: str, size: int) -> None:
    kernel = Run(
        f"mul.lo.u32 %r1, %t, 0x01010101; mov.b64 %rd2, {{%r1, %r1}};"
        f"mad.wide.u32 %rd1, %t, 16, %a0; st.global.{kind} [%rd1+8], %rd2;",
        np.full(512, 0xEE, np.uint8),
    )
    kernel.run()
    found = kernel.inputs[0].data[:512].reshape(32, 16)
    expected = np.full((32, 16), 0xEE, np.uint8)
    expected[:, 8 : 8 + size] = LANES[:, None]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("vector", "kind", "prefix"), [("v2", "b32", "r"), ("v4", "b32", "r")])
@pytest.mark.parametrize("space", ["global", "shared"])
def test_vectors_are_in_the_order_of_memory(
    vector: str, kind: str, prefix: str, space: str
) -> None:
    count = int(vector[1:])
    names = ", ".join(f"%{prefix}{10 + n}" for n in range(count))
    turned = ", ".join(f"%{prefix}{10 + n}" for n in reversed(range(count)))
    base = "mov.u32 %r1, s; mad.lo.u32 %r1, %t, 16, %r1;" if space == "shared" else ""
    at = "%r1" if space == "shared" else "%rd1"
    values = np.arange(32 * count, dtype=np.uint32)
    kernel = Run(
        f"mad.wide.u32 %rd1, %t, {4 * count}, %a0; {base}"
        f"ld.global.{vector}.{kind} {{{names}}}, [%rd1];"
        f"st.{space}.{vector}.{kind} [{at}], {{{turned}}};"
        f"ld.{space}.{vector}.{kind} {{{names}}}, [{at}];"
        f"st.global.{vector}.{kind} [%rd1], {{{names}}};",
        values,
        variables=SHARED,
    )
    kernel.run()
    found = kernel.inputs[0].data[: values.nbytes].view(np.uint32).reshape(32, count)
    assert found.tolist() == values.reshape(32, count)[:, ::-1].tolist()


def test_vectors_of_doubles_and_of_bytes() -> None:
    values = np.arange(64, dtype=np.uint64) << 33
    found = run(
        "mad.wide.u32 %rd1, %t, 16, %a0; ld.global.v2.b64 {%rd2, %rd3}, [%rd1];"
        "add.s64 %rd2, %rd2, %rd3; st.global.b64 [%out], %rd2;",
        values,
        width=8,
    )
    assert found.tolist() == values.reshape(32, 2).sum(1).tolist()
    small = np.arange(128, dtype=np.uint8)
    found = run(
        "mad.wide.u32 %rd1, %t, 4, %a0; ld.global.v4.u8 {%r1, %r2, %r3, %r4}, [%rd1];"
        "mad.lo.u32 %r1, %r4, 1000, %r1; st.global.u32 [%out], %r1;",
        small,
    )
    assert found.tolist() == (small[::4] + 1000 * small[3::4].astype(np.uint32)).tolist()


def test_sixteen_bytes_in_one_register() -> None:
    values = np.arange(64, dtype=np.uint64) + (7 << 60)
    found = run(
        "mad.wide.u32 %rd1, %t, 16, %a0; ld.global.b128 %q1, [%rd1]; mov.b128 {%rd2, %rd3}, %q1;"
        "sub.s64 %rd2, %rd3, %rd2; st.global.b64 [%out], %rd2;",
        values,
        width=8,
    )
    assert found.tolist() == [1] * 32


def test_local_memory_belongs_to_each_lane() -> None:
    found = run(
        "mov.u64 %rd1, l; and.b32 %r1, %t, 3; mad.wide.u32 %rd1, %r1, 4, %rd1;"
        "st.local.u32 [%rd1], %t; ld.local.u32 %r2, [%rd1];"
        "cvta.local.u64 %rd2, %rd1; ld.u32 %r3, [%rd2]; mad.lo.u32 %r2, %r3, 100, %r2;"
        "st.global.u32 [%out], %r2;",
        variables=".local .align 16 .b8 l[16];",
    )
    assert found.tolist() == (LANES * 101).tolist()


def test_a_generic_address_finds_shared_memory_and_tells_its_space() -> None:
    found = run(
        "mov.u32 %r1, s; cvt.u64.u32 %rd1, %r1; cvta.shared.u64 %rd2, %rd1;"
        "mad.wide.u32 %rd3, %t, 4, %rd2; mul.lo.u32 %r2, %t, 3; st.u32 [%rd3], %r2;"
        "mad.lo.u32 %r3, %t, 4, %r1; ld.shared.u32 %r4, [%r3];"
        "isspacep.shared %p1, %rd3; isspacep.global %p2, %rd3; isspacep.global %p3, %out;"
        "isspacep.shared %p4, %out; selp.u32 %r5, 1000, 0, %p1; @%p2 mov.u32 %r5, 9;"
        "@!%p3 mov.u32 %r5, 9; @%p4 mov.u32 %r5, 9; cvta.to.shared.u64 %rd4, %rd2;"
        "setp.ne.u64 %p5, %rd4, %rd1; @%p5 mov.u32 %r5, 9;"
        "add.u32 %r4, %r4, %r5; st.global.u32 [%out], %r4;",
        variables=SHARED,
    )
    assert found.tolist() == (LANES * 3 + 1000).tolist()


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


@pytest.mark.parametrize(
    ("operation", "kind", "start", "expected"),
    [
        ("add", "u32", 5, 5 + 496),
        ("min", "s32", 5, -31),
        ("max", "u32", 5, 31),
        ("or", "b32", 64, 95),
        ("and", "b32", 0xFF, 0),
        ("xor", "b32", 7, 7),
        ("exch", "b32", 7, 31),
    ],
)
@pytest.mark.parametrize("space", ["global", "shared"])
def test_atomic_operations_of_all_lanes_on_one_word(
    operation: str, kind: str, start: int, expected: int, space: str
) -> None:
    value = "neg.s32 %r1, %t;" if operation == "min" else "mov.u32 %r1, %t;"
    at = "[%a0]" if space == "global" else "[s]"
    kernel = Run(
        f"{value} mov.u32 %r3, {start}; st.{space}.u32 {at}, %r3; bar.warp.sync -1;"
        f"atom.{space}.{operation}.{kind} %r2, {at}, %r1; ld.{space}.u32 %r3, {at};"
        "st.global.u32 [%a0], %r3; st.global.u32 [%out], %r2;",
        np.zeros(1, np.uint32),
        variables=SHARED,
    )
    before = kernel.run().view(np.int32)
    after = kernel.inputs[0].data[:4].view(np.int32)[0]
    assert after == expected
    assert before[0] == start  # lanes take their turns in order
    if operation == "add":
        assert before.tolist() == (start + np.cumsum(LANES) - LANES).tolist()


def test_compare_and_swap_gives_one_lane_the_word() -> None:
    kernel = Run(
        "add.u32 %r2, %t, 1; atom.global.cas.b32 %r1, [%a0], 0, %r2; st.global.u32 [%out], %r1;",
        np.zeros(1, np.uint32),
    )
    assert kernel.run().tolist() == [0] + [1] * 31
    assert kernel.inputs[0].data[:4].view(np.uint32)[0] == 1


def test_a_reduction_of_floats_and_of_packed_halves() -> None:
    kernel = Run(
        "cvt.rn.f32.u32 %r1, %t; red.global.add.f32 [%a0], %r1;"
        "cvt.rn.f16.u32 %h1, %t; mov.b32 %r2, {%h1, %h1};"
        "red.global.add.noftz.f16x2 [%a0+4], %r2;",
        np.zeros(2, np.uint32),
    )
    kernel.run()
    data = kernel.inputs[0].data[:8]
    assert data[:4].view(np.float32)[0] == 496
    assert data[4:].view(np.float16).tolist() == [496, 496]


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
