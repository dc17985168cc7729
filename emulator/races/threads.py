"""The observer's state of warps, clusters, barriers and operations, and the races it finds.

Scopes: the reach of strong accesses and fences (PTX ISA 9.0, 8.5).

Two strong accesses do not race, and an acquire sees a release, if the scope of each includes the
thread of the other.

Agents access memory: warps, and the asynchronous units that work for them.

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

A race as found by the observer: a rule, two accesses, and the missing synchronization.

The observer's state of warps, clusters and barriers, and of their operations.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakSet, ref

import numpy as np

from pallasc.emulator.machine.block import Asynchronous, Cluster
from pallasc.emulator.machine.memory import Actor, Fault
from pallasc.emulator.machine.warp import Warp
from pallasc.emulator.ptx.syntax import Instruction

WEAK, CTA, CLUSTER, GPU, SYS = range(-1, 4)
NAMES = (".cta", ".cluster", ".gpu", ".sys")
_SCOPES = {"cta": CTA, "cluster": CLUSTER, "gpu": GPU, "gl": GPU, "sys": SYS}


def scope_of(parts: Collection[str], default: int) -> int:
    """Return the scope that the parts of an opcode name."""
    return next((scope for name, scope in _SCOPES.items() if name in parts), default)


def distance(one: Warp, other: Warp) -> int:
    """Return the narrowest scope that includes both warps."""
    if one.block is other.block:
        return CTA
    if one.block.cluster is other.block.cluster:
        return CLUSTER
    return GPU if one.block.device == other.block.device else SYS


class Domain(NamedTuple):
    """The threads that a release reaches: those of a device, of a cluster or of a block, or all."""

    scope: int
    device: int
    cluster: int = 0
    rank: int = 0

    @classmethod
    def around(cls, warp: Warp, cluster: int, scope: int) -> Domain:
        """Return the domain of a warp's release; `cluster` is the number of its cluster."""
        block = warp.block
        if scope >= GPU:
            return cls(scope, block.device)
        return cls(scope, block.device, cluster, block.rank if scope == CTA else 0)

    def has(self, warp: Warp, cluster: int) -> bool:
        """Return True if the domain includes a warp."""
        return self.scope == SYS or self == Domain.around(warp, cluster, self.scope)

    def needed(self, warp: Warp, is_near: bool) -> int:
        """Return the scope that an acquire needs; `is_near` if its own cluster released, too."""
        if self.device != warp.block.device:
            return SYS
        return CTA if is_near else GPU


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


@dataclass(frozen=True, slots=True)
class Access:
    """An action of an instruction; `what` is a noun phrase, such as "the tensor load"."""

    what: str
    instruction: Instruction
    actor: Actor

    def __str__(self) -> str:
        return f"{self.what} by {self.actor}, PTX line {self.instruction.line}"


@dataclass(frozen=True, slots=True)
class Finding:
    """An error in a kernel.

    Args:
        rule: names the kind, as in `docs/check.md`.
        message: one sentence that describes what is missing.
        second: the access at which it was noticed.
        first: the access that it conflicts with, if there are two.
        memory: the memory, as text.
        begin: start of the affected bytes in that memory; None if there are none.
        end: end of the affected bytes, exclusive.
    """

    rule: str
    message: str
    second: Access
    first: Access | None = None
    memory: str = ""
    begin: int | None = None
    end: int | None = None

    def __str__(self) -> str:
        where = "" if self.begin is None else f" ({self.memory}, {self.begin:#x} to {self.end:#x})"
        lines = [f"{self.rule}: {self.message}{where}"]
        for access in (self.first, self.second):
            if access is not None:
                lines.append(f"  {access}: {access.instruction.text}")
        return "\n".join(lines)

    def fault(self) -> Fault:
        """Return this as an error."""
        second = self.second
        return Fault(self.rule, str(self), instruction=second.instruction, actor=second.actor)


class Thread:
    """The state of a warp."""

    __slots__ = (
        "acquired", "acquired_at", "asynchronous", "cluster", "events", "fenced", "frontier",
        "in_flight", "number", "released", "stamp", "stores", "warp",
    )  # fmt: skip

    def __init__(self, warp: Warp, cluster: ClusterState, number: int) -> None:
        self.warp = warp
        self.cluster = cluster
        self.number = number  # as an agent
        self.frontier = Frontier(cluster.agents.frontier())
        self.frontier.own[GENERIC, number] = ALWAYS
        self.stamp = 0  # the last event before its last release
        self.events: dict[int, int] = {}  # by place: events since then
        self.stores: dict[int, int] = {}  # by instruction: number of stores
        # By scope: knowledge at the last fence, for relaxed writes; knowledge seen by relaxed
        # reads, for the next fence.
        self.released: dict[int, Frontier] = {}
        self.acquired: dict[int, Frontier] = {}
        # By semaphore, domain and order: the knowledge last acquired there.
        self.acquired_at: dict[tuple[tuple[int, int], Domain, Order], Clusters] = {}
        self.in_flight: dict[int, tuple[int, bool]] = {}  # registers: event of wgmma, is written
        self.fenced: list[np.ndarray] | None = None  # registers at the last wgmma.fence
        self.asynchronous: list[Asynchronous] = []  # not waited for


class ClusterState:
    """Threads and barriers of a cluster."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        warps = cluster.warps
        self.number = number
        self.agents = Agents(len(warps))
        self.generic = self.agents.generic()
        self.threads = [Thread(warp, self, n) for n, warp in enumerate(warps)]
        self.warpgroups = np.array([(w.block.rank << 8) + w.index // 4 for w in warps])
        self.barriers: dict[object, BarrierState] = {}
        self.copies = 0
        self.reached: dict[int, dict[int, int]] = {}  # by rank and agent: the last event there


class BarrierState:
    """Knowledge that arrivals pass on: in the current phase, and in completed phases."""

    __slots__ = ("coming", "over", "phase")

    def __init__(self) -> None:
        self.coming: Frontier | None = None
        self.over: Frontier | None = None
        self.phase = 0

    def turn(self, phase: int) -> None:
        """Record that this phase is now current."""
        if phase == self.phase:
            return
        self.phase = phase
        if self.coming is not None:
            if self.over is None:
                self.over = self.coming
            else:
                self.over.join(self.coming)
            self.coming = None

    def arrive(self, frontier: Frontier) -> None:
        """Add the knowledge of an arrival in the current phase."""
        if self.coming is None:
            self.coming = frontier.copy()
        else:
            self.coming.join(frontier)


@dataclass(frozen=True, slots=True)
class Event:
    """One access, or several by one instruction of a warp between two releases."""

    access: Access
    warp: Warp
    scope: int = WEAK  # of a strong access
    operation: Asynchronous | None = None


@dataclass(slots=True)
class Tag:
    """The observer's data on an operation."""

    agent: int
    event: int
    thread: Thread
    frontier: Frontier
    signalled: bool = False
    waited: bool = False
    reads_waited: bool = False


@dataclass(frozen=True, slots=True)
class Order:
    """The ordering of an access, from the parts of its opcode."""

    acquires: bool
    releases: bool
    scope: int  # WEAK, or its reach


def instruction_at(w: Warp, place: int) -> Instruction:
    """Return the instruction at a place in a warp's code."""
    found: Instruction = w.block.launch.program.kernel.instructions[place]
    return found
