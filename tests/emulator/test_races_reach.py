"""Races beyond one block: blocks that have ended, scopes, several devices, neighboring bytes."""

import numpy as np
import pytest
from small_kernels import Run

from pallasc.emulator.machine.machine import Policy
from pallasc.emulator.races.observer import Races
from pallasc.emulator.races.threads import Finding
from pallasc.specs.artifacts.plan import MAP_BYTES, TensorMap

POLICIES = [Policy(), Policy(seed=1, shuffle=True, eagerness=0.5)]
VARIABLES = ".shared .align 16 .b8 s[64]; .shared .align 8 .b64 m;"
TOGETHER = "barrier.cluster.arrive.release; barrier.cluster.wait.acquire;"
IN_TIME = "barrier.cluster.arrive.relaxed; barrier.cluster.wait.acquire;"
NEIGHBOUR = "mov.u32 %r9, %cluster_ctarank; xor.b32 %r9, %r9, 1;"
ONE = "setp.eq.u32 %p9, %t, 0;"
WAIT = "WAIT: mbarrier.try_wait.parity.shared.b64 %p8, [m], 0; @!%p8 bra WAIT;"


def found(kernel: Run) -> list[Finding]:
    """Return what the races of a run are."""
    races = Races()
    kernel.machine.observer = races
    kernel.run()
    return races.findings


def of_pair(body: str, policy: Policy) -> set[str]:
    kernel = Run(body, blocks=2, cluster=2, variables=VARIABLES, policy=policy)
    return {finding.rule for finding in found(kernel)}


READS = (
    "st.shared.u32 [s], %b;" + TOGETHER + NEIGHBOUR + "mov.u32 %r1, s;"
    "mapa.shared::cluster.u32 %r2, %r1, %r9; ld.shared::cluster.u32 %r3, [%r2];"
    "st.global.u32 [%out], %r3;"
)
ARRIVES = (
    ONE + "@%p9 mbarrier.init.shared::cta.b64 [m], 1; fence.mbarrier_init.release.cluster;"
    + TOGETHER + NEIGHBOUR + "mov.u32 %r1, m; mapa.shared::cluster.u32 %r2, %r1, %r9;"
    "@%p9 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r2];"
)  # fmt: skip
COPIES = (
    "mov.u32 %r4, 7; st.shared.v4.u32 [s], {%r4, %r4, %r4, %r4}; fence.proxy.async.shared::cta;"
    + ONE + "@%p9 mbarrier.init.shared::cta.b64 [m], 1; fence.mbarrier_init.release.cluster;"
    "@%p9 mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [m], 16;"
    + TOGETHER + NEIGHBOUR + "mov.u32 %r1, s; mov.u32 %r2, m;"
    "mapa.shared::cluster.u32 %r3, %r1, %r9; mapa.shared::cluster.u32 %r2, %r2, %r9;"
    "add.u32 %r3, %r3, 32;"
    "@%p9 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
    " [%r3], [%r1], 16, [%r2];"
)  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("body", "last"),
    [
        (READS, IN_TIME),
        (READS, TOGETHER),
        (ARRIVES, WAIT),
        (ARRIVES, TOGETHER),
        (COPIES, WAIT + TOGETHER),
    ],
)
def test_a_block_stays_for_as_long_as_others_reach_its_memory(
    body: str, last: str, policy: Policy
) -> None:
    assert of_pair(body + last, policy) == set()
    assert "block-ended" in of_pair(body, policy)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_block_stays_until_its_copy_to_another_is_over(policy: Policy) -> None:
    assert of_pair(COPIES + WAIT, policy) == {"block-ended"}


def test_a_block_that_may_have_ended_is_named() -> None:
    (first, *_) = found(Run(READS, blocks=2, cluster=2, variables=VARIABLES))
    assert first.message == (
        "block (0, 0, 0) may end before the load accesses its shared memory: nothing makes the "
        "block wait for it"
    )
    assert first.second.instruction.text.startswith("ld.shared::cluster")


