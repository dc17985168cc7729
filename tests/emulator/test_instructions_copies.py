"""Asynchronous copies and stores, memory of several devices, launch control, printing."""

from __future__ import annotations

import numpy as np
import pytest
from opcode_cases_copies import Tensor
from small_kernels import Run, run

from pallasc.emulator.machine.machine import Policy
from pallasc.emulator.machine.memory import Fault
from pallasc.errors import UnsupportedError

S = ".shared .align 128 .b8 s[1024]; .shared .align 8 .b64 m;"
VALUES = np.arange(128, dtype=np.uint32) * 7 + 1
FIRST = "setp.eq.u32 %p8, %t, 0;"
PLACES = (
    "mov.u32 %r20, s; mad.lo.u32 %r21, %t, 16, %r20; mad.wide.u32 %rd20, %t, 16, %a0;"
    "mad.lo.u32 %r22, %t, 4, %r20;"
)
WAIT = "{name}: mbarrier.try_wait.parity.shared::cta.b64 %p9, [m], {parity}; @!%p9 bra {name};"


def test_copies_of_lanes_are_there_after_the_wait_for_their_group() -> None:
    lines = PLACES + (
        "cp.async.cg.shared.global [%r21], [%rd20], 16; cp.async.commit_group;"
        "cp.async.ca.shared.global [%r21+512], [%rd20], 4; cp.async.commit_group;{wait}"
        "ld.shared.u32 %r1, [%r21+12]; ld.shared.u32 %r2, [%r21+512];"
        "setp.eq.u32 %p1, %r2, 0xFFFFFFFF; @%p1 mov.u32 %r2, 0; mad.lo.u32 %r1, %r2, 1000, %r1;"
        "st.global.u32 [%out], %r1;"
    )
    fourth, first = VALUES[3::4].astype(np.int64), VALUES[::4].astype(np.int64)
    found = run(lines.format(wait="cp.async.wait_group 1;"), VALUES, variables=S)
    assert found.tolist() == fourth.tolist()
    for wait in ("cp.async.wait_group 0;", "cp.async.wait_all;"):
        found = run(lines.format(wait=wait), VALUES, variables=S)
        assert found.tolist() == (fourth + 1000 * first).tolist()
    found = run(lines.format(wait=""), VALUES, variables=S)
    assert found.tolist() == [0xFFFFFFFF] * 32


@pytest.mark.parametrize("more", ["%r5", "%p1"])
def test_a_copy_of_a_part_fills_up_with_zeros(more: str) -> None:
    found = run(
        PLACES + "and.b32 %r5, %t, 3; mul.lo.u32 %r5, %r5, 4; setp.lt.u32 %p1, %t, 16;"
        f"cp.async.ca.shared.global [%r21], [%rd20], 16, {more}; cp.async.wait_all;"
        "ld.shared.v4.u32 {%r1, %r2, %r3, %r4}, [%r21]; add.u32 %r1, %r1, %r2;"
        "add.u32 %r1, %r1, %r3; add.u32 %r1, %r1, %r4; st.global.u32 [%out], %r1;",
        VALUES,
        variables=S,
    )
    rows = VALUES.reshape(32, 4)
    lengths = np.arange(32) % 4 if more == "%r5" else np.where(np.arange(32) < 16, 0, 4)
    assert found.tolist() == [int(row[:n].sum()) for row, n in zip(rows, lengths, strict=True)]


def test_a_bulk_copy_out_is_read_when_a_wait_asks_for_its_reads() -> None:
    lines = (
        "mov.u32 %r20, s; mad.lo.u32 %r22, %t, 4, %r20; st.shared.u32 [%r22], %t; bar.sync 0;"
        + FIRST
        + "fence.proxy.async.shared::cta;"
        "@%p8 cp.async.bulk.global.shared::cta.bulk_group [%outs], [%r20], 128;"
        "@%p8 cp.async.bulk.commit_group;{wait} bar.sync 0; mov.u32 %r1, 99;"
        "st.shared.u32 [%r22], %r1;"
    )
    for wait in ("@%p8 cp.async.bulk.wait_group.read 0;", "@%p8 cp.async.bulk.wait_group 0;"):
        assert run(lines.format(wait=wait), variables=S).tolist() == list(range(32))
    assert run(lines.format(wait=""), variables=S).tolist() == [99] * 32


def test_only_groups_older_than_the_newest_are_waited_for() -> None:
    found = run(
        "mov.u32 %r20, s; mad.lo.u32 %r22, %t, 4, %r20; st.shared.u32 [%r22], %t; bar.sync 0;"
        + FIRST
        + "@%p8 cp.async.bulk.global.shared::cta.bulk_group [%outs], [%r20], 64;"
        "@%p8 cp.async.bulk.commit_group; add.s64 %rd1, %outs, 64; add.u32 %r1, %r20, 64;"
        "@%p8 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 64;"
        "@%p8 cp.async.bulk.commit_group; @%p8 cp.async.bulk.wait_group.read 1; bar.sync 0;"
        "mov.u32 %r2, 99; st.shared.u32 [%r22], %r2;",
        variables=S,
    )
    assert found.tolist() == [*range(16), *[99] * 16]


