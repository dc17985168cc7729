"""Every deadlock and every loop without an end is told after a while, with its reason."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from small_kernels import run

from pallasc.emulator.machine.machine import Deadlock, Machine, Policy
from pallasc.emulator.machine.warp import Warp

MOST_TURNS = 200_000
POLICIES = [Policy(), Policy(seed=1, shuffle=True, eagerness=0.5)]
SHARED = ".shared .align 16 .b8 s[1024]; .shared .align 8 .b64 m;"
INIT = "setp.eq.u32 %p1, %t, 0; @%p1 mbarrier.init.shared::cta.b64 [m], 2; bar.sync 0;"


class Case(NamedTuple):
    """Lines that end in a deadlock when they are launched so, and what is told of it."""

    name: str
    lines: str
    told: tuple[str, ...]
    options: dict[str, Any]


@pytest.fixture(autouse=True)
def _told_soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Count the turns of warps: a time would be that of the machine."""
    execute, turns = Machine.execute, Counter[str]()

    def counting(self: Machine, warp: Warp, most: int) -> bool:
        turns["of all warps"] += 1
        return execute(self, warp, most)

    monkeypatch.setattr(Machine, "execute", counting)
    yield
    assert turns["of all warps"] <= MOST_TURNS


def polling(load: str) -> Case:
    """Return a semaphore that nobody signals, read by an instruction."""
    return Case(
        f"a semaphore that nobody signals: {load}",
        f"POLL:\n {load}.u32 %r1, [%outs]; setp.ne.u32 %p1, %r1, 7; nanosleep.u32 20;"
        "@%p1 bra POLL;",
        (
            "no warp can make progress",
            "for 4 bytes at offset 0 of array 4096 to change, which are 0",
            f"{load}.u32 %r1, [%outs]",
            "warps 0-3 of blocks (0, 0, 0), (1, 0, 0), (2, 0, 0) and 5 more",
        ),
        {"blocks": 8, "threads": 128},
    )


def waiting(wait: str) -> Case:
    """Return a wait with a sleep for a phase that does not end."""
    return Case(
        f"a phase that does not end: {wait}",
        INIT + "@%p1 mbarrier.arrive.shared::cta.b64 _, [m];\nWAIT:\n"
        f"mbarrier.{wait}.parity.shared::cta.b64 %p2, [m], 0; nanosleep.u32 32; @!%p2 bra WAIT;",
        ("warps 0-1 of block (0, 0, 0)", "phase 0: 1 of 2 arrivals"),
        {"threads": 64, "variables": SHARED},
    )


def endless(loop: str) -> Case:
    """Return a loop without an end that has no effect."""
    told = ("waiting for an infinite loop without any effect to end",)
    return Case(loop, f"LOOP:\n {loop}", told, {"threads": 64, "blocks": 2})


