"""The observer's state of warps, clusters and barriers, and of their operations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pallasc.emulator.machine.block import Asynchronous, Cluster
from pallasc.emulator.machine.warp import Warp
from pallasc.emulator.ptx.syntax import Instruction
from pallasc.emulator.races.agents import ALWAYS, GENERIC, Agents, Clusters, Frontier
from pallasc.emulator.races.findings import Access
from pallasc.emulator.races.scopes import WEAK, Domain


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

    __slots__ = (
        "agents",
        "barriers",
        "copies",
        "generic",
        "number",
        "reached",
        "threads",
        "warpgroups",
    )

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