def passed_on(release: str, acquire: str, *, blocks: int, policy: Policy) -> list[Finding]:
    """Let the first warp store, signal, and the second read what it has stored."""
    which = "%b" if blocks == 2 else "%r8"
    body = (
        f"shr.u32 %r8, %t, 5; setp.eq.u32 %p1, {which}, 0; mov.u32 %r1, 1; @!%p1 bra AGAIN;"
        f"st.global.u32 [%a0], %r1; {release} bra END;\nAGAIN:\n {acquire}"
        "setp.eq.u32 %p2, %r2, 0; @%p2 bra AGAIN;"
        "ld.global.u32 %r3, [%a0]; st.global.u32 [%out], %r3;\nEND:\n"
    )
    body = body.replace(";", ";\n")  # findings tell lines
    word = np.zeros(1, np.uint32)
    return found(Run(body, word, word, threads=64 // blocks, blocks=blocks, policy=policy))


RED = "red.{}.global.add.u32 [%a1], %r1;"
LD = "ld.{}.global.u32 %r2, [%a1];"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("release", "acquire", "blocks", "is_enough"),
    [
        (RED.format("release.gpu"), LD.format("acquire.gpu"), 2, True),
        (RED.format("release.sys"), LD.format("acquire.gpu"), 2, True),
        (RED.format("release.cta"), LD.format("acquire.gpu"), 2, False),
        (RED.format("release.cluster"), LD.format("acquire.gpu"), 2, False),
        (RED.format("release.gpu"), LD.format("acquire.cta"), 2, False),
        (RED.format("release.cta"), LD.format("acquire.cta"), 1, True),
        ("fence.acq_rel.gpu;" + RED.format("relaxed.gpu"), LD.format("acquire.gpu"), 2, True),
        ("fence.acq_rel.cta;" + RED.format("relaxed.gpu"), LD.format("acquire.gpu"), 2, False),
        (
            RED.format("release.gpu"), LD.format("relaxed.gpu") + "fence.acq_rel.gpu;", 2, True,
        ),
        (
            RED.format("release.gpu"), LD.format("relaxed.gpu") + "fence.acq_rel.cta;", 2, False,
        ),
    ],
)  # fmt: skip
def test_a_signal_reaches_as_far_as_both_scopes(
    release: str, acquire: str, blocks: int, is_enough: bool, policy: Policy
) -> None:
    findings = passed_on(release, acquire, blocks=blocks, policy=policy)
    data = [finding for finding in findings if finding.second.instruction.text.endswith("[%a0]")]
    assert {finding.rule for finding in data} == (set() if is_enough else {"race"})


@pytest.mark.parametrize(("scope", "is_enough"), [("cta", False), ("gpu", True), ("sys", True)])
def test_atomic_operations_of_two_blocks_need_a_scope_with_both(
    scope: str, is_enough: bool
) -> None:
    body = f"mov.u32 %r1, 1; atom.relaxed.{scope}.global.add.u32 %r2, [%a0], %r1;"
    findings = found(Run(body, np.zeros(1, np.uint32), blocks=2))
    if is_enough:
        assert not findings
        return
    (finding,) = findings
    assert finding.rule == "race"
    assert finding.message == (
        "the atomic operation (.cta) and the atomic operation (.cta) race: their scopes do not "
        "include each other's threads"
    )


@pytest.mark.parametrize(
    ("access", "reads"),
    [
        ("multimem.st.weak.global.u32 [%rd1], %t;", True),
        ("multimem.red.relaxed.sys.global.add.u32 [%rd1], %t;", True),
        ("multimem.ld_reduce.weak.global.add.u32 %r1, [%rd1];", False),
    ],
)
def test_memory_of_all_devices_is_watched_on_each(access: str, reads: bool) -> None:
    other = "ld.global.u32 %r2, [%rd2];" if reads else "st.global.u32 [%rd2], %t;"
    for barrier in ("", "bar.sync 0;"):
        for member in ("%a0", "%a1"):
            body = (
                "ld.global.u64 %rd1, [%a2]; and.b32 %r7, %t, 31; shr.u32 %r8, %t, 5;"
                f"mad.wide.u32 %rd1, %r7, 4, %rd1; mad.wide.u32 %rd2, %r7, 4, {member};"
                f"setp.eq.u32 %p1, %r8, 0; @!%p1 bra OTHER; {access} {barrier} bra END;"
                f"\nOTHER:\n {barrier} {other}\nEND:\n"
            )
            zeros = np.zeros(32, np.uint32)
            kernel = Run(body, zeros, zeros, np.zeros(1, np.uint64), threads=64)
            members = tuple(region.base for region in kernel.inputs[:2])
            address = kernel.machine.memory.map_multicast(members, 128)
            kernel.inputs[2].adopt(np.frombuffer(address.to_bytes(8, "little"), np.uint8))
            assert {f.rule for f in found(kernel)} == (set() if barrier else {"race"})


SHARED = ".shared .align 128 .b8 s[256]; .shared .align 8 .b64 m;"
# Each device copies shared memory into memory of the other one (%a0: behind its own signal), which
# reads it by a bulk copy as soon as it is told that it is there.
EXCHANGE = """
  setp.ne.u32 %p1, %t, 0; @%p1 bra END;
  mbarrier.init.shared::cta.b64 [m], 1; fence.mbarrier_init.release.cluster;
  st.shared.u32 [s], 5; st.shared.u32 [s+4], 6; st.shared.u32 [s+8], 7; st.shared.u32 [s+12], 8;
  fence.proxy.async.shared::cta;
  mov.u64 %rd5, s; add.u64 %rd4, %a0, 12; add.u64 %rd6, %outs, 16;
  cp.async.bulk.global.shared::cta.bulk_group [%rd4], [%rd5], 16;
  cp.async.bulk.commit_group;
  {wait}
  {signal}
POLL:
  ld.relaxed.sys.global.u32 %r1, [%outs+4]; setp.eq.u32 %p2, %r1, 0; @%p2 bra POLL;
  {fence}
  mov.u64 %rd7, m; add.u64 %rd5, %rd5, 128;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [m], 16;
  cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%rd5], [%rd6], 16, [%rd7];
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p3, [m], 0; @!%p3 bra WAIT;
END:
"""
RIGHT = {
    "wait": "cp.async.bulk.wait_group 0;",
    "signal": "red.release.sys.global.add.u32 [%a0], 1;",
    "fence": "fence.acq_rel.sys;",
}


def found_on_two(body: str) -> list[Finding]:
    run = Run(body, np.zeros(4, "u4"), variables=SHARED)
    run.machine.observer = races = Races()
    run.run_on_two_devices()
    return races.findings


def test_what_is_awaited_signalled_and_acquired_is_in_order() -> None:
    assert found_on_two(EXCHANGE.format(**RIGHT)) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"wait": "cp.async.bulk.wait_group.read 0;"},
        {"signal": "red.relaxed.sys.global.add.u32 [%a0], 1;"},
        {"fence": ""},
    ],
    ids=["the copy is not awaited", "the signal releases nothing", "nothing is acquired"],
)
def test_what_lacks_a_part_of_that_order_is_found(changes: dict[str, str]) -> None:
    findings = found_on_two(EXCHANGE.format(**{**RIGHT, **changes}))
    assert "async-write-not-awaited" in {finding.rule for finding in findings}


