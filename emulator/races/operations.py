"""Accesses of lanes and of asynchronous operations.

`PlainAccesses` tracks loads, stores and atomic operations of lanes, which may be on semaphores.
`Registers` checks that registers of a wgmma are fenced before it, and unchanged until it completes.
`Operations` tracks the accesses, signals and completion of asynchronous operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pallasc.emulator.machine.block import (
    AccessKind,
    Asynchronous,
    Block,
    Cells,
    cell_numbers,
)
from pallasc.emulator.machine.memory import PARAMETERS, SHARED, Region
from pallasc.emulator.machine.warp import Warp
from pallasc.emulator.ptx.syntax import Instruction
from pallasc.emulator.races import threads as who
from pallasc.emulator.races.ledger import Ledger
from pallasc.emulator.races.threads import (
    ALWAYS,
    ASYNC,
    GENERIC,
    GPU,
    SYS,
    WEAK,
    Access,
    BarrierState,
    Domain,
    Event,
    Frontier,
    Index,
    Order,
    Passed,
    Shadow,
    Tag,
    Thread,
    Use,
    kind_of,
    scope_of,
)
from pallasc.emulator.tensors.tensor_memory import COLUMNS, LANES

_ACCESSES = {"read": "the load", "write": "the store", "atomic": "the atomic operation"}
_MBARRIER_BYTES = 8
_STRONG = {"acquire", "release", "acq_rel", "relaxed", "volatile", "mmio", "sc"}


class PlainAccesses(Ledger):
    """Tracks the synchronous accesses of warps."""

    def accessed(
        self,
        w: Warp,
        place: int,
        kind: AccessKind,
        region: Region,
        offsets: Any,
        mask: Any,
        size: int,
    ) -> None:
        """Record an access by lanes; see `Observer`."""
        if PARAMETERS <= region.base < SHARED:
            return
        writes, atomic = kind != "read", kind == "atomic"
        thread = self._threads[w]
        order = self._order(w.instruction(place), atomic)
        if mask is not None:
            offsets = offsets[mask]
        shadow = self._shadow(region, w)
        if order.scope != WEAK:
            self._synchronise(thread, region, offsets, order, writes, atomic)
        index = shadow.index(offsets, size)
        event = self._access(thread, place, _ACCESSES[kind], order.scope)
        known = thread.frontier.own[GENERIC]
        shared = id(region) in self._blocks
        if shared:
            self._reach(thread, self._blocks[id(region)], thread.number, event)
            self._touch_mbarrier(region, offsets, size, event, writes)
        use = Use(thread, shadow, index, event, known, reads=not writes, is_near=shared)
        self._against_writes(use)
        if "nc" in w.instruction(place).parts:
            self._against_coherence(shadow, index, event)
        if writes:
            if order.scope == WEAK:
                instruction = id(w.instruction(place))
                thread.stores[instruction] = thread.stores.get(instruction, 0) + 1
            self._against_reads(use, known)
            shadow.written[index] = event
            if atomic:
                return
        else:
            shadow.record_read(thread.number if shared else 0, index, event)

    def _against_coherence(self, shadow: Shadow, index: Index, event: int) -> None:
        """Report a noncoherent load of bytes that the kernel has written (9.7.9.10)."""
        second, number = self._events[event], int(shadow.written[index].max(initial=0))
        if second is not None and number:
            self._find(
                "noncoherent-load",
                "the load is not coherent (.nc), and the kernel writes to the same bytes",
                second,
                self._events[number],
                shadow.name,
                shadow.bytes_of(index, shadow.written[index] != 0),
            )

    def _order(self, instruction: Instruction, atomic: bool) -> Order:
        found = self._orders.get(instruction)
        if found is None:
            parts = set(instruction.parts[1:])
            both = "acq_rel" in parts
            strong = atomic or bool(parts & _STRONG)
            default = SYS if parts & {"volatile", "mmio"} else GPU
            found = Order(
                both or "acquire" in parts,
                both or "release" in parts,
                scope_of(parts, default) if strong else WEAK,
            )
            self._orders[instruction] = found
        return found

    def _synchronise(
        self,
        thread: Thread,
        region: Region,
        offsets: np.ndarray,
        order: Order,
        writes: bool,
        atomic: bool,
    ) -> None:
        """Pass on the knowledge of a warp at semaphores, or acquire others' knowledge."""
        for offset in sorted(set(offsets.tolist())):
            key = (id(region), offset)
            if atomic or not writes:
                self._acquire(thread, key, order)
            if writes:
                self._release(thread, key, order)

    def _acquire(self, thread: Thread, key: tuple[int, int], order: Order) -> None:
        cluster = thread.cluster.number
        for domain, passed in self._sync.get(key, {}).items():
            if thread.acquired_at.get((key, domain, order)) is passed.clusters:
                continue  # the thread has acquired this before, with no release since
            needed = domain.needed(thread.warp, cluster in passed.clusters.tables)
            if order.scope < needed or not domain.has(thread.warp, cluster):
                continue
            thread.acquired_at[key, domain, order] = passed.clusters
            if order.acquires:
                _learn(thread.frontier, cluster, passed)
                continue
            nothing = Frontier(thread.cluster.agents.frontier())
            _learn(thread.acquired.setdefault(needed, nothing), cluster, passed)

    def _release(self, thread: Thread, key: tuple[int, int], order: Order) -> None:
        if order.releases:
            self._pass_on(thread, key, order.scope, self._given(thread))
            return
        for scope, given in thread.released.items():
            self._pass_on(thread, key, min(scope, order.scope), given)

    def _pass_on(self, thread: Thread, key: tuple[int, int], scope: int, given: Frontier) -> None:
        cluster = thread.cluster.number
        domain = Domain.around(thread.warp, cluster, scope)
        passed = self._sync.setdefault(key, {}).setdefault(domain, Passed())
        passed.release(cluster, given.own, given.others)

    def _touch_mbarrier(
        self, region: Region, offsets: np.ndarray, size: int, event: int, writes: bool
    ) -> None:
        """Report a plain access to an mbarrier."""
        block = self._blocks[id(region)]
        if not block.mbarriers:
            return
        low, high = int(offsets.min()), int(offsets.max()) + size
        for at in block.mbarriers:
            if low < at + _MBARRIER_BYTES and at < high:
                touched = (offsets < at + _MBARRIER_BYTES) & (offsets + size > at)
                second = self._events[event]
                if second is None or not touched.any():
                    continue
                rule = "mbarrier-overwritten" if writes else "mbarrier-read"
                does = "overwrites" if writes else "reads"
                self._find(
                    rule,
                    f"{second.access.what} {does} the mbarrier at shared address {at:#x} as if it "
                    "were data",
                    second,
                    self._events[self._initialised.get((id(region), at), 0)],
                    self._shadows[id(region)].name,
                    (at, at + _MBARRIER_BYTES),
                )


