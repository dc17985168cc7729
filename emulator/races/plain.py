"""Loads, stores and atomic operations of lanes, and the semaphores among them."""

from __future__ import annotations

from typing import Any

import numpy as np

from pallasc.emulator.machine.memory import PARAMETERS, SHARED, Region
from pallasc.emulator.machine.warp import Warp
from pallasc.emulator.ptx.syntax import Instruction
from pallasc.emulator.races.agents import GENERIC, Frontier
from pallasc.emulator.races.ledger import Ledger
from pallasc.emulator.races.shadow import Index, Shadow
from pallasc.emulator.races.threads import Order, Thread, instruction_at

_MBARRIER_BYTES = 8


class PlainAccesses(Ledger):
    """Watches what warps do themselves."""

    def read(self, w: Warp, place: int, region: Region, offsets: Any, mask: Any, size: int) -> None:
        """Take note that lanes read `size` bytes at offsets of a region; no mask means all."""
        self._plain(w, place, region, offsets, mask, size, writes=False, what="the load")

    def write(
        self, w: Warp, place: int, region: Region, offsets: Any, mask: Any, size: int
    ) -> None:
        """Take note that lanes write."""
        self._plain(w, place, region, offsets, mask, size, writes=True, what="the store")

    def atomic(
        self, w: Warp, place: int, region: Region, offsets: Any, mask: Any, size: int
    ) -> None:
        """Take note of an atomic operation of lanes."""
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
        if order.strong:
            self._synchronise(thread, region, offsets, order, writes, atomic)
        index = shadow.index(offsets, size)
        event = self._access(thread, place, what, order.strong)
        known = thread.frontier.own[GENERIC]
        shared = id(region) in self._blocks
        if shared:
            self._touch_mbarrier(thread, region, offsets, size, event, writes)
        self._against_writes(thread, shadow, index, known, event, shared, reads=not writes)
        if writes:
            self._against_reads(thread, shadow, index, known, event, shared)
            shadow.written[index] = event
            if atomic:
                return
        else:
            self._record_read(thread, shadow, thread.number, index, event, shared)

    def _record_read(
        self, thread: Thread, shadow: Shadow, agent: int, index: Index, event: int, shared: bool
    ) -> None:
        shadow.record_read(agent if shared else 0, index, event)

    def _order(self, instruction: Instruction, atomic: bool) -> Order:
        found = self._orders.get(instruction)
        if found is None:
            parts = set(instruction.parts[1:])
            both = "acq_rel" in parts
            found = Order(
                both or "acquire" in parts,
                both or "release" in parts,
                atomic or bool(parts & {"acquire", "release", "relaxed", "volatile", "mmio", "sc"}),
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
        """Let what is ordered at semaphores pass on what its warp knows, or learn of others."""
        for offset in np.unique(offsets).tolist():
            key = (id(region), offset)
            if atomic or not writes:
                self._acquire(thread, key, order)
            if writes:
                self._release(thread, key, order)

    def _acquire(self, thread: Thread, key: tuple[int, int], order: Order) -> None:
        held = self._sync.get(key)
        if not held:
            return
        if order.acquires:
            self._learn(thread.frontier, thread.cluster.number, held)
            return
        if thread.acquired is None:
            thread.acquired = Frontier(thread.cluster.agents.frontier())
        self._learn(thread.acquired, thread.cluster.number, held)

    def _learn(self, frontier: Frontier, cluster: int, held: dict[int, np.ndarray]) -> None:
        others = {number: table for number, table in held.items() if number != cluster}
        if cluster in held:
            np.maximum(frontier.own, held[cluster], out=frontier.own)
        frontier.join_others(others)

    def _release(self, thread: Thread, key: tuple[int, int], order: Order) -> None:
        given = self._given(thread) if order.releases else thread.released
        if given is None:
            return
        held = self._sync.setdefault(key, {})
        for number, table in {**given.others, thread.cluster.number: given.own}.items():
            known = held.get(number)
            held[number] = table.copy() if known is None else np.maximum(known, table)

    def _touch_mbarrier(
        self,
        thread: Thread,
        region: Region,
        offsets: np.ndarray,
        size: int,
        event: int,
        writes: bool,
    ) -> None:
        """Look whether a plain access reaches an mbarrier."""
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
                    f"{second.access.what} {does} the mbarrier at shared {at:#x} as plain memory",
                    second,
                    self._events[self._initialised.get((id(region), at), 0)],
                    self._shadows[id(region)].name,
                    (at, at + _MBARRIER_BYTES),
                )
