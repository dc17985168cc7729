"""Barriers of blocks and clusters, and mbarriers: phases, parity, counts and bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from small_kernels import Run, run

from pallasc.emulator.machine.machine import Deadlock, Policy
from pallasc.emulator.machine.memory import Fault
from pallasc.emulator.races.observer import Races

S = ".shared .align 16 .b8 s[1024]; .shared .align 8 .b64 m;"
WARPS = "shr.u32 %r30, %t, 5;"
POLICIES = [Policy(), Policy(seed=1, shuffle=True, eagerness=0.5)]


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_written_before_a_barrier_is_read_behind_it(policy: Policy) -> None:
    found = run(
        "mov.u32 %r1, s; mad.lo.u32 %r2, %t, 4, %r1; st.shared.u32 [%r2], %t; bar.sync 0;"
        "xor.b32 %r3, %t, 96; mad.lo.u32 %r3, %r3, 4, %r1; ld.shared.u32 %r4, [%r3];"
        "st.global.u32 [%out], %r4;",
        threads=128,
        variables=S,
        policy=policy,
    )
    assert found.tolist() == (np.arange(128) ^ 96).tolist()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_producer_arrives_and_a_consumer_waits_at_a_barrier_with_a_number(policy: Policy) -> None:
    found = run(
        WARPS + "setp.eq.u32 %p1, %r30, 0; mov.u32 %r1, 0; @!%p1 bra WAIT; mov.u32 %r1, 5;"
        "st.shared.u32 [s], %r1; bar.arrive 3, 64; bra END;\nWAIT:\n bar.sync 3, 64;"
        "ld.shared.u32 %r1, [s];\nEND:\n st.global.u32 [%out], %r1;",
        threads=64,
        variables=S,
        policy=policy,
    )
    assert found.tolist() == [5] * 64


@pytest.mark.parametrize(
    ("lines", "rule", "words"),
    [
        ("bar.sync 1, 48;", "barrier-count", "a barrier for 48 threads, which is not"),
        ("bar.sync 16;", "barrier-number", "there is no barrier 16"),
        (WARPS + "setp.eq.u32 %p1, %r30, 0; selp.u32 %r1, 64, 96, %p1; bar.sync 1, %r1;",
         "barrier-count", "96 threads at a barrier, and other warps expect 64"),
        ("bar.sync %t;", "not-uniform", "the number of the barrier differs"),
        ("barrier.cluster.wait.acquire;", "cluster-wait", "without an arrive before it"),
    ],
)  # fmt: skip
def test_a_barrier_that_is_used_wrongly_is_a_fault(lines: str, rule: str, words: str) -> None:
    with pytest.raises(Fault, match=words) as caught:
        run(lines, threads=64)
    assert caught.value.rule == rule


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("bar.sync 1, 96;", r"barrier 1 of the block \(64 of 96 threads have arrived\)"),
        (WARPS + "setp.eq.u32 %p1, %r30, 0; @%p1 bra L; bar.sync 2, 64; bra E;\nL:\n"
         "bar.sync 1, 64;\nE:\n", r"barrier 1 of the block \(32 of 64"),
    ],
)  # fmt: skip
def test_a_barrier_that_too_few_reach_is_a_deadlock(lines: str, words: str) -> None:
    with pytest.raises(Deadlock, match=words) as caught:
        run(lines, threads=64)
    assert len(caught.value.waiting) == 2
    assert caught.value.instruction is not None


def test_blocks_of_a_cluster_meet() -> None:
    found = run(
        "mov.u32 %r1, s; add.u32 %r2, %b, 40; st.shared.u32 [s], %r2;"
        "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
        "xor.b32 %r3, %b, 1; mapa.shared::cluster.u32 %r4, %r1, %r3;"
        "ld.shared::cluster.u32 %r5, [%r4]; cvt.u64.u32 %rd1, %r1; cvta.shared.u64 %rd1, %rd1;"
        "mapa.u64 %rd2, %rd1, %r3; ld.u32 %r6, [%rd2];"
        "mad.lo.u32 %r5, %r6, 100, %r5; barrier.cluster.arrive; barrier.cluster.wait;"
        "st.global.u32 [%out], %r5;",
        blocks=2,
        cluster=2,
        variables=S,
    )
    assert found.tolist() == [4141] * 32 + [4040] * 32


def test_a_block_that_is_not_of_the_cluster_is_a_fault() -> None:
    with pytest.raises(Fault, match="mapa names block 2 of a cluster of 2 blocks"):
        run(
            "mov.u32 %r1, s; mapa.shared::cluster.u32 %r2, %r1, 2;",
            blocks=2,
            cluster=2,
            variables=S,
        )


WAIT = "{name}: mbarrier.try_wait.parity.shared::cta.b64 %p9, [m], {parity}; @!%p9 bra {name};"
FIRST = "setp.eq.u32 %p8, %t, 0;"


@pytest.mark.parametrize("policy", POLICIES)
def test_threads_wait_until_all_arrivals_are_there(policy: Policy) -> None:
    found = run(
        FIRST + WARPS + "@%p8 mbarrier.init.shared::cta.b64 [m], 3; bar.sync 0; mov.u32 %r1, 0;"
        "setp.eq.u32 %p1, %r30, 0; @%p1 bra WAIT; and.b32 %r2, %t, 31; setp.ne.u32 %p2, %r2, 0;"
        "@%p2 bra END; mad.lo.u32 %r3, %r30, 4, 0; mov.u32 %r4, s; add.u32 %r4, %r4, %r3;"
        "st.shared.u32 [%r4], %t; mbarrier.arrive.shared::cta.b64 _, [m]; bra END;\nWAIT:\n"
        + WAIT.format(name="TRY", parity=0)
        + "ld.shared.u32 %r1, [s+4]; ld.shared.u32 %r5, [s+12]; mad.lo.u32 %r1, %r5, 1000, %r1;"
        "\nEND:\n"
        "st.global.u32 [%out], %r1;",
        threads=128,
        variables=S,
        policy=policy,
    )
    assert found[:32].tolist() == [96032] * 32


COPY = (
    "mov.u32 %r20, s; @%p8 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
    "[%r20], [%a0], 128, [m];"
)
EXPECT = "@%p8 mbarrier.arrive.expect_tx.shared::cta.b64 _, [m], {bytes};"
READ = "mad.lo.u32 %r21, %t, 4, %r20; ld.shared.u32 %r22, [%r21]; st.global.u32 [%out], %r22;"
VALUES = np.arange(32, dtype=np.uint32) * 3 + 1


@pytest.mark.parametrize("eagerness", [0, 1])
@pytest.mark.parametrize("first", ["announced", "copied"])
def test_bytes_may_arrive_before_or_after_they_are_announced(first: str, eagerness: int) -> None:
    steps = [EXPECT.format(bytes=128), COPY]
    lines = "".join(steps if first == "announced" else reversed(steps))
    found = run(
        FIRST + "@%p8 mbarrier.init.shared::cta.b64 [m], 1; bar.sync 0;" + lines
        + WAIT.format(name="TRY", parity=0) + READ,
        VALUES,
        variables=S,
        policy=Policy(eagerness=eagerness),
    )  # fmt: skip
    assert found.tolist() == VALUES.tolist()


def test_more_bytes_announced_than_come_are_waited_for_in_vain() -> None:
    with pytest.raises(Deadlock, match=r"1 of 1 arrivals, 16 bytes announced but not copied"):
        run(
            FIRST + "@%p8 mbarrier.init.shared::cta.b64 [m], 1; bar.sync 0;"
            + EXPECT.format(bytes=144) + COPY + WAIT.format(name="TRY", parity=0) + READ,
            VALUES,
            variables=S,
        )  # fmt: skip


def test_without_a_wait_the_bytes_are_not_there_yet() -> None:
    found = run(
        FIRST + "@%p8 mbarrier.init.shared::cta.b64 [m], 1; bar.sync 0;"
        + EXPECT.format(bytes=128) + COPY + READ,
        VALUES,
        variables=S,
    )  # fmt: skip
    assert found.tolist() == [0xFFFFFFFF] * 32


@pytest.mark.parametrize(
    ("lines", "rule", "words"),
    [
        ("mbarrier.arrive.shared::cta.b64 _, [m];", "no-mbarrier", "no mbarrier is initialized"),
        ("@%p8 mbarrier.init.shared::cta.b64 [m], 8; bar.sync 0;"
         "mbarrier.arrive.shared::cta.b64 _, [m];",
         "too-many-arrivals", "mbarrier in phase 0: only 8 of its 8 arrivals are left"),
        ("@%p8 mbarrier.init.shared::cta.b64 [m], 128; bar.sync 0;"
         "@%p8 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [m], 16;"
         "mbarrier.arrive.shared::cta.b64 _, [m], 4; mbarrier.arrive.shared::cta.b64 _, [m];",
         "too-many-arrivals", r"32 arrivals at an mbarrier in phase 0: all its 128 arrivals "
         r"\(num_arrivals=1 with 128 threads each\) have already happened"),
        ("@%p8 mbarrier.init.shared::cta.b64 [m], 0;", "mbarrier-count", "cannot expect 0"),
        ("@%p8 mbarrier.init.shared::cta.b64 [m+4], 1;", "misaligned", "invalid shared address"),
        ("@%p8 mbarrier.init.shared::cta.b64 [m], 1; @%p8 mbarrier.inval.shared::cta.b64 [m];"
         "@%p8 mbarrier.arrive.shared::cta.b64 _, [m];", "no-mbarrier", "no mbarrier"),
        ("@%p8 mbarrier.init.shared::cta.b64 [m], 1;"
         "@%p8 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [m], 1048576;",
         "transaction-overflow", "1048576 bytes"),
    ],
)  # fmt: skip
def test_an_mbarrier_that_is_used_wrongly_is_a_fault(lines: str, rule: str, words: str) -> None:
    with pytest.raises(Fault, match=words) as caught:
        run(FIRST + lines, variables=S)
    assert caught.value.rule == rule


def test_a_barrier_that_is_waited_for_by_the_wrong_parity_is_a_deadlock() -> None:
    with pytest.raises(Deadlock, match=r"parity 0 of the mbarrier .* 0 of 2 arrivals"):
        run(
            FIRST + "@%p8 mbarrier.init.shared::cta.b64 [m], 2; bar.sync 0;"
            + WAIT.format(name="TRY", parity=0),
            variables=S,
        )  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
def test_lanes_of_a_warp_may_wait_for_different_mbarriers(policy: Policy) -> None:
    """Half of the lanes wait for a phase that ends only after the other half has gone on."""
    found = run(
        "mov.u32 %r1, m; and.b32 %r2, %t, 1; mad.lo.u32 %r1, %r2, 8, %r1;"
        "setp.lt.u32 %p8, %t, 2; @%p8 mbarrier.init.shared::cta.b64 [%r1], 16; bar.sync 0;"
        "setp.eq.u32 %p1, %r2, 0; @%p1 mbarrier.arrive.shared::cta.b64 _, [%r1];"
        "\nTRY:\n mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r1], 0; @!%p9 bra TRY;"
        "@%p1 mbarrier.arrive.shared::cta.b64 _, [%r1+8]; st.global.u32 [%out], %t;",
        variables=".shared .align 8 .b64 m[2];",
        policy=policy,
    )
    assert found.tolist() == list(range(32))


def rules_of(body: str, *arrays: np.ndarray, **options: Any) -> set[str]:
    """Run lines, and return the rules of what the race detector finds."""
    kernel = Run(body, *arrays, variables=S, **options)
    kernel.machine.observer = observer = Races()
    kernel.run()
    return {finding.rule for finding in observer.findings}


WAITED = (
    FIRST + "@%p8 mbarrier.init.shared::cta.b64 [m], 1; fence.mbarrier_init.release.cluster;"
    "bar.sync 0; mov.u32 %r20, s;" + EXPECT.format(bytes=128)
    + COPY + "{wait} mad.lo.u32 %r21, %t, 4, %r20; ld.shared.u32 %r22, [%r21];"
    "add.u32 %r22, %r22, 1; st.global.u32 [%out], %r22;"
)  # fmt: skip
TRY = "mbarrier.try_wait.parity{order}.shared::cta.b64 %p9, [m], 0;"


@pytest.mark.parametrize("eagerness", [0, 1])
@pytest.mark.parametrize(
    ("wait", "is_right"),
    [
        ("TRY: " + TRY.format(order="") + "@!%p9 bra TRY;", True),
        (TRY.format(order=""), False),
        ("TRY: " + TRY.format(order=".relaxed.cta") + "@!%p9 bra TRY;", False),
        ("TRY: " + TRY.format(order=".relaxed.cta") + "@!%p9 bra TRY; fence.acq_rel.cta;", True),
    ],
)
def test_a_wait_orders_a_copy_only_if_its_result_is_read_and_it_acquires(
    wait: str, is_right: bool, eagerness: int
) -> None:
    found = rules_of(WAITED.format(wait=wait), VALUES, policy=Policy(eagerness=eagerness))
    assert bool(found) is not is_right, found


def test_a_load_without_coherence_of_bytes_that_the_kernel_wrote_is_found() -> None:
    lines = "mad.wide.u32 %rd1, %t, 4, %a0; {first} ld.global{nc}.u32 %r1, [%rd1];"
    lines += "add.u32 %r1, %r1, 1; st.global.u32 [%rd1], %r1;"
    store = "st.global.u32 [%rd1], %t; bar.sync 0;"
    assert rules_of(lines.format(first="", nc=".nc"), VALUES) == set()
    assert rules_of(lines.format(first=store, nc=""), VALUES) == set()
    assert rules_of(lines.format(first=store, nc=".nc"), VALUES) == {"noncoherent-load"}


def test_an_instruction_for_whole_warps_is_not_for_half_a_warp() -> None:
    lines = "setp.lt.u32 %p1, %t, 16; {leave} mov.u32 %r1, s;"
    lines += "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{%r2}}, [%r1]; bar.sync 0;"
    run(lines.format(leave=""), variables=S)
    with pytest.raises(Fault, match="16 lanes of a warp execute ldmatrix") as caught:
        run(lines.format(leave="@!%p1 ret;"), variables=S)
    assert caught.value.rule == "not-aligned"


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("@%p1 {load} bar.sync 0;", r"ldmatrix\.\S+ \(PTX line 16\)"),
        ("@!%p1 bra L; {load}\nL:\n bar.sync 0;", r"bar\.sync \(PTX line 18\) and ldmatrix\S+ \("),
        ("@!%p1 bra L; {load} bra E;\nL:\n {load}\nE:\n", r"ldmatrix\S+ .* and ldmatrix\S+ \("),
    ],
)
def test_half_a_warp_at_an_instruction_for_whole_warps_is_no_deadlock(
    lines: str, told: str
) -> None:
    load = "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r2}, [%r1];"
    with pytest.raises(Fault, match=f"only some lanes of a warp execute {told}") as caught:
        run("mov.u32 %r1, s; setp.lt.u32 %p1, %t, 16;" + lines.format(load=load), variables=S)
    assert caught.value.rule == "not-aligned"


@pytest.mark.parametrize("wanted", [88, 96])
def test_a_warp_gets_the_registers_that_others_of_its_block_give_back(wanted: int) -> None:
    lines = (
        WARPS + "setp.eq.u32 %p1, %r30, 0; @%p1 bra L; setmaxnreg.dec.sync.aligned.u32 40; bra E;"
        f"\nL:\n setmaxnreg.inc.sync.aligned.u32 {wanted};\nE:\n st.global.u32 [%out], %t;"
    )
    if wanted == 64 + 64 - 40:
        assert run(lines, threads=64, registers=64).tolist() == list(range(64))
        return
    with pytest.raises(Deadlock, match=r"each thread from 64 to 96: .* 24 of the 32"):
        run(lines, threads=64, registers=64)
