"""Registers of wgmma: they must be fenced before use, and unchanged until completion."""

from __future__ import annotations

from collections.abc import Sequence

from pallasc.emulator.machine.block import Asynchronous
from pallasc.emulator.machine.warp import Warp
from pallasc.emulator.races.findings import Access
from pallasc.emulator.races.plain import PlainAccesses
from pallasc.emulator.races.threads import Event, Tag, Thread, instruction_at


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
                access = Access("the instruction", instruction_at(w, place), w.actor)
                does = "overwrites" if is_write else "reads"
                what = "an accumulator" if held[1] else "the A operand"
                self._find(
                    "wgmma-registers" if held[1] else "wgmma-operand",
                    f"the instruction {does} {what} of a wgmma in flight: no wgmma.wait_group "
                    "between them",
                    Event(access, w),
                    first,
                )