def _learn(frontier: Frontier, cluster: int, passed: Passed) -> None:
    """Acquire released knowledge; `cluster` is the number of the frontier's own cluster."""
    own = passed.clusters.tables.get(cluster)
    if own is not None:
        frontier.join_own(own)
    frontier.others = passed.acquire(frontier.others)


class Registers(PlainAccesses):
    """Tracks the registers that matrix products use."""

    def registers_fenced(self, w: Warp, place: int) -> None:
        """Record wgmma.fence."""
        self._threads[w].fenced = list(w.registers)

    def _check_registers(self, thread: Thread, operation: Asynchronous, event: int) -> None:
        results, sources = operation.registers
        registers, fenced = thread.warp.registers, thread.fenced
        second = self._events[event]
        if second is None:
            return
        slots = [s for s in (*results, *sources) if s not in thread.in_flight]
        if fenced is None or any(registers[s] is not fenced[s] for s in slots):
            known = set() if fenced is None else {id(value) for value in fenced}
            if any(id(registers[s]) not in known for s in slots):
                self._find(
                    "wgmma-fence",
                    "no wgmma.fence between the last write to a register and the wgmma that uses "
                    "it",
                    second,
                )
        for slot in sources:
            thread.in_flight[slot] = (event, False)
        for slot in results:
            thread.in_flight[slot] = (event, True)

    def _give_registers_back(self, thread: Thread, operation: Asynchronous, tag: Tag) -> None:
        for slot in (*operation.registers[0], *operation.registers[1]):
            held = thread.in_flight.get(slot)
            if held is not None and held[0] <= tag.event:
                del thread.in_flight[slot]
                if thread.fenced is not None:
                    thread.fenced[slot] = thread.warp.registers[slot]

    def registers_used(
        self, w: Warp, place: int, reads: Sequence[int], writes: Sequence[int]
    ) -> None:
        """Check an instruction's use of registers of a wgmma in flight."""
        thread = self._threads[w]
        if not thread.in_flight:
            return
        for slots, is_write in ((reads, False), (writes, True)):
            for slot in slots:
                held = thread.in_flight.get(slot)
                if held is None or not (is_write or held[1]):
                    continue
                first = self._events[held[0]]
                access = Access("the instruction", w.instruction(place), w.actor)
                does = "overwrites" if is_write else "reads"
                what = "an accumulator" if held[1] else "the A operand"
                self._find(
                    "wgmma-registers" if held[1] else "wgmma-operand",
                    f"the instruction {does} {what} of a wgmma in flight: no wgmma.wait_group "
                    "between them",
                    Event(access, w),
                    first,
                )


