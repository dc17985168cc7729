"""The observer: tracks which accesses have happened before which, in PTX's memory model.

Each warp is followed as one thread (`Thread`), with a frontier: the events that it knows to have
happened before (`threads.py`). Asynchronous copies, matrix products and similar operations are
separate agents; a warp knows that they have finished only after waiting for them. Unordered
accesses are found even if they were executed in the right order by chance.

The rules are in PTX ISA 9.0, chapter 8, and for completion in 9.7.9.25, 9.7.13.15, 9.7.15 and
9.7.16.6. Kernels that are known to work do not follow all of them, so this module requires less: a
plain read needs no proxy fence before an asynchronous write; the completion of a copy passes on the
knowledge of the warp that issued it; scopes of mbarriers are ignored. Lanes of one warp are not
distinguished. A block ends when all its warps have ended; all accesses to its memory must happen
before that (2.2.2).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pallasc.emulator.machine.block import Block
from pallasc.emulator.machine.machine import Launch
from pallasc.emulator.machine.warp import Mbarrier, Warp
from pallasc.emulator.races import threads as agents
from pallasc.emulator.races.operations import Operations
from pallasc.emulator.races.threads import (
    ALWAYS,
    ASYNC,
    CTA,
    GENERIC,
    SYS,
    WEAK,
    BarrierState,
    ClusterState,
    Frontier,
    Shadow,
    Tag,
    Thread,
    Use,
    scope_of,
)

_MBARRIER_BYTES = 8


class Races(Operations):
    """The observer of a machine; `findings` has each pair of conflicting lines once."""

    # Blocks.

    def started(self, block: Block) -> None:
        """Record the start of a block."""
        machine_launches = block.machine.launches
        if self._launches is not machine_launches:
            self._new_launches(machine_launches)
        cluster = self._clusters.get(id(block.cluster))
        if cluster is None:
            self._cluster_count += 1
            cluster = ClusterState(block.cluster, self._cluster_count)
            self._clusters[id(block.cluster)] = cluster
            self._generic[cluster.number] = cluster.generic
            self._threads.update({thread.warp: thread for thread in cluster.threads})
        shift, _ = self._granularity(block)
        x, y, z = block.index
        name = f"shared memory of block ({x}, {y}, {z})"
        shared = block.shared
        granules = (shared.size >> shift) + 1
        self._shadows[id(shared)] = Shadow(granules, shift, name, is_shared=True, region=shared)
        self._alive[id(shared)] = shared
        self._blocks[id(shared)] = block

    def _new_launches(self, launches: list[Launch]) -> None:
        """Forget earlier launches, which have ended."""
        self.__post_init__()
        self._launches = launches

    def ended(self, block: Block) -> None:
        """Record the end of a block."""
        for offset, barrier in block.mbarriers.items():
            key = id(block.shared), offset
            if barrier.bytes and key not in self._under_way:
                self._left_over(block, offset, barrier)
            self._under_way.discard(key)
        self._outlived(block)
        if len(self._launches) > 1:
            self._note_known(block)
        self._shadows.pop(id(block.shared), None)
        self._blocks.pop(id(block.shared), None)
        self._clusters.pop(id(block.cluster), None)
        for warp in block.warps:
            self._threads.pop(warp, None)

    def _note_known(self, block: Block) -> None:
        """Record a device's knowledge of other devices when one of its blocks ends."""
        known = self._known_at_end.get(block.device, agents.NONE)
        for thread in (self._threads[warp] for warp in block.warps):
            for frontier in (thread.frontier, *thread.acquired.values()):
                known = known.union(frontier.others)
        self._known_at_end[block.device] = known

    def finished(self) -> None:
        """Check that devices' writes to each other's memory have arrived when kernels end.

        Strong writes are excluded: they are signals, and no kernel waits for the last ones.
        """
        for shadow in list(self._shadows.values()) if self._known_at_end else []:
            device = shadow.region.device if shadow.region is not None else None
            if device is None:
                continue
            known = self._known_at_end.get(device, agents.NONE).tables
            for number in np.unique(shadow.written).tolist():
                event = self._events[number]
                if event is None or event.scope != WEAK or event.warp.block.device == device:
                    continue
                table = known.get(int(self._cluster_of[number]))
                agent = int(self._agent_of[number])
                if table is None or table[GENERIC, agent % table.shape[1]] < number:
                    self._find(
                        "device-ended",
                        f"the kernel on device {device} may end before {event.access.what} of "
                        f"device {event.warp.block.device} writes to its memory: nothing on device "
                        f"{device} waits for it",
                        event,
                        None,
                        shadow.name,
                        shadow.bytes_of((shadow.written == number).nonzero()[0]),
                    )

    def _left_over(self, block: Block, offset: int, barrier: Mbarrier) -> None:
        event = self._events[self._initialised.get((id(block.shared), offset), 0)]
        if event is None:
            return
        self._find(
            "mbarrier-bytes-left",
            f"the block ends while the mbarrier at shared address {offset:#x} still expects "
            f"{barrier.bytes} bytes: more bytes were announced (expect_tx) than copied"
            if barrier.bytes > 0
            else f"the block ends after {-barrier.bytes} more bytes were copied than announced "
            f"(expect_tx) at the mbarrier at shared address {offset:#x}",
            event,
        )

    def _outlived(self, block: Block) -> None:
        """Check that a block ends after other blocks' accesses to its shared memory (2.2.2)."""
        threads = [self._threads[warp] for warp in block.warps]
        reached = threads[0].cluster.reached.pop(block.rank, {})
        if not reached:
            return
        known = np.max(
            [t.frontier.own[[GENERIC, agents.OVER]].max(axis=0) for t in threads], axis=0
        )
        x, y, z = block.index
        for agent, number in reached.items():
            event = self._events[number]
            if event is None or known[agent] >= number:
                continue
            self._find(
                "block-ended",
                f"block ({x}, {y}, {z}) may end before {event.access.what} accesses its shared "
                "memory: nothing makes the block wait for it",
                event,
            )

    def leaving(self, w: Warp) -> None:
        """Check the pending operations of a warp that has ended, before they complete."""
        thread = self._threads[w]
        own = thread.frontier.own[GENERIC]
        for operation in thread.asynchronous:
            tag: Tag = operation.tag
            event = self._events[tag.event]
            if event is None or tag.waited:
                continue
            if operation.what == "wgmma":
                self._find(
                    "wgmma-not-awaited",
                    "the warp ends without a wgmma.wait_group for this wgmma",
                    event,
                )
            elif operation.what == "a bulk store" and not tag.reads_waited:
                self._find(
                    "bulk-store-not-awaited",
                    "the warp ends without cp.async.bulk.wait_group.read 0 after this copy, which "
                    "may read shared memory that already belongs to another block",
                    event,
                )
            elif operation.signals and operation.writes and operation.what != "tcgen05.commit":
                others = tag.thread.cluster.threads
                known = max(int(t.frontier.own[GENERIC, tag.agent]) for t in others)
                if max(known, int(own[tag.agent])) < tag.event:
                    self._under_way.update((id(b.shared), at) for b, at in operation.signals)
                    self._find(
                        "copy-not-awaited",
                        "the block ends without a wait on the mbarrier that this copy signals: it "
                        "may write to shared memory that already belongs to another block",
                        event,
                    )

    # Barriers and fences.

    def initialised(self, w: Warp, place: int, block: Block, offset: int) -> None:
        """Record an mbarrier that is about to be initialized."""
        thread = self._threads[w]
        shared = block.shared
        shadow = self._shadows[id(shared)]
        index = shadow.index(offset, _MBARRIER_BYTES)
        event = self._access(thread, place, "mbarrier.init")
        known = thread.frontier.own[GENERIC]
        before = block.mbarriers.get(offset)
        current = self._events[event]
        if before is not None and current is not None:
            busy = before.bytes or before.pending != before.expected
            if busy:
                first = self._events[self._initialised.get((id(shared), offset), 0)]
                self._find(
                    "mbarrier-reinitialised",
                    f"an mbarrier is initialized again while in use ({before})",
                    current,
                    first,
                    shadow.name,
                    (offset, offset + _MBARRIER_BYTES),
                )
        use = Use(thread, shadow, index, event, known, reads=False, is_near=True)
        self._against_writes(use)
        self._against_reads(use, known)
        shadow.written[index] = event
        self._initialised[(id(shared), offset)] = event
        cluster = self._clusters[id(block.cluster)]
        cluster.barriers.pop((block.rank, offset), None)

    def _uses(self, thread: Thread, place: int, block: Block, offset: int) -> None:
        """Check that the initialization of an mbarrier has happened before it is used."""
        shadow = self._shadows[id(block.shared)]
        index = shadow.index(offset, _MBARRIER_BYTES)
        event = self._access(thread, place, "the mbarrier operation")
        self._reach(thread, block, thread.number, event)
        known = np.maximum(thread.frontier.own[GENERIC], thread.frontier.own[agents.INIT])
        self._against_writes(Use(thread, shadow, index, event, known, reads=False, is_near=True))
        shadow.record_read(thread.number, index, event)

    def arrived(
        self, w: Warp, place: int, barrier: tuple[Any, ...], *, releases: bool = True
    ) -> None:
        """Record a warp that is about to arrive at a barrier."""
        thread = self._threads[w]
        key, *rest = barrier
        if key == "mbarrier":
            block, offset = rest
            self._uses(thread, place, block, offset)
            releases = releases and "relaxed" not in w.instruction(place).parts
            found = self._mbarrier(block, offset)
        else:
            found = self._group_barrier(thread, w, key, rest)
        found.arrive(self._given(thread) if releases else self._given_relaxed(thread))

    def _given_relaxed(self, thread: Thread) -> Frontier:
        """Return the frontier that a relaxed arrival passes on: the effect of earlier fences."""
        given = Frontier(thread.cluster.agents.frontier())
        given.own[agents.INIT] = thread.frontier.own[agents.INIT]
        given.own[agents.OVER] = self._given(thread).own[agents.OVER]
        for released in thread.released.values():
            given.join(released)
        return given

    def _group_barrier(self, thread: Thread, w: Warp, key: str, rest: list[Any]) -> BarrierState:
        """Return the state of a barrier of the block or of the cluster in one generation."""
        barriers = thread.cluster.barriers
        *which, generation = rest
        kind = (key, w.block.rank if key == "bar" else None, *which)
        barriers.pop((kind, generation - 2), None)
        return barriers.setdefault((kind, generation), BarrierState())

    def passed(self, w: Warp, place: int, barrier: tuple[Any, ...]) -> None:
        """Record the end of a wait for a barrier."""
        thread = self._threads[w]
        key, *rest = barrier
        if key == "mbarrier":
            block, offset = rest
            self._uses(thread, place, block, offset)
            held = self._mbarrier(block, offset).over
        else:
            held = self._group_barrier(thread, w, key, rest).coming
        if held is None:
            return
        parts = w.instruction(place).parts
        if key == "mbarrier" and "relaxed" in parts:
            # A later fence acquires the knowledge that this wait has seen.
            seen = thread.acquired.setdefault(
                scope_of(parts, CTA), Frontier(thread.cluster.agents.frontier())
            )
            seen.join(held)
            return
        thread.frontier.join(held)
        thread.frontier.own[GENERIC, thread.number] = ALWAYS

    def fenced(self, w: Warp, place: int) -> None:
        """Record a fence."""
        thread = self._threads[w]
        parts = w.instruction(place).parts
        frontier = thread.frontier
        own = frontier.own
        if parts[0] == "tcgen05":
            if parts[1] == "fence::before_thread_sync":
                self._raise(thread, agents.BEFORE)
            else:
                np.maximum(own[agents.AFTER], own[agents.BEFORE], out=own[agents.AFTER])
            return
        if "mbarrier_init" in parts:
            self._raise(thread, agents.INIT)
            return
        if "proxy" in parts:
            if parts[parts.index("proxy") + 1] == "async":
                if "global" not in parts:
                    self._raise(thread, ASYNC)
                if not any(p.startswith("shared") for p in parts):
                    self._raise(thread, agents.GLOBAL)
            return
        scope = scope_of(parts, SYS)
        for needed in [each for each in thread.acquired if each <= scope]:
            frontier.join(thread.acquired.pop(needed))
            own[GENERIC, thread.number] = ALWAYS
        thread.released[scope] = self._given(thread)

    def _raise(self, thread: Thread, row: int) -> None:
        """Add all that happened before a warp's plain accesses to a row of its frontier."""
        own = thread.frontier.own
        own[GENERIC, thread.number] = len(self._events) - 1
        np.maximum(own[row], own[GENERIC], out=own[row])
        own[GENERIC, thread.number] = ALWAYS
        thread.events.clear()