CASES = [
    *map(polling, ("ld.acquire.sys.global", "ld.volatile.global", "ld.relaxed.gpu")),
    *map(waiting, ("try_wait", "test_wait")),
    Case(
        "one lane polls with an atomic while the others wait",
        "setp.ne.u32 %p1, %t, 0; @%p1 bra MEET;\nPOLL:\n"
        "atom.global.cas.b32 %r1, [%outs], 1, 0; setp.ne.u32 %p2, %r1, 1; @%p2 bra POLL;\nMEET:\n"
        "bar.warp.sync -1;",
        (
            "for 4 bytes at offset 0 of array 128 to change, which are 0",
            "for the other lanes of its warp at bar.warp.sync",
        ),
        {},
    ),
    Case(
        "two warps each at the barrier of the other",
        "shr.u32 %r1, %t, 5; setp.eq.u32 %p1, %r1, 0; @%p1 bra FIRST; bar.sync 2, 64;"
        "bar.sync 1, 64; bra END;\nFIRST:\n bar.sync 1, 64; bar.sync 2, 64;\nEND:\n",
        (
            "for barrier 1 of the block (32 of 64 threads have arrived)",
            "for barrier 2 of the block (32 of 64 threads have arrived)",
        ),
        {"threads": 64},
    ),
    Case(
        "a cluster one block of which waits elsewhere",
        "mov.u32 %r1, %cluster_ctarank; setp.eq.u32 %p1, %r1, 1; @%p1 bra ELSE;"
        "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; bra END;\nELSE:\n"
        "bar.sync 3, 64;\nEND:\n",
        (
            "for the cluster barrier (1 of 2 warps have arrived)",
            "for barrier 3 of the block (32 of 64 threads have arrived)",
        ),
        {"blocks": 4, "cluster": 2},
    ),
    Case(
        "a loop that waits for any change",
        "POLL:\n ld.relaxed.gpu.global.u32 %r1, [%outs]; setp.eq.u32 %p1, %r1, 0; @%p1 bra POLL;",
        ("for 4 bytes at offset 0 of array 128 to change, which are 0",),
        {},
    ),
    Case(
        "the same wait in as many blocks as are named",
        "LOOP:\n bra LOOP;",
        ("warps 0-1 of blocks (0, 0, 0), (1, 0, 0), (2, 0, 0) at PTX line",),
        {"threads": 64, "blocks": 3},
    ),
    *map(
        endless,
        (
            "bra LOOP;",
            "ld.global.u32 %r1, [%outs]; setp.eq.u32 %p1, %r1, 0; @%p1 bra LOOP;",
            "add.u32 %r1, %r1, 1; and.b32 %r1, %r1, 15; setp.lt.u32 %p1, %r1, 16; @%p1 bra LOOP;",
        ),
    ),
]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_deadlock_is_told_with_who_waits_for_what(case: Case, policy: Policy) -> None:
    with pytest.raises(Deadlock) as caught:
        run(case.lines, **case.options, policy=policy)
    assert [words for words in case.told if words not in str(caught.value)] == []


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "loop",
    [
        "ld.relaxed.gpu.global.u32 %r1, [%outs]; setp.lt.u32 %p2, %r1, 3; @%p2 bra POLL;",
        "atom.global.cas.b32 %r1, [%outs], %r2, 0; setp.ne.u32 %p2, %r1, %r2; @%p2 bra POLL;",
    ],
)
def test_a_semaphore_leads_before_the_barriers_that_it_holds_up(loop: str, policy: Policy) -> None:
    """A warp that waits at a barrier of the block comes first in the order of warps."""
    with pytest.raises(Deadlock) as caught:
        run(
            "mov.u32 %r2, 5; shr.u32 %r3, %t, 5; setp.ne.u32 %p1, %r3, 3; @%p1 bra MEET;\nPOLL:\n"
            f"{loop}\nMEET:\n bar.sync 0;",
            threads=128,
            policy=policy,
        )
    deadlock = caught.value
    warp, _, reason = deadlock.waiting[0]
    told = "4 bytes at offset 0 of array 512 to change, which are 0"
    assert (warp.index, reason) == (3, told)
    _, head, wait, *rest = str(deadlock).splitlines()
    assert head.startswith("  warp 3 of block (0, 0, 0) at ")
    assert wait == f"    waiting for {told}"
    assert "barrier 0 of the block" in "\n".join(rest)


@pytest.mark.parametrize("load", ["ld.acquire.gpu.global", "ld.global"])
def test_who_polls_learns_of_what_others_write_late(load: str) -> None:
    """A warp counts to a hundred thousand before it writes what the others poll for."""
    found = run(
        "shr.u32 %r2, %t, 5; setp.ne.u32 %p1, %r2, 0; @%p1 bra POLL; mov.u32 %r1, 0;\nLOOP:\n"
        "add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 100000; @%p1 bra LOOP;"
        "st.volatile.global.u32 [%a0], %r1; bra END;\nPOLL:\n"
        f"{load}.u32 %r1, [%a0]; setp.eq.u32 %p1, %r1, 0; @%p1 bra POLL;\nEND:\n"
        "st.global.u32 [%out], %r1;",
        np.zeros(4, "u4"),
        threads=64,
        policy=POLICIES[1],
    )
    assert set(found.tolist()) == {100_000}
