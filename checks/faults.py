"""Turns faults, deadlocks and races of an emulation into findings with PTX lines.

A finding also lists the waits, arrivals and fences that the involved warps executed shortly before
or after. Missing synchronization has no line to show; these neighbors indicate where it belongs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

from pallasc.checks.findings import (
    ACCUMULATOR_BEFORE_WAIT,
    BARRIER_MISUSE,
    DEADLOCK,
    FAILED_ASSERTION,
    INVALID_INSTRUCTION,
    MEMORY_LIMIT,
    MISALIGNED,
    MISSING_PROXY_FENCE,
    OPERAND_OVERWRITTEN,
    OUT_OF_BOUNDS,
    RACE,
    UNFINISHED_COPY,
    UNINITIALIZED,
    Finding,
    Place,
    Rule,
)
from pallasc.emulator.machine.block import Asynchronous, Block
from pallasc.emulator.machine.machine import Deadlock, Machine
from pallasc.emulator.machine.memory import Fault
from pallasc.emulator.machine.warp import MbarrierWait, Warp
from pallasc.emulator.program import PlanRun, program
from pallasc.emulator.ptx.syntax import Instruction
from pallasc.emulator.races.observer import Races
from pallasc.emulator.races.threads import Access, Event
from pallasc.emulator.races.threads import Finding as Raced
from pallasc.emulator.tensors.tensor_memory import COLUMNS
from pallasc.specs.artifacts.plan import Launch

_MOST_BEFORE = 3
_WAITS = {"try_wait", "test_wait", "wait_group"}
_REMEMBERED = 256
"""The number of most recent synchronizations kept per warp."""


class Done(NamedTuple):
    """A synchronization that a warp executed; `stamp` is the number of accesses recorded before."""

    stamp: int
    instruction: Instruction

    def place(self, when: str) -> Place:
        """Return the instruction as a place of a finding."""
        return Place(f"{when}: {self.instruction.opcode}", ptx_line=self.instruction.line)


class _Barrier:
    """The events at an mbarrier."""

    __slots__ = ("arrivals", "count", "initialised")

    def __init__(self, initialised: Instruction) -> None:
        self.initialised = initialised
        self.arrivals: dict[int, tuple[Instruction, int]] = {}  # by id() of the instruction

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

    # Queries.

    def between(self, number: int) -> tuple[Place, ...]:
        """Return the synchronizations around the two accesses of a finding, in time order."""
        return self._context.get(number, ())

    def before(self, warp: Warp, place: int) -> list[Place]:
        """Return a warp's last synchronizations before a place in its code, most recent first.

        They include the warp's last arrival at an mbarrier.
        """
        here = warp.instruction(place)
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
        """Return the last synchronization of a warp that has ended."""
        done = self._done.get(warp)
        last = next((each for each in reversed(done or ()) if _tells(each.instruction)), None)
        return [last.place(f"last in warp {warp.index}, which has ended")] if last else []

    def at_barrier(self, warp: Warp, wait: MbarrierWait) -> list[Place]:
        """Return where the barrier of a wait is initialized and signaled."""
        for block in warp.block.cluster.blocks:
            known = self._barriers.get((id(block), wait.offset))
            if known is not None and block.mbarriers.get(wait.offset) is wait.barrier:
                return list(_places(known, wait.barrier.expected))
        return []

    def around_fault(self, block: Block | None) -> list[Place]:
        """Return the places of the last used mbarrier, else of all mbarriers of a block."""
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
        self._barriers[id(block), offset] = _Barrier(w.instruction(place))

    def arrived(
        self, w: Warp, place: int, barrier: tuple[Any, ...], *, releases: bool = True
    ) -> None:
        """Record that a warp is about to arrive at a barrier."""
        super().arrived(w, place, barrier, releases=releases)
        if barrier[0] == "mbarrier":
            self._arrive(barrier[1], barrier[2], w.instruction(place))
        self._note(w, place)

    def passed(self, w: Warp, place: int, barrier: tuple[Any, ...]) -> None:
        """Record that a wait for a barrier is over."""
        super().passed(w, place, barrier)
        self._note(w, place)

    def waited(
        self, w: Warp, place: int, operations: Sequence[Asynchronous], *, reads_only: bool = False
    ) -> None:
        """Record that a warp has waited for operations that it issued, or only for their reads."""
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

    def _arrive(self, block: Block, offset: int, instruction: Instruction) -> None:
        self._last_barrier = (id(block), offset)
        if self._last_barrier in self._barriers:
            self._barriers[self._last_barrier].arrive(instruction)

    def _note(self, w: Warp, place: int) -> None:
        done = self._done.get(w)
        if done is None:
            done = self._done[w] = deque(maxlen=_REMEMBERED)
        done.append(Done(len(self._events), w.instruction(place)))

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
    """Return False for fences, block barriers and byte counts, which are parts of other steps."""
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


_MOST_PLACES = 16
_RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "assertion": FAILED_ASSERTION,
        "barrier-count": BARRIER_MISUSE,
        "barrier-number": BARRIER_MISUSE,
        "cluster-wait": BARRIER_MISUSE,
        "deadlock": DEADLOCK,
        "invalid-operand": INVALID_INSTRUCTION,
        "lane-mask": INVALID_INSTRUCTION,
        "mbarrier-count": BARRIER_MISUSE,
        "misaligned": MISALIGNED,
        "no-mbarrier": BARRIER_MISUSE,
        "no-tensor-map": INVALID_INSTRUCTION,
        "not-aligned": INVALID_INSTRUCTION,
        "not-uniform": INVALID_INSTRUCTION,
        "out-of-bounds": OUT_OF_BOUNDS,
        "tensor-allocation": MEMORY_LIMIT,
        "too-many-arrivals": BARRIER_MISUSE,
        "transaction-overflow": BARRIER_MISUSE,
        "trap": FAILED_ASSERTION,
    }
)
"""Rules of findings, by the emulator's rule for a fault."""