@pytest.mark.parametrize(
    ("line", "rule", "words"),
    [
        ("[%r20], [%a0], 24, [m]", "misaligned", "multiple of 16"),
        ("[%r20], [%a0+8], 16, [m]", "misaligned", "multiple of 16"),
        ("[%r20], [%a0+512], 16, [m]", "out-of-bounds", "offset 512 of .*, which has 512 bytes"),
        ("[%r20+4096], [%a0], 16, [m]", "out-of-bounds", "of shared memory, which has"),
    ],
)
def test_a_bulk_copy_that_reaches_outside_is_a_fault(line: str, rule: str, words: str) -> None:
    with pytest.raises(Fault, match=words) as caught:
        run(
            "mov.u32 %r20, s;" + FIRST + "@%p8 mbarrier.init.shared::cta.b64 [m], 1;"
            f"@%p8 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes {line};",
            VALUES,
            variables=S,
        )
    assert caught.value.rule == rule
    assert "cp.async.bulk" in caught.value.instruction.text  # type: ignore[union-attr]


def test_an_address_of_one_device_is_not_one_of_all() -> None:
    with pytest.raises(Fault, match="is not a multicast address"):
        run("multimem.st.weak.global.b32 [%a0], %t;", VALUES)


CANCEL = (
    FIRST + "@%p8 mbarrier.init.shared::cta.b64 [m], 1;"
    "@%p8 mbarrier.arrive.expect_tx.shared::cta.b64 _, [m], 16; bar.sync 0;"
    "@%p8 clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 "
    "[s], [m];" + WAIT.format(name="TRY", parity=0) + "ld.shared.b128 %q1, [s]; mov.u32 %r1, 55555;"
    "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p1, %q1;"
    "@%p1 clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r1, %q1;"
    "@%p1 clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r2, %r3, %r4, _}, %q1;"
    "@%p1 mad.lo.u32 %r1, %r3, 1000, %r1; @%p1 mad.lo.u32 %r1, %r4, 1000, %r1;"
    "@%p1 setp.ne.u32 %p2, %r2, %r1; @!%p1 setp.ne.u32 %p2, %r1, %r1; @%p2 mov.u32 %r1, 66666;"
    "st.global.u32 [%out], %r1;"
)  # fmt: skip


def test_a_block_takes_over_the_last_of_those_that_wait_for_room() -> None:
    blocks = 148 + 2  # with so much shared memory one fits on a multiprocessor
    room = ".shared .align 16 .b8 room[200000];"
    found = run(CANCEL, blocks=blocks, variables=S + room).reshape(blocks, 32)[:, 0]
    assert found[:4].tolist() == [blocks - 1, blocks - 2, 55555, 55555]
    assert found[-2:].tolist() == [0, 0]  # they were never started


@pytest.mark.parametrize("leader", [0, 1])
def test_a_multicast_for_pairs_signals_the_block_of_one_parity_for_both(leader: int) -> None:
    """Both blocks of the pair get the box, and the leader's mbarrier the bytes of both."""
    tensor = Tensor("cp.async.bulk.tensor.1d")
    kernel = Run(
        f"mov.u32 %r1, m; mapa.shared::cluster.u32 %r2, %r1, {leader}; setp.eq.u32 %p8, %t, 0;"
        "@%p8 mbarrier.init.shared::cta.b64 [m], 1; fence.mbarrier_init.release.cluster;"
        f"@%p8 mbarrier.arrive.expect_tx.shared::cta.b64 _, [m], 256;"
        f"setp.eq.u32 %p1, %b, {leader};"
        "barrier.cluster.arrive; barrier.cluster.wait; mov.b16 %h1, 3; and.pred %p2, %p1, %p8;"
        "@%p2 cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        f".multicast::cluster.cta_group::2 [s], {tensor.where}, [%r2], %h1;\n@!%p1 bra MET;"
        "\nTRY:\n mbarrier.try_wait.parity.shared::cta.b64 %p9, [m], 0; @!%p9 bra TRY;"
        "\nMET:\n barrier.cluster.arrive; barrier.cluster.wait;"
        "mov.u32 %r3, s; mad.lo.u32 %r3, %t, 4, %r3; ld.shared.u32 %r4, [%r3];"
        "st.global.u32 [%out], %r4;",
        *tensor.arrays, blocks=2, cluster=2, variables=S,
    )  # fmt: skip
    tensor.prepare(kernel)
    assert kernel.run().tolist() == [*tensor.values, *tensor.values]


