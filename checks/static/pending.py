"""What a thread has started and not waited for, at a place of a kernel.

Groups are counted as PTX does: what a wait for all but N groups lets go is what N or more commits
followed (PTX ISA 9.0, 9.7.9.25.3, 9.7.15.7).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pallasc.checks.static.evaluation import Step
from pallasc.checks.static.events import Place


@dataclass(frozen=True, slots=True)
class Pending:
    """Something that was started: `age` is how many groups were committed since."""

    age: int
    stale: bool = False  # started in an earlier iteration of a loop around


@dataclass(slots=True)
class State:
    """What is pending: products, bulk stores, and stores of threads, by their instructions."""

    products: dict[int, Pending] = field(default_factory=dict)
    stores: dict[int, Pending] = field(default_factory=dict)
    writes: dict[int, Pending] = field(default_factory=dict)

    def tables(self) -> tuple[dict[int, Pending], ...]:
        """Return its tables."""
        return self.products, self.stores, self.writes

    def copy(self) -> State:
        """Return a state that is changed apart from this one."""
        return State(*(dict(table) for table in self.tables()))


def with_iteration(state: State, last: list[State]) -> State:
    """Return what is pending when an iteration begins, the first or another one."""
    result = state.copy()
    for each in last:
        for mine, theirs in zip(result.tables(), each.tables(), strict=True):
            for number, pending in theirs.items():
                mine.setdefault(number, Pending(pending.age, stale=True))
    return result


def meet(states: list[tuple[State, Any]], masks_of: Mapping[int, Any]) -> State:
    """Return what is pending on all paths that its threads may have come by.

    `states` are those of the blocks before, each with the threads that reach it; `masks_of` the
    threads that reach an instruction.
    """
    if not states:
        return State()
    result = states[0][0].copy()
    if len(states) == 1:
        return result
    tables = [state.tables() for state, _ in states]
    for place, mine in enumerate(result.tables()):
        for number in {n for each in tables for n in each[place]}:
            threads = masks_of[number]
            there = [
                each[place].get(number)
                for each, (_, mask) in zip(tables, states, strict=True)
                if (threads & mask).any()
            ]
            mine.pop(number, None)
            pending = [each for each in there if each is not None]
            if pending and len(pending) == len(there):
                mine[number] = Pending(
                    max(each.age for each in pending), any(each.stale for each in pending)
                )
    return result


def commit_group(table: dict[int, Pending]) -> None:
    """Make a group of what was started since the last one."""
    for number, pending in table.items():
        table[number] = Pending(pending.age + 1, pending.stale)


def wait_group(table: dict[int, Pending], but: int | None) -> None:
    """Let go what was committed, less the last groups."""
    for number, pending in list(table.items()):
        if pending.age > (but or 0):
            del table[number]


def overlap(
    written: Place,
    writer: Step,
    width: int,
    read: Place | None,
    reader: Step | None,
    size: int | None,
    pending: Pending,
) -> bool:
    """Tell whether what is written overlaps what is read, for certain."""
    if read is None or size is None or not written.is_like(read) or (pending.stale and read.rest):
        return False
    starts = read.starts(None if reader is None else reader.threads)
    places = written.starts(writer.threads)
    return any(
        start < place + width and place < start + size for start in starts for place in places
    )
