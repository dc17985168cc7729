"""Races between devices: what is copied to another one and signalled there has happened before."""

from __future__ import annotations

import numpy as np
import pytest
from small_kernels import Run

from pallasc.emulator.races.observer import Races

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


def found(**changes: str) -> set[str]:
    """Return the rules that are broken."""
    run = Run(EXCHANGE.format(**{**RIGHT, **changes}), np.zeros(4, "u4"), variables=SHARED)
    run.machine.observer = races = Races()
    run.run_on_two_devices()
    return {finding.rule for finding in races.findings}


def test_what_is_awaited_signalled_and_acquired_is_in_order() -> None:
    assert found() == set()


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
    assert "async-write-not-awaited" in found(**changes)


# Each device writes to memory of the other one and signals it.
WRITES_TO_PEER = """
  setp.ne.u32 %p1, %t, 0; @%p1 bra END;
  st.global.u32 [%a0+12], 7;
  red.release.sys.global.add.u32 [%a0], 1;
{wait}
END:
"""
LAST_WAIT = """
POLL:
  ld.acquire.sys.global.u32 %r1, [%outs+4]; setp.eq.u32 %p2, %r1, 0; @%p2 bra POLL;
"""


@pytest.mark.parametrize(("wait", "rules"), [(LAST_WAIT, []), ("", ["device-ended"])])
def test_a_kernel_waits_for_what_its_peers_write_before_it_ends(
    wait: str, rules: list[str]
) -> None:
    run = Run(WRITES_TO_PEER.format(wait=wait), np.zeros(4, "u4"))
    run.machine.observer = races = Races()
    run.run_on_two_devices()
    assert [finding.rule for finding in races.findings] == rules
    for finding in races.findings:
        assert "the kernel on device" in finding.message
        assert finding.second.instruction.text.startswith("st.global")
