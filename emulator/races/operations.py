"""Asynchronous operations: their accesses and signals, and the waits that show their completion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pallasc.emulator.machine.block import Asynchronous, Block
from pallasc.emulator.machine.memory import Region
from pallasc.emulator.machine.warp import Warp
from pallasc.emulator.races import agents as who
from pallasc.emulator.races.agents import ALWAYS, ASYNC, GENERIC
from pallasc.emulator.races.findings import Access
from pallasc.emulator.races.registers import Registers
from pallasc.emulator.races.shadow import Shadow
from pallasc.emulator.races.threads import BarrierState, Event, Tag, Thread
from pallasc.emulator.races.words import NAMES
from pallasc.emulator.tensors.tensor_memory import COLUMNS, LANES

_KIND = {
    "wgmma": who.WGMMA,
    "cp.async": who.LANE_COPIES,
    "tcgen05.mma": who.TENSOR_CORE,
    "tcgen05.cp": who.TENSOR_CORE,
    "tcgen05.commit": who.TENSOR_CORE,
    "tcgen05.ld": who.TENSOR_LOADS,
    "tcgen05.st": who.TENSOR_STORES,
    "a bulk store": who.BULK_WRITES,
}


class Operations(Registers):
    """Tracks the asynchronous operations of warps."""

    def issued(self, w: Warp, place: int, operation: Asynchronous) -> None:
        """Record the start of an asynchronous operation."""
        thread = self._threads[w]
        kind = _KIND.get(operation.what)
        cluster = thread.cluster
        if kind is None:
            agent = cluster.agents.copy(cluster.copies)
            cluster.copies += 1
        else:
            agent = cluster.agents.of_warp(kind, thread.number)
        what = NAMES.get(operation.what, operation.what)
        access = Access(what, operation.instruction, operation.actor)
        event = self._event(thread, agent, Event(access, w, operation=operation))
        operation.tag = Tag(agent, event, thread, self._given(thread))
        if operation.what == "wgmma":
            self._check_registers(thread, operation, event)
        if kind not in (who.TENSOR_CORE, who.TENSOR_LOADS, who.TENSOR_STORES, who.LANE_COPIES):
            thread.asynchronous.append(operation)
        self._operands(thread, operation, agent, event)
        self._cells(thread, operation, agent, event)
        self._signals(thread, operation, event)
        self._reaches(thread, operation, agent, event)

    def _reaches(self, thread: Thread, operation: Asynchronous, agent: int, event: int) -> None:
        """Record the blocks that an operation accesses."""
        signalled = [block for block, _ in operation.signals]
        for region, _, _ in (*operation.reads, *operation.writes):
            block = self._blocks.get(id(region))
            if block is not None:
                self._reach(thread, block, agent, event)
                if signalled and block is thread.warp.block and block not in signalled:
                    thread.cluster.reached.setdefault(block.rank, {})[agent] = event
        for block in signalled:
            self._reach(thread, block, agent, event)

    def _operands(self, thread: Thread, operation: Asynchronous, agent: int, event: int) -> None:
        lane_copy = operation.what == "cp.async"
        reading = agent
        if operation.what == "a bulk store":
            reading = thread.cluster.agents.of_warp(who.BULK_READS, thread.number)
        for region, offsets, size in operation.reads:
            if not lane_copy:
                self._operand(thread, region, offsets, size, reading, event, False)
        for region, offsets, size in operation.writes:
            self._operand(thread, region, offsets, size, agent, event, True, lane_copy)

    def _operand(
        self,
        thread: Thread,
        region: Region,
        offsets: np.ndarray | int,
        size: int,
        agent: int,
        event: int,
        writes: bool,
        in_generic_proxy: bool = False,
    ) -> None:
        shared = id(region) in self._blocks
        shadow = self._shadow(region, thread.warp)
        if isinstance(offsets, int) and (offsets < 0 or offsets + size > region.size):
            return
        index = shadow.index(offsets, size)
        proxy = ASYNC if shared else who.GLOBAL
        own = thread.frontier.own
        plain = own[GENERIC]
        known = plain if in_generic_proxy else np.where(thread.cluster.generic, own[proxy], plain)
        self._against_writes(
            thread, shadow, index, known, event, shared, reads=not writes, proxy=proxy
        )
        if writes:
            self._against_reads(thread, shadow, index, plain, event, shared)
            shadow.written[index] = event
        else:
            shadow.record_read(agent if shared else 0, index, event)

    def _signals(self, thread: Thread, operation: Asynchronous, event: int) -> None:
        """Check that the asynchronous proxy knows the mbarriers that an operation signals."""
        if operation.what == "tcgen05.commit":
            row = thread.frontier.own[GENERIC]
        else:
            row = np.maximum(thread.frontier.own[ASYNC], thread.frontier.own[who.INIT])
        for block, offset in operation.signals:
            number = self._initialised.get((id(block.shared), offset), 0)
            if row[self._agent_of[number]] >= number:
                continue
            first, second = self._events[number], self._events[event]
            if first is None or second is None:
                continue
            self._find(
                "missing-mbarrier-fence",
                f"no fence.mbarrier_init between mbarrier.init and {second.access.what} that "
                "signals the mbarrier",
                second,
                first,
            )

    def completing(self, operation: Asynchronous) -> None:
        """Record that an asynchronous operation is about to complete."""
        tag: Tag | None = operation.tag
        self._agreements.completing(operation)
        if tag is None or not operation.signals:
            return
        given = tag.frontier
        given.own[[[GENERIC], [who.OVER]], tag.agent] = tag.event
        if operation.what == "tcgen05.commit":
            np.maximum(given.own[who.BEFORE], given.own[GENERIC], out=given.own[who.BEFORE])
        for block, offset in operation.signals:
            if id(block.cluster) in self._clusters:  # else it ended without waiting: `leaving`
                self._mbarrier(block, offset).arrive(given)

    def _mbarrier(self, block: Block, offset: int) -> BarrierState:
        barriers = self._clusters[id(block.cluster)].barriers
        found = barriers.setdefault((block.rank, offset), BarrierState())
        current = block.mbarriers.get(offset)
        if current is not None:
            found.turn(current.phase)
        return found

    def waited(
        self, w: Warp, place: int, operations: Sequence[Asynchronous], *, reads_only: bool = False
    ) -> None:
        """Record a warp's wait for operations that it issued, or only for their reads."""
        thread = self._threads[w]
        own = thread.frontier.own[GENERIC]
        agents = thread.cluster.agents
        for operation in operations:
            tag: Tag = operation.tag
            if operation.what == "a bulk store":
                reads = agents.of_warp(who.BULK_READS, thread.number)
                own[reads] = max(own[reads], tag.event)
                tag.reads_waited = True
            if not reads_only:
                own[tag.agent] = max(own[tag.agent], tag.event)
                tag.waited = True
            if operation.what == "wgmma":
                self._give_registers_back(thread, operation, tag)
        if any(o.tag.waited for o in operations):
            thread.asynchronous = [o for o in thread.asynchronous if not o.tag.waited]

    def _cells(self, thread: Thread, operation: Asynchronous, agent: int, event: int) -> None:
        if not operation.cells_read and not operation.cells_written:
            return
        own = thread.frontier.own
        moves = operation.what in ("tcgen05.ld", "tcgen05.st")
        known = np.where(self._fenced_agents(thread, moves), own[who.AFTER], own[GENERIC])
        known[agent] = ALWAYS
        for cells in operation.cells_read:
            shadow, index = self._tensor_shadow(thread, cells)
            self._against_writes(thread, shadow, index, known, event, True, reads=True)
            shadow.record_read(agent, index, event)
        for cells in operation.cells_written:
            shadow, index = self._tensor_shadow(thread, cells)
            self._against_writes(thread, shadow, index, known, event, True, reads=False)
            late = shadow.late_read(index, known)
            if late:
                self._report_overwritten(thread, shadow, index, late, event)
            shadow.written[index] = event

    def _fenced_agents(self, thread: Thread, moves: bool) -> np.ndarray:
        """Return bool[agents]: True for agents whose accesses to tensor memory need tcgen05.fence.

        Between the warps of a warpgroup, a barrier orders loads, stores and the operations after
        them: Mosaic's `commit_tmem` and `wait_load_tmem` have no fence (9.7.16.6.4 requires one).
        """
        agents = thread.cluster.agents
        warpgroups = thread.cluster.warpgroups
        fenced = np.zeros((who.KINDS, agents.warps), np.bool_)
        fenced[who.TENSOR_CORE :] = warpgroups != warpgroups[thread.number]
        if moves:
            fenced[who.TENSOR_CORE] = True
        return np.append(fenced, np.zeros(who.COPIES, np.bool_))

    def _tensor_shadow(self, thread: Thread, cells: Any) -> tuple[Shadow, np.ndarray]:
        memory, lanes, columns = cells
        shadow = self._shadows.get(id(memory))
        if shadow is None:
            shadow = self._shadows[id(memory)] = Shadow(LANES * COLUMNS, 0, "tensor memory")
            self._alive[id(memory)] = memory
        if isinstance(columns, range):
            columns = np.arange(columns.start, columns.stop)
            return shadow, (lanes[:, None] * COLUMNS + columns).ravel()
        return shadow, (lanes * COLUMNS + columns).ravel()
