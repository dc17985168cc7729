"""Tracks loads, stores and atomic operations of lanes, including those on semaphores."""

from __future__ import annotations

from typing import Any

import numpy as np

from pallasc.emulator.machine.memory import PARAMETERS, SHARED, Region
from pallasc.emulator.machine.warp import Warp
from pallasc.emulator.ptx.syntax import Instruction
from pallasc.emulator.races.agents import GENERIC, Frontier, Passed
from pallasc.emulator.races.ledger import Ledger
from pallasc.emulator.races.scopes import GPU, SYS, WEAK, Domain, scope_of
from pallasc.emulator.races.shadow import Index, Shadow
from pallasc.emulator.races.threads import Order, Thread, instruction_at

_MBARRIER_BYTES = 8
_STRONG = {"acquire", "release", "acq_rel", "relaxed", "volatile", "mmio", "sc"}


class PlainAccesses(Ledger):
    """Tracks the synchronous accesses of warps."""

    def read(self, w: Warp, place: int, region: Region, offsets: Any, mask: Any, size: int) -> None:
        """Record a read of `size` bytes per lane at offsets in a region; no mask means all."""
        self._plain(w, place, region, offsets, mask, size, writes=False, what="the load")

    def write(
        self, w: Warp, place: int, region: Region, offsets: Any, mask: Any, size: int
    ) -> None:
        """Record a write by lanes."""
        self._plain(w, place, region, offsets, mask, size, writes=True, what="the store")

    def atomic(
        self, w: Warp, place: int, region: Region, offsets: Any, mask: Any, size: int
    ) -> None:
        """Record an atomic operation of lanes."""
        what = "the atomic operation"
        self._plain(w, place, region, offsets, mask, size, writes=True, what=what, atomic=True)

    def _plain(
        self,
        w: Warp,
        place: int,
        region: Region,
        offsets: np.ndarray,
        mask: np.ndarray | None,
        size: int,
        *,
        writes: bool,
        what: str,
        atomic: bool = False,
    ) -> None:
        if PARAMETERS <= region.base < SHARED:
            return
        thread = self._threads[w]
        order = self._order(instruction_at(w, place), atomic)
        if mask is not None:
            offsets = offsets[mask]
        shadow = self._shadow(region, w)
        if order.scope != WEAK:
            self._synchronise(thread, region, offsets, order, writes, atomic)
        index = shadow.index(offsets, size)
        event = self._access(thread, place, what, order.scope)
        known = thread.frontier.own[GENERIC]
        shared = id(region) in self._blocks
        if shared:
            self._reach(thread, self._blocks[id(region)], thread.number, event)
            self._touch_mbarrier(thread, region, offsets, size, event, writes)
        self._against_writes(thread, shadow, index, known, event, shared, reads=not writes)
        if "nc" in instruction_at(w, place).parts:
            self._against_coherence(shadow, index, event)
        if writes:
            if order.scope == WEAK:
                instruction = id(instruction_at(w, place))
                thread.stores[instruction] = thread.stores.get(instruction, 0) + 1
            self._against_reads(thread, shadow, index, known, event, shared)
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
                continue  # it has read this before, with no release since
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
        self,
        thread: Thread,
        region: Region,
        offsets: np.ndarray,
        size: int,
        event: int,
        writes: bool,
    ) -> None:
        """Check if a plain access touches an mbarrier."""
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
