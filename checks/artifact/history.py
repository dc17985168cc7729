"""History of each warp around a race, deadlock or fault: the nearby synchronization.

Missing synchronization cannot be shown, but its neighbors can.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pallasc.checks.artifact.prefetches import Prefetches
from pallasc.checks.findings import Place
from pallasc.emulator.machine.block import Asynchronous, Block, Prefetch
from pallasc.emulator.machine.waits import MbarrierWait
from pallasc.emulator.machine.warp import Warp
from pallasc.emulator.ptx.syntax import Instruction
from pallasc.emulator.races.observer import Races
from pallasc.emulator.races.threads import Event, instruction_at

_MOST_BEFORE = 3
_WAITS = {"try_wait", "test_wait", "wait_group"}
_REMEMBERED = 256
"""The number of most recent synchronizations kept per warp."""


class Done(NamedTuple):
    """A synchronization of a warp; `stamp` is the number of events before it."""

    stamp: int
    instruction: Instruction

    def place(self, when: str) -> Place:
        """Return it as a place that takes part in a finding."""
        return Place(f"{when}: {self.instruction.opcode}", ptx_line=self.instruction.line)


class _Barrier:
    """The events at an mbarrier."""

    __slots__ = ("arrivals", "count", "initialised")

    def __init__(self, initialised: Instruction) -> None:
        self.initialised = initialised
        self.arrivals: dict[int, tuple[Instruction, int]] = {}  # by the identity of the instruction

    def arrive(self, instruction: Instruction) -> None:
        _, count = self.arrivals.get(id(instruction), (instruction, 0))
        self.arrivals[id(instruction)] = (instruction, count + 1)


class History(Races):
    """Find races, and remember each warp's recent synchronizations and each mbarrier's arrivals."""

    def __post_init__(self) -> None:
        """Reset the history, but keep the findings so far."""
        super().__post_init__()
        self._done: dict[Warp, deque[Done]] = {}
        self._barriers: dict[tuple[int, int], _Barrier] = {}
        self._context: dict[int, tuple[Place, ...]] = getattr(self, "_context", {})
        self._last_barrier: tuple[int, int] | None = None
        self.prefetches: Prefetches = getattr(self, "prefetches", None) or Prefetches()
        self.prefetches.new_launches()

    # Queries.

    def between(self, number: int) -> tuple[Place, ...]:
        """Return the synchronization between the accesses of a finding, in time order."""
        return self._context.get(number, ())

    def before(self, warp: Warp, place: int) -> list[Place]:
        """Return a warp's last steps before a place in its code, most recent first.

        Includes its last arrival at an mbarrier.
        """
        here = instruction_at(warp, place)
        found: dict[int, Done] = {}
        arrival: Done | None = None
        for done in reversed(self._done.get(warp, ())):
            if done.instruction is here or not _tells(done.instruction):
                continue
            if len(found) < _MOST_BEFORE:
                found.setdefault(id(done.instruction), done)
            if arrival is None and done.instruction.parts[:2] == ("mbarrier", "arrive"):
                arrival = done
            if arrival is not None and len(found) == _MOST_BEFORE:
                break
        if arrival is not None:
            found.setdefault(id(arrival.instruction), arrival)
        return [done.place(f"earlier in warp {warp.index}") for done in found.values()]

    def at_end(self, warp: Warp) -> list[Place]:
        """Return the last step of a warp that has ended."""
        done = self._done.get(warp)
        last = next((each for each in reversed(done or ()) if _tells(each.instruction)), None)
        return [last.place(f"last in warp {warp.index}, which has ended")] if last else []

    def at_barrier(self, warp: Warp, wait: MbarrierWait) -> tuple[list[Place], bool]:
        """Return the places of a barrier being waited for, and whether anything ever arrived."""
        for block in warp.block.cluster.blocks:
            known = self._barriers.get((id(block), wait.offset))
            if known is not None and block.mbarriers.get(wait.offset) is wait.barrier:
                return list(_places(known, wait.barrier.expected)), bool(known.arrivals)
        return [], True

    def around_fault(self, block: Block | None) -> list[Place]:
        """Return where the last used mbarrier is initialized, or else the mbarriers of a block."""
        if self._last_barrier in self._barriers:
            known = self._barriers[self._last_barrier]
            return list(_places(known, None))
        return [
            Place("an mbarrier of the block is initialized here", ptx_line=known.initialised.line)
            for (owner, _), known in self._barriers.items()
            if block is not None and owner == id(block)
        ]

    # Events.

    def initialised(self, w: Warp, place: int, block: Block, offset: int) -> None:
        """Record that an mbarrier is about to be initialized."""
        super().initialised(w, place, block, offset)
        self._barriers[id(block), offset] = _Barrier(instruction_at(w, place))

    def arrived(
        self, w: Warp, place: int, barrier: tuple[Any, ...], *, releases: bool = True
    ) -> None:
        """Record that a warp is about to arrive at a barrier."""
        super().arrived(w, place, barrier, releases=releases)
        if barrier[0] == "mbarrier":
            self._arrive(barrier[1], barrier[2], instruction_at(w, place))
        self._note(w, place)

    def passed(self, w: Warp, place: int, barrier: tuple[Any, ...]) -> None:
        """Record that a wait for a barrier is over."""
        super().passed(w, place, barrier)
        self._note(w, place)

    def waited(
        self, w: Warp, place: int, operations: Sequence[Asynchronous], *, reads_only: bool = False
    ) -> None:
        """Record that a warp has waited for operations it issued, or only for their reads."""
        super().waited(w, place, operations, reads_only=reads_only)
        self._note(w, place)

    def fenced(self, w: Warp, place: int) -> None:
        """Record a fence."""
        super().fenced(w, place)
        self._note(w, place)

    def issued(self, w: Warp, place: int, operation: Asynchronous) -> None:
        """Record the start of an asynchronous operation."""
        super().issued(w, place, operation)
        if operation.signals:
            self._note(w, place)

    def completing(self, operation: Asynchronous) -> None:
        """Record that an asynchronous operation is about to complete."""
        super().completing(operation)
        for block, offset in operation.signals:
            self._arrive(block, offset, operation.instruction)

    def ended(self, block: Block) -> None:
        """Record that a block has ended."""
        super().ended(block)
        for key in [key for key in self._barriers if key[0] == id(block)]:
            del self._barriers[key]
        for warp in block.warps:
            self._done.pop(warp, None)

    def prefetched(self, w: Warp, place: int, prefetch: Prefetch) -> None:
        """Record a prefetch by a warp."""
        self.prefetches.note(w, place, prefetch)

    def _arrive(self, block: Block, offset: int, instruction: Instruction) -> None:
        self._last_barrier = (id(block), offset)
        if self._last_barrier in self._barriers:
            self._barriers[self._last_barrier].arrive(instruction)

    def _note(self, w: Warp, place: int) -> None:
        done = self._done.get(w)
        if done is None:
            done = self._done[w] = deque(maxlen=_REMEMBERED)
        done.append(Done(len(self._events), instruction_at(w, place)))

    def _others(self, event: Event) -> list[Done]:
        """Return the synchronizations of the accessing warp, except the access itself."""
        here = event.access.instruction
        return [each for each in self._done.get(event.warp, ()) if each.instruction is not here]

    # Races.

    def _find(
        self, rule: str, message: str, second: Event, first: Event | None = None, *rest: Any
    ) -> None:
        count = len(self.findings)
        super()._find(rule, message, second, first, *rest)
        if len(self.findings) > count:
            self._context[count] = tuple(self._between(first, second))

    def _between(self, first: Event | None, second: Event) -> Iterator[Place]:
        if first is not None:
            number = next(n for n in reversed(range(len(self._events))) if self._is(n, first))
            done = self._others(first)
            before = [each for each in done if each.stamp <= number]
            if wait := _last_wait(before):
                yield wait.place("last wait before this access")
            if len(done) > len(before):
                yield done[len(before)].place("next after this access")
        if done := self._others(second):
            if (wait := _last_wait(done)) and wait.instruction is not done[-1].instruction:
                yield wait.place("last wait before the next access")
            yield done[-1].place("last before the next access")

    def _is(self, number: int, event: Event) -> bool:
        return self._events[number] is event


def _last_wait(done: Sequence[Done]) -> Done | None:
    return next((each for each in reversed(done) if _WAITS & set(each.instruction.parts)), None)


def _tells(instruction: Instruction) -> bool:
    """Return True if an instruction is a complete step, not a part of another one."""
    parts = instruction.parts
    inside = {"expect_tx", "noComplete"} & set(parts)
    return parts[0] not in ("bar", "barrier", "fence", "membar") and not inside


def _places(barrier: _Barrier, expected: int | None) -> Iterator[Place]:
    line = barrier.initialised.line
    count = "" if expected is None else f" for {expected} arrivals"
    yield Place(f"the mbarrier is initialized{count}", ptx_line=line)
    for instruction, times in barrier.arrivals.values():
        often = f"{times} times" if times > 1 else "once"
        yield Place(f"signals it {often}: {instruction.opcode}", ptx_line=instruction.line)
