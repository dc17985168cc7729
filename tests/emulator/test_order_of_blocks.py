"""Blocks start in the order of the grid, or in a random one that the seed decides."""

from typing import Any

import numpy as np
import pytest
from small_kernels import run

from pallasc.emulator.machine.machine import Deadlock, Policy

TICKET = "atom.global.add.u32 %r1, [%a0], 1; st.global.b32 [%out], %r1;"
IN_LANE_0 = "setp.eq.u32 %p1, %t, 0; @%p1 "
CHAIN = """
setp.eq.u32 %p1, %t, 0;
@!%p1 bra DONE;
WAIT: ld.acquire.gpu.global.b32 %r1, [%a0];
setp.ne.u32 %p2, %r1, %b; @%p2 bra WAIT;
add.u32 %r2, %b, 1;
st.release.gpu.global.b32 [%a0], %r2;
DONE: st.global.b32 [%out], %b;
"""
"""Each block waits for the one before it."""
ZERO = np.zeros(1, np.uint32)


def tickets(policy: Policy, *, blocks: int = 12, cluster: int = 1) -> list[int]:
    """Return the number that each block draws."""
    lines = IN_LANE_0 + TICKET.replace("; ", "; @%p1 ", 1)
    found = run(lines, ZERO, blocks=blocks, cluster=cluster, policy=policy)
    return found[::32].tolist()


def test_blocks_start_in_the_order_of_the_grid() -> None:
    assert tickets(Policy()) == list(range(12))
    assert tickets(Policy(seed=3, eagerness=1)) == list(range(12))


def test_shuffled_blocks_start_in_an_order_of_the_seed() -> None:
    orders = [tickets(Policy(seed=seed, shuffle=True)) for seed in range(4)]
    for order in orders:
        assert sorted(order) == list(range(12))
        assert order != list(range(12))
    assert len({tuple(order) for order in orders}) == 4
    assert orders[2] == tickets(Policy(seed=2, shuffle=True))


@pytest.mark.parametrize("seed", range(2))
def test_the_blocks_of_a_cluster_start_together(seed: int) -> None:
    order = tickets(Policy(seed=seed, shuffle=True), cluster=4)
    groups = [order[n : n + 4] for n in range(0, 12, 4)]
    assert sorted(max(group) - min(group) for group in groups) == [3, 3, 3]
    assert groups != sorted(groups)


def test_blocks_that_wait_for_long_go_on() -> None:
    """What the last ones wait for changes a hundred times before it is their turn."""
    found = run(CHAIN, ZERO, blocks=110, policy=Policy(seed=2, shuffle=True, eagerness=0.5))
    assert found[::32].tolist() == list(range(110))


def test_blocks_that_wait_for_one_that_finds_no_room_never_go_on() -> None:
    """A GPU has room for 148 of these blocks; only in the order of the grid is that enough."""
    options: dict[str, Any] = {"blocks": 170, "variables": ".shared .align 16 .b8 large[200000];"}
    assert run(CHAIN, ZERO, **options)[::32].tolist() == list(range(170))
    with pytest.raises(Deadlock, match="waiting for 4 bytes"):
        run(CHAIN, ZERO, **options, policy=Policy(seed=1, shuffle=True))
