"""Agents access memory: warps, and the asynchronous units that work for them.

Each agent of a cluster has a number. A frontier is a table with a column for each agent: the last
event of the agent that has happened before, from the point of view of the frontier's owner. Events
are numbered in a single sequence as they occur, so that the events of one agent ascend.

The rows of a frontier define *in which way* the events have happened before:

    GENERIC   for plain accesses
    ASYNC     also for asynchronous accesses to shared memory (fence.proxy.async)
    GLOBAL    also for asynchronous accesses to global memory
    INIT      of initialized mbarriers: for asynchronous operations that signal them
    BEFORE    for tcgen05, as of the last tcgen05.fence::before_thread_sync
    OVER      in time alone: relaxed arrivals pass it on, too
    AFTER     for tcgen05, as of this thread's last tcgen05.fence::after_thread_sync:
              never passed on, because every waiting thread needs this fence
"""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakSet, ref

import numpy as np

GENERIC, ASYNC, GLOBAL, INIT, BEFORE, OVER, AFTER = range(7)
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
KINDS = 8

COPIES = 128
"""Number of distinguished tensor loads and similar copies, each an agent: more than are ever in
flight."""

ALWAYS = np.iinfo(np.int32).max

Table = np.ndarray


class Agents(NamedTuple):
    """The agents of a cluster: `warps` of each kind, and the copies."""

    warps: int

    @property
    def size(self) -> int:
        """The number of agents."""
        return KINDS * self.warps + COPIES

    def of_warp(self, kind: int, warp: int) -> int:
        """Return an agent of a warp, by the warp's number in its cluster."""
        return kind * self.warps + warp

    def copy(self, number: int) -> int:
        """Return the agent of a copy that signals an mbarrier."""
        return KINDS * self.warps + number % COPIES

    def frontier(self) -> Table:
        """Return an empty frontier, before which nothing has happened."""
        return np.zeros((_ROWS, self.size), np.int32)

    def generic(self) -> np.ndarray:
        """Return bool[agents]: True for agents that write through the generic proxy."""
        kinds = np.arange(self.size) // self.warps
        found: np.ndarray = (kinds == WARP) | (kinds == LANE_COPIES)
        return found


class Clusters:
    """Immutable tables of clusters, by cluster number; instances are shared.

    Thousands of warps know about hundreds of clusters, mostly the same ones, so unions are cached
    by identity.
    """

    __slots__ = ("__weakref__", "_last", "tables")

    def __init__(self, tables: dict[int, Table]) -> None:
        self.tables = tables
        self._last: tuple[ref[Clusters], ref[Clusters]] | None = None  # last argument, its union

    def union(self, more: Clusters) -> Clusters:
        """Return the later events of both; returns one of the two if it includes the other."""
        if more is self or not more.tables:
            return self
        if not self.tables:
            return more
        if self._last is not None and self._last[0]() is more:
            found = self._last[1]()
            if found is not None:
                return found
        found = self._union(more)
        self._last = ref(more), ref(found)
        return found

    def _union(self, more: Clusters) -> Clusters:
        both = dict(self.tables)
        is_own = True
        for number, table in more.tables.items():
            known = both.get(number)
            if known is not table:
                both[number] = later = merged(known, table)
                is_own = is_own and later is known
        if is_own:
            return self
        if len(both) == len(more.tables) and all(both[n] is t for n, t in more.tables.items()):
            return more
        return Clusters(both)

    def with_one(self, number: int, table: Table) -> Clusters:
        """Return a copy that includes the knowledge about one more cluster."""
        known = self.tables.get(number)
        later = merged(known, table)
        return self if later is known else Clusters({**self.tables, number: later})


NONE = Clusters({})


class Passed:
    """Knowledge released at one place, for the threads that acquire there."""

    __slots__ = ("_covered", "clusters")

    def __init__(self) -> None:
        self.clusters = NONE
        self._covered: WeakSet[Clusters] = WeakSet()  # known to be included in `clusters`

    def release(self, number: int, own: Table, others: Clusters) -> None:
        """Add the knowledge of a thread about its own cluster, and about others."""
        self._covered.add(self.clusters)
        if others not in self._covered:
            self.clusters = self.clusters.union(others)
            self._covered.add(others)
        self.clusters = self.clusters.with_one(number, own)

    def acquire(self, known: Clusters) -> Clusters:
        """Return the knowledge of a thread after it has acquired this."""
        return self.clusters if known in self._covered else known.union(self.clusters)


class Frontier:
    """The events that have happened before: in the own cluster, and in other known clusters."""

    __slots__ = ("others", "own")

    def __init__(self, own: Table) -> None:
        self.own = own
        self.others = NONE  # may include others' knowledge of the own cluster, which is unused

    def copy(self) -> Frontier:
        """Return a copy that can be changed independently."""
        made = Frontier(self.own.copy())
        made.others = self.others
        return made

    def join(self, other: Frontier) -> None:
        """Add the knowledge of another frontier of the same cluster."""
        self.join_own(other.own)
        self.others = self.others.union(other.others)

    def join_own(self, table: Table) -> None:
        """Add knowledge about the own cluster, except the fences of another thread."""
        np.maximum(self.own[:AFTER], table[:AFTER], out=self.own[:AFTER])


def merged(known: Table | None, table: Table) -> Table:
    """Return the later events of two immutable tables.

    Returns one of the two if it includes the other.
    """
    if known is None or known is table:
        return table
    if (known >= table).all():
        return known
    both: Table = np.maximum(known, table)
    return table if (both == table).all() else both