_RACES: Mapping[str, Rule] = MappingProxyType(
    {
        "bulk-store-not-awaited": UNFINISHED_COPY,
        "copy-not-awaited": UNFINISHED_COPY,
        "mbarrier-bytes-left": BARRIER_MISUSE,
        "mbarrier-overwritten": BARRIER_MISUSE,
        "mbarrier-read": BARRIER_MISUSE,
        "mbarrier-reinitialised": BARRIER_MISUSE,
        "missing-mbarrier-fence": BARRIER_MISUSE,
        "noncoherent-load": RACE,
        "missing-proxy-fence": MISSING_PROXY_FENCE,
        "missing-tensor-fence": ACCUMULATOR_BEFORE_WAIT,
        "uninitialized-read": UNINITIALIZED,
        "wgmma-not-awaited": UNFINISHED_COPY,
        "wgmma-operand": OPERAND_OVERWRITTEN,
        "wgmma-registers": ACCUMULATOR_BEFORE_WAIT,
    }
)
"""Rules of findings, by the emulator's rule for a race; all other rules become `RACE`."""
_MOST_RACES = 24
"""Maximum number of races in the PTX; `checks.locate` then merges those of one source line."""
_MOST_TEXT = 80


def fault_finding(fault: Fault, machine: Machine, history: History | None = None) -> Finding:
    """Return the finding for a fault of the kernels running on a machine."""
    history = History() if history is None else history
    if isinstance(fault, Deadlock):
        return _deadlock(fault, history)
    instruction = fault.instruction
    message = fault.message.strip().rstrip(".")
    who = f"{fault.actor}: " if fault.actor is not None else ""
    cubin, kernel = running_kernel(machine)
    return Finding(
        rule=_RULES[fault.rule].name,
        message=f"{who}{message}",
        instruction=shown(instruction),
        kernel=kernel,
        cubin=cubin,
        ptx_line=instruction.line if instruction is not None else 0,
        places=tuple(_around(fault, machine, history)),
        subject=fault.rule,
    )


def _around(fault: Fault, machine: Machine, history: History) -> Iterator[Place]:
    warp = next((w for c in machine.clusters for w in c.warps if w.actor == fault.actor), None)
    if _RULES.get(fault.rule) is BARRIER_MISUSE:
        yield from history.around_fault(warp.block if warp is not None else None)
    if warp is not None and fault.place is not None:
        yield from history.before(warp, fault.place)


