"""Who accesses memory: warps, and what works for them asynchronously.

Each agent of a cluster has a number. A frontier is a table with a column for each agent: the last
event of it that has happened before, as somebody sees it. Events are numbered as they occur, all
of them in one sequence, so that the events of one agent ascend.

The rows of a frontier say *in which way* they have happened before:

    GENERIC   for plain accesses
    ASYNC     also for asynchronous accesses to shared memory (fence.proxy.async)
    GLOBAL    also for asynchronous accesses to global memory
    INIT      of initialised mbarriers: for asynchronous operations that signal them
    BEFORE    for tcgen05, as of the last tcgen05.fence::before_thread_sync
    AFTER     for tcgen05, as of the last tcgen05.fence::after_thread_sync
    OVER      in time alone: relaxed arrivals pass it on, too
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

GENERIC, ASYNC, GLOBAL, INIT, BEFORE, AFTER, OVER = range(7)
_ROWS = 7

# The agents of a warp.
WARP = 0
WGMMA = 1
LANE_COPIES = 2  # cp.async
BULK_READS = 3  # of bulk stores
BULK_WRITES = 4
TENSOR_CORE = 5
TENSOR_LOADS = 6
TENSOR_STORES = 7
_KINDS = 8

COPIES = 128
"""Tensor loads and the like that are told apart, each an agent: more than are ever under way."""

ALWAYS = np.iinfo(np.int32).max

Table = np.ndarray


class Agents(NamedTuple):
    """The agents of a cluster: `warps` of each kind, and the copies."""

    warps: int

    @property
    def size(self) -> int:
        """How many there are."""
        return _KINDS * self.warps + COPIES

    def of_warp(self, kind: int, warp: int) -> int:
        """Return an agent of a warp, by the warp's number in its cluster."""
        return kind * self.warps + warp

    def copy(self, number: int) -> int:
        """Return the agent of a copy that signals an mbarrier."""
        return _KINDS * self.warps + number % COPIES

    def frontier(self) -> Table:
        """Return a frontier before which nothing has happened."""
        return np.zeros((_ROWS, self.size), np.int32)

    def generic(self) -> np.ndarray:
        """Return bool[agents]: which write through the generic proxy."""
        kinds = np.arange(self.size) // self.warps
        found: np.ndarray = (kinds == WARP) | (kinds == LANE_COPIES)
        return found


class Frontier:
    """What has happened before: in the own cluster, and in others that it has heard of."""

    __slots__ = ("others", "own")

    def __init__(self, own: Table) -> None:
        self.own = own
        self.others: dict[int, Table] = {}  # of clusters, by their numbers

    def copy(self) -> Frontier:
        """Return a copy."""
        made = Frontier(self.own.copy())
        made.others = dict(self.others)
        return made

    def join(self, other: Frontier) -> None:
        """Take what the other one knows; both are of one cluster."""
        np.maximum(self.own, other.own, out=self.own)
        if other.others:
            self.join_others(other.others)

    def join_others(self, others: dict[int, Table]) -> None:
        """Take what is known of other clusters."""
        for number, table in others.items():
            self.others[number] = merged(self.others.get(number), table)


def merged(known: Table | None, table: Table) -> Table:
    """Return the later of the events of two tables, neither of which is ever changed.

    It is one of the two where that has them all: thousands of warps know of thousands of clusters.
    """
    if known is None or known is table:
        return table
    both: Table = np.maximum(known, table)
    for one in (known, table):
        if np.array_equal(one, both):
            return one
    return both