class Operations(Registers):
    """Tracks the asynchronous operations of warps."""

    def issued(self, w: Warp, place: int, operation: Asynchronous) -> None:
        """Record the start of an asynchronous operation."""
        thread = self._threads[w]
        kind = kind_of(operation)
        cluster = thread.cluster
        if kind.agent is None:
            agent = cluster.agents.copy(cluster.copies)
            cluster.copies += 1
        else:
            agent = cluster.agents.of_warp(kind.agent, thread.number)
        access = Access(kind.name, operation.instruction, operation.actor)
        event = self._event(thread, agent, Event(access, w, operation=operation))
        operation.tag = Tag(agent, event, thread, self._given(thread))
        if operation.what == "wgmma":
            self._check_registers(thread, operation, event)
        if kind.agent not in (
            who.TENSOR_CORE,
            who.TENSOR_LOADS,
            who.TENSOR_STORES,
            who.LANE_COPIES,
        ):
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
        use = Use(thread, shadow, index, event, known, not writes, shared, proxy)
        self._against_writes(use)
        if writes:
            self._against_reads(use, plain)
            shadow.written[index] = event
        else:
            shadow.record_read(agent if shared else 0, index, event)

    def _signals(self, thread: Thread, operation: Asynchronous, event: int) -> None:
        """Check that an operation sees the initialization of the mbarriers that it signals."""
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
            if id(block.cluster) in self._clusters:  # `leaving` reports clusters that ended
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
            shadow, index = self._tensor_shadow(cells)
            self._against_writes(Use(thread, shadow, index, event, known, True, True))
            shadow.record_read(agent, index, event)
        for cells in operation.cells_written:
            shadow, index = self._tensor_shadow(cells)
            use = Use(thread, shadow, index, event, known, False, True)
            self._against_writes(use)
            self._against_reads(use, known)
            shadow.written[index] = event

    def _fenced_agents(self, thread: Thread, moves: bool) -> np.ndarray:
        """Return bool[agents]: True for agents whose accesses to tensor memory need tcgen05.fence.

        Between warps of one warpgroup, a barrier is enough to order loads and stores before the
        following operations: 9.7.16.6.4 requires a fence, but Mosaic's `commit_tmem` and
        `wait_load_tmem` have none.
        """
        agents = thread.cluster.agents
        warpgroups = thread.cluster.warpgroups
        fenced = np.zeros((who.KINDS, agents.warps), np.bool_)
        fenced[who.TENSOR_CORE :] = warpgroups != warpgroups[thread.number]
        if moves:
            fenced[who.TENSOR_CORE] = True
        return np.append(fenced, np.zeros(who.COPIES, np.bool_))

    def _tensor_shadow(self, cells: Cells) -> tuple[Shadow, np.ndarray]:
        memory, index = cell_numbers(cells)
        shadow = self._shadows.get(id(memory))
        if shadow is None:
            shadow = self._shadows[id(memory)] = Shadow(LANES * COLUMNS, 0, "tensor memory")
            self._alive[id(memory)] = memory
        return shadow, index
