"""Asynchronous copies and stores, memory of several devices, launch control, printing."""

import numpy as np
import pytest
from opcode_cases_copies import Tensor
from small_kernels import Run, run

from pallasc.emulator.machine.memory import Fault

S = ".shared .align 128 .b8 s[1024]; .shared .align 8 .b64 m;"
VALUES = np.arange(128, dtype=np.uint32) * 7 + 1
FIRST = "setp.eq.u32 %p8, %t, 0;"
PLACES = (
    "mov.u32 %r20, s; mad.lo.u32 %r21, %t, 16, %r20; mad.wide.u32 %rd20, %t, 16, %a0;"
    "mad.lo.u32 %r22, %t, 4, %r20;"
)


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
    some = "setp.ge.u32 %p2, %t, 16; @%p2 cp.async.wait_all;"
    found = run(lines.format(wait=some), VALUES, variables=S)
    assert found.tolist()[16:] == (fourth + 1000 * first).tolist()[16:]
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


COPY = "cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"


@pytest.mark.parametrize(
    ("leader", "issuer", "options", "mask", "is_fault"),
    [
        (0, "%p3", ".multicast::cluster.cta_group::2", ", %h1", False),
        (1, "%p3", ".multicast::cluster.cta_group::2", ", %h1", False),
        (0, "%p8", ".cta_group::2", "", False),
        (0, "%p8", "", "", True),
    ],
)
def test_only_a_copy_for_pairs_signals_one_block_for_both(
    leader: int, issuer: str, options: str, mask: str, is_fault: bool
) -> None:
    """Both blocks get the box, by one multicast or a copy each; one mbarrier gets all bytes."""
    tensor = Tensor("cp.async.bulk.tensor.1d")
    kernel = Run(
        f"mov.u32 %r1, m; mapa.shared::cluster.u32 %r2, %r1, {leader}; mov.b16 %h1, 3;"
        f"setp.eq.u32 %p8, %t, 0; setp.eq.u32 %p1, %b, {leader}; and.pred %p2, %p1, %p8;"
        "setp.eq.u32 %p3, %b, 0; and.pred %p3, %p3, %p8;"
        "@%p8 mbarrier.init.shared::cta.b64 [m], 1; fence.mbarrier_init.release.cluster;"
        "@%p2 mbarrier.arrive.expect_tx.shared::cta.b64 _, [m], 256;"
        "barrier.cluster.arrive; barrier.cluster.wait;"
        f"@{issuer} {COPY}{options} [s], {tensor.where}, [%r2]{mask}; @!%p1 bra MET;"
        "\nTRY:\n mbarrier.try_wait.parity.shared::cta.b64 %p9, [m], 0; @!%p9 bra TRY;"
        "\nMET:\n barrier.cluster.arrive; barrier.cluster.wait;"
        "mov.u32 %r3, s; mad.lo.u32 %r3, %t, 4, %r3; ld.shared.u32 %r4, [%r3];"
        "st.global.u32 [%out], %r4;",
        *tensor.arrays, blocks=2, cluster=2, variables=S,
    )  # fmt: skip
    tensor.prepare(kernel)
    if not is_fault:
        assert kernel.run().tolist() == [*tensor.values, *tensor.values]
        return
    with pytest.raises(Fault, match=r"in block 0 of the cluster, and the destination in block 1"):
        kernel.run()