UNEVEN = (
    "setp.eq.u32 %p8, %t, 0; mad.lo.u32 %r1, %b, {stride}, 3; mov.u32 %r2, s;"
    "mad.lo.u32 %r3, %t, 4, %r2; mov.u32 %r4, %b; st.shared.u32 [%r3], %r4;"
    "fence.proxy.async.shared::cta; bar.sync 0;"
    "@%p8 cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%a1, {{%r1}}], [s];"
    "@%p8 cp.async.bulk.commit_group; @%p8 cp.async.bulk.wait_group 0;"
)
"""Each block stores 16 bytes, of other values than its neighbor, from an odd byte on."""


@pytest.mark.parametrize(("stride", "races"), [(16, False), (15, True)])
def test_stores_of_neighbors_at_odd_bytes_race_only_where_they_overlap(
    stride: int, races: bool
) -> None:
    array = np.zeros(64, np.uint8)
    arrays = array, np.zeros(MAP_BYTES, np.uint8)
    kernel = Run(UNEVEN.format(stride=stride), *arrays, blocks=2, variables=SHARED)
    described = TensorMap(
        buffer=0, offset=0, dtype="uint8", dims=(64,), strides=(), box=(16,), element_strides=(1,)
    )  # fmt: skip
    data = kernel.machine.tensor_maps.encode(described, kernel.inputs[0].base)
    kernel.inputs[1].data[:MAP_BYTES] = np.frombuffer(data, np.uint8)
    assert bool(found(kernel)) == races
