"""Barriers of blocks and clusters, and mbarriers: phases, parity, counts and bytes."""

from typing import Any

import numpy as np
import pytest
from small_kernels import Run, run

from pallasc.emulator.machine.machine import Deadlock, Policy
from pallasc.emulator.races.observer import Races

S = ".shared .align 16 .b8 s[1024]; .shared .align 8 .b64 m;"
WARPS = "shr.u32 %r30, %t, 5;"
POLICIES = [Policy(), Policy(seed=1, shuffle=True, eagerness=0.5)]


WAIT = "{name}: mbarrier.try_wait.parity.shared::cta.b64 %p9, [m], {parity}; @!%p9 bra {name};"
FIRST = "setp.eq.u32 %p8, %t, 0;"


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
