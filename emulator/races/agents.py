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
    OVER      in time alone: relaxed arrivals pass it on, too
    AFTER     for tcgen05, as of the last tcgen05.fence::after_thread_sync of the thread itself:
              nothing passes it on, whoever waits needs a fence of its own
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
"""Tensor loads and the like that are told apart, each an agent: more than are ever under way."""

ALWAYS = np.iinfo(np.int32).max

Table = np.ndarray


class Agents(NamedTuple):
    """The agents of a cluster: `warps` of each kind, and the copies."""

    warps: int

    @property
    def size(self) -> int:
        """How many there are."""
        return KINDS * self.warps + COPIES

    def of_warp(self, kind: int, warp: int) -> int:
        """Return an agent of a warp, by the warp's number in its cluster."""
        return kind * self.warps + warp

    def copy(self, number: int) -> int:
        """Return the agent of a copy that signals an mbarrier."""
        return KINDS * self.warps + number % COPIES

    def frontier(self) -> Table:
        """Return a frontier before which nothing has happened."""
        return np.zeros((_ROWS, self.size), np.int32)

    def generic(self) -> np.ndarray:
        """Return bool[agents]: which write through the generic proxy."""
        kinds = np.arange(self.size) // self.warps
        found: np.ndarray = (kinds == WARP) | (kinds == LANE_COPIES)
        return found


class Clusters:
    """Tables of clusters, by their numbers; it is shared, and never changed.

    Thousands of warps know of hundreds of clusters, most of them the same of each: what was put
    together once is found again by its identity.
    """

    __slots__ = ("__weakref__", "_last", "tables")

    def __init__(self, tables: dict[int, Table]) -> None:
        self.tables = tables
        self._last: tuple[ref[Clusters], ref[Clusters]] | None = None  # the last union, its result

    def union(self, more: Clusters) -> Clusters:
        """Return the later of the events of both: one of the two where that has them all."""
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
        """Return these with what is known of one cluster, too."""
        known = self.tables.get(number)
        later = merged(known, table)
        return self if later is known else Clusters({**self.tables, number: later})


NONE = Clusters({})


class Passed:
    """What releases at one place have passed on so far, to those that acquire there."""

    __slots__ = ("_covered", "clusters")

    def __init__(self) -> None:
        self.clusters = NONE
        self._covered: WeakSet[Clusters] = WeakSet()  # what `clusters` is known to hold

    def release(self, number: int, own: Table, others: Clusters) -> None:
        """Take what a thread of a cluster knows of its own cluster, and of others."""
        self._covered.add(self.clusters)
        if others not in self._covered:
            self.clusters = self.clusters.union(others)
            self._covered.add(others)
        self.clusters = self.clusters.with_one(number, own)

    def acquire(self, known: Clusters) -> Clusters:
        """Return what somebody knows who has acquired this."""
        return self.clusters if known in self._covered else known.union(self.clusters)


class Frontier:
    """What has happened before: in the own cluster, and in others that it has heard of."""

    __slots__ = ("others", "own")

    def __init__(self, own: Table) -> None:
        self.own = own
        self.others = NONE  # may have what others know of the own cluster, which nobody asks for

    def copy(self) -> Frontier:
        """Return a copy."""
        made = Frontier(self.own.copy())
        made.others = self.others
        return made

    def join(self, other: Frontier) -> None:
        """Take what the other one knows; both are of one cluster."""
        self.join_own(other.own)
        self.others = self.others.union(other.others)

    def join_own(self, table: Table) -> None:
        """Take what is known of the own cluster, by all but the fences of another thread."""
        np.maximum(self.own[:AFTER], table[:AFTER], out=self.own[:AFTER])


def merged(known: Table | None, table: Table) -> Table:
    """Return the later of the events of two tables, neither of which is ever changed.

    It is one of the two where that has them all.
    """
    if known is None or known is table:
        return table
    if (known >= table).all():
        return known
    both: Table = np.maximum(known, table)
    return table if (both == table).all() else both