def _deadlock(deadlock: Deadlock, history: History) -> Finding:
    (first, place, _), *_ = deadlock.waiting
    kernel = first.block.launch.program.kernel
    instruction = kernel.instructions[place]
    groups: dict[tuple[int, str], list[str]] = {}
    for warp, at, reason in deadlock.waiting:
        groups.setdefault((at, reason), []).append(str(warp.actor))
    places = [
        Place(f"{_who(actors)} for {reason}", ptx_line=kernel.instructions[at].line, waits=True)
        for (at, reason), actors in groups.items()
    ]
    left = len(places) - _MOST_PLACES
    if left > 0:
        places[_MOST_PLACES:] = [Place(f"and {left} more groups of warps")]
    context = dict.fromkeys(_context(deadlock, history))
    places += [each for each in context if each not in places]
    return Finding(
        rule=DEADLOCK.name,
        message=deadlock.summary,
        hint=deadlock.hint or "",
        instruction=shown(instruction),
        kernel=kernel.name,
        cubin=first.block.launch.cubin,
        ptx_line=instruction.line,
        places=tuple(places),
    )


def _context(deadlock: Deadlock, history: History) -> list[Place]:
    """Return the awaited barriers, and the last synchronizations of waiting and ended warps."""
    found: list[Place] = []
    barriers: set[int] = set()
    done: dict[tuple[object, ...], list[Place]] = {}  # warps with equal steps share an entry
    groups: dict[tuple[int, str], Block] = {}
    for warp, at, reason in deadlock.waiting:
        if groups.setdefault((at, reason), warp.block) is warp.block:
            before = history.before(warp, at)
            done.setdefault((at, reason, *(each.ptx_line for each in before)), before)
        for split in warp.splits:
            if isinstance(split.waits, MbarrierWait) and id(split.waits.barrier) not in barriers:
                barriers.add(id(split.waits.barrier))
                found += history.at_barrier(warp, split.waits)
    clusters = {id(w.block.cluster): w.block.cluster for w, _, _ in deadlock.waiting}
    ended = [w for cluster in clusters.values() for w in cluster.warps if w.ended]
    return [*found, *chain(*done.values()), *chain(*map(history.at_end, ended))]


def _who(actors: list[str]) -> str:
    more = f" and {len(actors) - 1} more wait" if len(actors) > 1 else " waits"
    return f"{actors[0]}{more}"


def race_findings(history: History, run: PlanRun) -> list[Finding]:
    """Return the findings for the races in the kernels that a run has launched."""
    kernels: dict[int, Launch] = {}
    for step in run.plan.launches:
        for instruction in program(run.ptx_of(step), step.kernel).kernel.instructions:
            kernels[id(instruction)] = step
    return [
        _race(raced, kernels, history.between(number))
        for number, raced in enumerate(history.findings[:_MOST_RACES])
    ]


def _race(raced: Raced, kernels: Mapping[int, Launch], between: Sequence[Place]) -> Finding:
    second = raced.second
    step = kernels.get(id(second.instruction))
    places = [*between, _accessing(second)]
    if (first := raced.first) is not None:
        places.insert(0, _accessing(first))
    return Finding(
        rule=_RACES.get(raced.rule, RACE).name,
        message=f"{raced.message.strip().rstrip('.')}{_where(raced)}",
        instruction=shown(second.instruction),
        kernel=step.kernel if step is not None else "",
        cubin=step.cubin if step is not None else "",
        ptx_line=second.instruction.line,
        places=tuple(places),
        subject=raced.rule,
    )


def _accessing(access: Access) -> Place:
    return Place(f"{access.what} by {access.actor}", ptx_line=access.instruction.line)


def _where(raced: Raced) -> str:
    if raced.begin is None or raced.end is None:
        return ""
    if raced.memory == "tensor memory":
        lane, column = divmod(raced.begin, COLUMNS)
        return f"; the first is at lane {lane}, column {column} of tensor memory"
    return f"; bytes {raced.begin:#x} to {raced.end - 1:#x} of {raced.memory}"


def shown(instruction: Instruction | None) -> str:
    """Return an instruction as findings show it: its text and its line of the PTX."""
    if instruction is None:
        return ""
    text = instruction.text.strip()
    if len(text) > _MOST_TEXT:  # instructions with dozens of registers
        text = f"{text[:_MOST_TEXT].rpartition(',')[0] or text[:_MOST_TEXT]}, …"
    return f"{text}, PTX line {instruction.line}"


def running_kernel(machine: Machine) -> tuple[str, str]:
    """Return the cubin digest and the name of the kernel running on a machine."""
    if not machine.launches:
        return "", ""
    launch = machine.launches[0]
    return launch.cubin, launch.program.kernel.name
