"""The ledger of accesses: records who accessed which bytes, and detects conflicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pallasc.emulator.machine.block import Asynchronous, Block, Observer
from pallasc.emulator.machine.machine import Launch
from pallasc.emulator.machine.memory import Region
from pallasc.emulator.machine.warp import Warp
from pallasc.emulator.ptx.syntax import Instruction, Kernel
from pallasc.emulator.races import threads as agents
from pallasc.emulator.races.threads import (
    GENERIC,
    NAMES,
    WEAK,
    Access,
    Agreements,
    Clusters,
    ClusterState,
    Domain,
    Doubt,
    Event,
    Finding,
    Frontier,
    Order,
    Passed,
    Shadow,
    Thread,
    Use,
    copying_loads,
    distance,
    granule_shifts,
    is_replicated,
    kind_of,
)


@dataclass
class Ledger(Observer):
    """Records accesses to all memory; `findings` has each pair of conflicting PTX lines once."""

    records = True
    findings: list[Finding] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Start with empty state."""
        self._threads: dict[Warp, Thread] = {}
        self._clusters: dict[int, ClusterState] = {}
        self._shadows: dict[int, Shadow] = {}  # by the identity of a region
        self._alive: dict[int, Any] = {}  # objects kept so that their identities are not reused
        self._blocks: dict[int, Block] = {}
        self._known_at_end: dict[int, Clusters] = {}  # by device: knowledge of other clusters
        # By region and offset of an mbarrier: the event that initialized it.
        self._initialised: dict[tuple[int, int], int] = {}
        self._under_way: set[tuple[int, int]] = set()  # mbarriers that pending copies still signal
        self._events: list[Event | None] = [None]
        self._agent_of = np.zeros(1024, np.int32)
        self._cluster_of = np.zeros(1024, np.int32)
        self._seen: set[tuple[object, ...]] = set()
        self._orders: dict[Instruction, Order] = {}
        self._shifts: dict[tuple[int, int], tuple[int, int]] = {}
        self._sync: dict[tuple[int, int], dict[Domain, Passed]] = {}  # by semaphore
        self._launches: list[Launch] = []
        self._copying: dict[int, dict[Instruction, bool]] = {}
        self._cluster_count = 0
        self._agreements = Agreements()
        self._generic: dict[int, np.ndarray] = {}  # by cluster: agents of the generic proxy

    def _granularity(self, block: Block) -> tuple[int, int]:
        launch = block.launch
        element_bytes = block.machine.tensor_maps.element_bytes
        key = id(launch.program), element_bytes
        if key not in self._shifts:
            self._shifts[key] = granule_shifts(launch.program.kernel, element_bytes)
            self._alive[id(launch.program)] = launch.program
        return self._shifts[key]

    def _shadow(self, region: Region, w: Warp) -> Shadow:
        shadow = self._shadows.get(id(region))
        if shadow is None:
            _, shift = self._granularity(w.block)
            name = region.label or "global memory"
            shadow = Shadow((region.size >> shift) + 1, shift, name, region=region)
            self._shadows[id(region)] = shadow
            self._alive[id(region)] = region
        return shadow

    def _event(self, thread: Thread, agent: int, event: Event) -> int:
        number = len(self._events)
        self._events.append(event)
        if number >= len(self._agent_of):
            self._agent_of = np.concatenate([self._agent_of, np.zeros_like(self._agent_of)])
            self._cluster_of = np.concatenate([self._cluster_of, np.zeros_like(self._cluster_of)])
        self._agent_of[number] = agent
        self._cluster_of[number] = thread.cluster.number
        return number

    def _access(self, thread: Thread, place: int, what: str, scope: int = WEAK) -> int:
        """Return the event of a plain access; an instruction has one event until a release."""
        number = thread.events.get(place)
        if number is None:
            access = Access(what, thread.warp.instruction(place), thread.warp.actor)
            number = self._event(thread, thread.number, Event(access, thread.warp, scope))
            thread.events[place] = number
        return number

    def _given(self, thread: Thread) -> Frontier:
        """Return the frontier that a release of a warp passes on; later accesses are new events."""
        thread.stamp = len(self._events) - 1
        thread.events.clear()
        given = thread.frontier.copy()
        given.own[GENERIC, thread.number] = thread.stamp
        np.maximum(given.own[agents.OVER], given.own[GENERIC], out=given.own[agents.OVER])
        return given

    def _reach(self, thread: Thread, block: Block, agent: int, event: int) -> None:
        """Record an access to shared memory of another block."""
        if block is not thread.warp.block:
            thread.cluster.reached.setdefault(block.rank, {})[agent] = event

    def _find(
        self,
        rule: str,
        message: str,
        second: Event,
        first: Event | None = None,
        memory: str = "",
        extent: tuple[int, int] | None = None,
    ) -> None:
        lines = tuple(e.access.instruction.line for e in (first, second) if e is not None)
        key = (rule, *lines)
        if key in self._seen:
            return
        self._seen.add(key)
        begin, end = extent or (None, None)
        before = None if first is None else first.access
        self.findings.append(Finding(rule, message, second.access, before, memory, begin, end))

    def _against_writes(self, use: Use) -> None:
        """Check that the writes to these bytes have happened before the access."""
        ids, known = use.shadow.written[use.index], use.known
        if use.is_near and _is_one(ids):
            only = int(ids[0])
            if known[self._agent_of[only] % len(known)] >= only:
                return  # all bytes were written by one access, which has happened before
        late = self._late(use, ids, known)
        if late.any():
            late = self._without_strong(ids, late, use.event)
            if late.any():
                self._report(use, ids, late)
        if use.reads and use.is_near and not ids.all():
            self._uninitialized(use, ids == 0)

    def _late(self, use: Use, ids: np.ndarray, known: np.ndarray) -> np.ndarray:
        """Return bool[ids]: True for events that have not happened before the access.

        Each cluster numbers its agents separately.
        """
        agents = self._agent_of[ids]
        late: np.ndarray = known[agents % len(known)] < ids
        if use.is_near:
            return late
        clusters = self._cluster_of[ids]
        foreign = (clusters != use.thread.cluster.number) & (ids != 0)
        if not foreign.any():
            return late
        late = late & ~foreign
        for number in np.unique(clusters[foreign]).tolist():
            table = use.thread.frontier.others.tables.get(number)
            here = np.flatnonzero(clusters == number)
            if table is None:
                late[here] = True
                continue
            own = agents[here] % table.shape[1]
            last = table[GENERIC, own]
            if use.proxy != GENERIC:
                last = np.where(self._generic[number][own], table[use.proxy, own], last)
            late[here] |= last < ids[here]
        return late

    def _without_strong(self, ids: np.ndarray, late: np.ndarray, event: int) -> np.ndarray:
        """Exclude strong accesses whose scopes include each other's threads: they do not race."""
        current = self._events[event]
        if current is None or current.scope == WEAK:
            return late
        for number in np.unique(ids[late]).tolist():
            earlier = self._events[number]
            if earlier is None:
                continue
            if min(earlier.scope, current.scope) >= distance(earlier.warp, current.warp):
                late = late & (ids != number)
        return late

    def _against_reads(self, use: Use, known: np.ndarray) -> None:
        """Check that the reads of these bytes have happened before they are overwritten.

        Args:
            use: the write.
            known: by agent, the last event that happened before plain accesses of the warp.
        """
        if use.is_near:
            if late := use.shadow.late_read(use.index, known):
                self._report_overwritten(use, late)
            return
        if not use.shadow.readers:
            return
        ids = use.shadow.reads[0, use.index]
        unordered = self._late(replace(use, proxy=GENERIC), ids, known)
        unordered = (
            self._without_strong(ids, unordered, use.event) if unordered.any() else unordered
        )
        if unordered.any():
            self._report_overwritten(use, int(ids[unordered].max()))

    def _report(self, use: Use, ids: np.ndarray, late: np.ndarray) -> None:
        second, shadow = self._events[use.event], use.shadow
        for number in np.unique(ids[late]).tolist():
            first = self._events[number]
            if first is None or second is None:
                continue
            chosen = late & (ids == number)
            if not use.reads and is_replicated(first, second, shared=shadow.is_shared):
                if shadow.region is not None and self._may_differ(first, second):
                    where = shadow.chosen(use.index, chosen)
                    self._agreements.doubt(Doubt(first, second, shadow, where))
                continue
            extent = shadow.bytes_of(use.index, chosen)
            rule, message = self._missing(use, first, number, second)
            self._find(rule, message, second, first, shadow.name, extent)

    def _may_differ(self, first: Event, second: Event) -> bool:
        """Return True if two executions of one store race when their bytes differ.

        Within a warpgroup, only stores that each warp executes once are checked, because its warps
        may be in different iterations of a loop. Reductions, and several bulk stores of one warp to
        the same place, are not checked.
        """
        one, other = first.warp, second.warp
        instruction = second.access.instruction
        if "reduce" in instruction.parts:
            return False
        if second.operation is not None:
            return one is not other
        if one.block is not other.block or one.index // 4 != other.index // 4:
            return True
        threads = (self._threads.get(warp) for warp in (one, other))
        return all(t is not None and t.stores.get(id(instruction), 0) <= 1 for t in threads)

    def wrote(self, w: Warp) -> None:
        """Report stores whose bytes differ from another execution of the same instruction."""
        self._report_differing(self._agreements.wrote())

    def completed(self, operation: Asynchronous) -> None:
        """Report bulk stores whose bytes differ from another execution of the instruction."""
        self._report_differing(self._agreements.completed(operation))

    def _report_differing(self, found: Sequence[tuple[Doubt, np.ndarray]]) -> None:
        for doubt, differ in found:
            what = doubt.second.access.what
            self._find(
                "race",
                f"no barrier between {what} and {what} by the same instruction elsewhere that "
                "writes other values to the same bytes",
                doubt.second,
                doubt.first,
                doubt.shadow.name,
                doubt.shadow.bytes_of(doubt.where, differ),
            )

    def _report_overwritten(self, use: Use, number: int) -> None:
        first, second = self._events[number], self._events[use.event]
        if first is None or second is None:
            return
        what, over = first.access.what, second.access.what
        if min(first.scope, second.scope) > WEAK:
            rule, message = "race", _narrow(first, second)
        elif first.operation is None:
            message = f"no barrier between {what} and {over} that overwrites the same bytes"
            rule = "race"
        elif self._is_fence_missing(use.thread, first, number):
            later = f"{over} that overwrites the same cells"
            rule, message = self._missing_fence(use.thread, first, number, later)
        else:
            message = (
                f"{over} overwrites bytes that {what} reads: no "
                f"{kind_of(first.operation).wait} between them"
                if not self._owner_knows(first, number)
                else f"{over} overwrites bytes that {what} reads: no barrier orders it after the "
                f"warp that waited for {what}"
            )
            rule = "overwritten-in-flight"
        shadow = use.shadow
        self._find(rule, message, second, first, shadow.name, shadow.bytes_of(use.index))

    def _owner_knows(self, first: Event, number: int) -> bool:
        """Return True if the warp that issued an operation has waited for it."""
        owner = self._threads.get(first.warp)
        if owner is None:
            return True
        agent = self._agent_of[number]
        if first.operation is not None and first.operation.what == "a bulk store":
            agent = owner.cluster.agents.of_warp(agents.BULK_READS, owner.number)
        return bool(owner.frontier.own[GENERIC, agent] >= number)

    def _missing(self, use: Use, first: Event, number: int, second: Event) -> tuple[str, str]:
        if min(first.scope, second.scope) > WEAK:
            return "race", _narrow(first, second)
        what, later = first.access.what, second.access.what
        thread, does = use.thread, "reads" if use.reads else "writes to"
        known = thread.frontier.own[GENERIC]
        if first.operation is None or first.operation.what == "cp.async":
            ordered = first.warp in self._threads and (
                self._threads[first.warp].cluster is thread.cluster
                and known[self._agent_of[number]] >= number
            )
            if ordered and second.operation is not None:
                return (
                    "missing-proxy-fence",
                    f"no fence.proxy.async between {what} and {later} that {does} the same bytes",
                )
        if self._is_fence_missing(thread, first, number):
            return self._missing_fence(thread, first, number, f"{later} that {does} the same cells")
        if first.operation is None:
            return "race", f"no barrier between {what} and {later} that {does} the same bytes"
        if self._owner_knows(first, number):
            return (
                "async-write-not-awaited",
                f"{later} {does} bytes that {what} writes: no barrier orders it after the warp "
                f"that waited for {what}",
            )
        return (
            "async-write-not-awaited",
            f"no {kind_of(first.operation).wait} between {what} and {later} that {does} the same "
            "bytes",
        )

    def _is_fence_missing(self, thread: Thread, first: Event, number: int) -> bool:
        """Return True if a barrier orders a tcgen05 operation, so that only a fence is missing."""
        known = thread.frontier.own[GENERIC, self._agent_of[number]]
        is_tensor = first.operation is not None and first.operation.what.startswith("tcgen05.")
        return is_tensor and bool(known >= number)

    def _missing_fence(
        self, thread: Thread, first: Event, number: int, later: str
    ) -> tuple[str, str]:
        passed_on = thread.frontier.own[agents.BEFORE, self._agent_of[number]] >= number
        side = "after" if passed_on else "before"
        is_move = first.access.instruction.parts[1] in ("ld", "st")
        return "race" if is_move else "missing-tensor-fence", (
            f"no tcgen05.fence::{side}_thread_sync between {first.access.what} and {later}: the "
            "barrier between them needs orders_tensor_core=True"
        )

    def _uninitialized(self, use: Use, missing: np.ndarray) -> None:
        second = self._events[use.event]
        if second is None:
            return
        kernel = second.warp.block.launch.program.kernel
        if second.operation is None and self._copies(kernel).get(second.access.instruction, False):
            return
        self._find(
            "uninitialized-read",
            f"{second.access.what} reads bytes that were never written",
            second,
            None,
            use.shadow.name,
            use.shadow.bytes_of(use.index, missing),
        )

    def _copies(self, kernel: Kernel) -> dict[Instruction, bool]:
        """Map the loads of a kernel to True if their values are only stored again."""
        if id(kernel) not in self._copying:
            self._copying[id(kernel)] = copying_loads(kernel)
            self._alive[id(kernel)] = kernel
        return self._copying[id(kernel)]


def _is_one(ids: np.ndarray) -> bool:
    return bool(ids.size) and bool(ids[0]) and bool((ids == ids[0]).all())


def _narrow(first: Event, second: Event) -> str:
    """Return the message for a race of two strong accesses."""
    one, other = NAMES[first.scope], NAMES[second.scope]
    what, later = first.access.what, second.access.what
    return (
        f"{what} ({one}) and {later} ({other}) race: their scopes do not include each other's "
        "threads"
    )