@pytest.mark.parametrize("group", ["", ".cta_group::2"])
def test_only_a_copy_for_pairs_signals_the_other_block(group: str) -> None:
    tensor = Tensor("cp.async.bulk.tensor.1d")
    kernel = Run(
        "mov.u32 %r1, m; mapa.shared::cluster.u32 %r2, %r1, 0; setp.eq.u32 %p8, %t, 0;"
        "setp.eq.u32 %p1, %b, 0; and.pred %p2, %p1, %p8;"
        "@%p8 mbarrier.init.shared::cta.b64 [m], 1; fence.mbarrier_init.release.cluster;"
        "@%p2 mbarrier.arrive.expect_tx.shared::cta.b64 _, [m], 256;"
        "barrier.cluster.arrive; barrier.cluster.wait;"
        "@%p8 cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        f"{group} [s], {tensor.where}, [%r2];\n@!%p1 bra MET;"
        "\nTRY:\n mbarrier.try_wait.parity.shared::cta.b64 %p9, [m], 0; @!%p9 bra TRY;"
        "\nMET:\n barrier.cluster.arrive; barrier.cluster.wait;"
        "mov.u32 %r3, s; mad.lo.u32 %r3, %t, 4, %r3; ld.shared.u32 %r4, [%r3];"
        "st.global.u32 [%out], %r4;",
        *tensor.arrays, blocks=2, cluster=2, variables=S,
    )  # fmt: skip
    tensor.prepare(kernel)
    if group:
        assert kernel.run().tolist() == [*tensor.values, *tensor.values]
        return
    with pytest.raises(Fault, match=r"in block 0 of the cluster, and the destination in block 1"):
        kernel.run()


PRINT = """
.extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a);
.global .align 1 .b8 text[32] = {37, 100, 32, 37, 117, 32, 37, 46, 50, 102, 32, 37, 108, 108, 100,
  10, 0};
"""  # "%d %u %.2f %lld" and the end of a line


def test_lanes_print_their_own_values() -> None:
    kernel = Run(
        "setp.lt.u32 %p1, %t, 2; @!%p1 ret; neg.s32 %r1, %t; mov.b64 %rd5, 0x4008000000000000;"
        "mov.b64 %rd6, -5; mov.u64 %rd1, l; cvta.local.u64 %rd2, %rd1;"
        "st.local.u32 [%rd1], %r1; st.local.u32 [%rd1+4], %r1; st.local.b64 [%rd1+8], %rd5;"
        "st.local.b64 [%rd1+16], %rd6; mov.u64 %rd3, text; cvta.global.u64 %rd4, %rd3;"
        "{ .param .b64 p0; .param .b64 p1; .param .b32 q; st.param.b64 [p0], %rd4;"
        "st.param.b64 [p1], %rd2; call.uni (q), vprintf, (p0, p1); ld.param.b32 %r9, [q]; }",
        module=PRINT,
        variables=".local .align 8 .b8 l[32];",
    )
    kernel.run()
    assert kernel.machine.printed == ["0 0 3.00 -5\n", "-1 4294967295 3.00 -5\n"]


ASSERT = """
.extern .func __assertfail (.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d,
  .param .b64 e);
.global .align 1 .b8 text[8] = {98, 97, 100, 0};
"""


def test_a_failed_assertion_is_told_with_its_thread_and_words() -> None:
    with pytest.raises(Fault, match="an assertion failed in thread 37: bad") as caught:
        run(
            "setp.ne.u32 %p1, %t, 37; @%p1 bra END; mov.u64 %rd3, text; cvta.global.u64 %rd4, %rd3;"
            "{ .param .b64 p0; .param .b64 p1; .param .b32 p2; .param .b64 p3; .param .b64 p4;"
            "st.param.b64 [p0], %rd4; st.param.b64 [p1], %rd4; st.param.b32 [p2], 3;"
            "st.param.b64 [p3], %rd4; st.param.b64 [p4], 1;"
            "call.uni __assertfail, (p0, p1, p2, p3, p4); }\nEND:\n",
            threads=64,
            module=ASSERT,
        )
    assert caught.value.rule == "assertion"


def test_a_trap_is_told() -> None:
    with pytest.raises(Fault, match="the kernel executes trap"):
        run("setp.eq.u32 %p1, %t, 9; @%p1 trap;")


@pytest.mark.parametrize(
    "line",
    [
        "cp.async.bulk.global.global [%a0], [%a0], 16;",
        "cp.async.bulk.prefetch.L9.global [%a0], 16;",
        "cp.sync.shared.global [%r1], [%a0], 16;",
        "multimem.mix.global.b32 [%a0], %r1;",
        "clusterlaunchcontrol.query_cancel.count.b32.b128 %r1, %q1;",
        "call.uni other, (%r1);",
    ],
)
def test_what_is_not_known_is_refused_by_name(line: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        run(line, VALUES)
    assert line.split()[0].rstrip(";") in str(caught.value)


def test_what_is_eager_is_there_at_once() -> None:
    found = run(
        "mov.u32 %r20, s; mad.lo.u32 %r22, %t, 4, %r20;" + FIRST
        + "@%p8 mbarrier.init.shared::cta.b64 [m], 1; @%p8 cp.async.bulk.shared::cluster.global."
        "mbarrier::complete_tx::bytes [%r20], [%a0], 128, [m]; ld.shared.u32 %r1, [%r22];"
        "st.global.u32 [%out], %r1;",
        VALUES,
        variables=S,
        policy=Policy(eagerness=1),
    )  # fmt: skip
    assert found.tolist() == VALUES[:32].tolist()
