"""Barriers: bytes and arrivals that come against those that are waited for; reads without a wait.

Instructions are compared where they run exactly when each other do (`Evaluation.regions`), on the
same barrier. Kernels of clusters are left out: other blocks arrive at their barriers.
"""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from pallasc.checks.static.events import Arrival, BulkCopy, Place, Wait
from pallasc.checks.static.facts import Facts
from pallasc.checks.static.found import Found
from pallasc.checks.static.values import Value as _Value
from pallasc.checks.static.values import key_of

_Consumer = tuple[Any, Sequence[tuple[Place, Sequence[int]]], str]
"""What reads shared memory: places, each with the offsets that threads begin at, in order."""

_MOST_SHOWN = 4
"""Arrivals that are shown with a finding: an unrolled loop has many."""


def check_barriers(facts: Facts) -> Iterator[Found]:
    """Yield what is wrong with the barriers of a kernel."""
    if not facts.is_local:
        return
    yield from _bytes(facts)
    yield from _arrivals(facts)
    if facts.loads:
        consumers = list(_consumers(facts))
        yield from _reads(facts, consumers)
        yield from _refills(facts, consumers)


def _key(place: Place) -> Hashable:
    return place.symbol, key_of(_Value(place.rest, place.offset))


def _groups(facts: Facts, events: list[Any]) -> dict[Hashable, list[Any]] | None:
    """Return events by region and barrier, None if one of them has an unknown barrier."""
    groups: dict[Hashable, list[Any]] = defaultdict(list)
    for event in events:
        if event.barrier is None:
            return None
        groups[facts.evaluation.regions[event.step.block], _key(event.barrier)].append(event)
    return groups


# ---- bytes


def _bytes(facts: Facts) -> Iterator[Found]:
    announced = _groups(facts, [each for each in facts.arrivals if each.announces])
    copied = _groups(facts, facts.loads)
    if announced is None or copied is None:
        return
    never = {facts.array(each.barrier) for each in facts.arrivals if each.announces}
    for key, copies in copied.items():
        there = _total([(copy.step.count, copy.bytes) for copy in copies])
        arrivals: list[Arrival] = announced.get(key, [])
        array = facts.array(copies[0].barrier)
        if not arrivals and (array is None or array in never):
            continue  # it may be announced elsewhere
        expected = _total([(each.step.count, each.bytes) for each in arrivals])
        if there is None or expected is None or there == expected:
            continue
        what = "copies that signal it move" if len(copies) > 1 else "copy that signals it moves"
        announced_text = f"{expected} bytes are announced" if arrivals else "no bytes are announced"
        yield Found(
            "transaction-bytes",
            f"{announced_text} to a barrier (expect_tx), but the {what} {there} bytes",
            (arrivals or copies)[0].step.instruction,
            tuple((_copy_text(copy), copy.step.instruction) for copy in copies),
        )


def _copy_text(copy: BulkCopy) -> str:
    if copy.map is None:
        return f"copies {copy.bytes} bytes"
    box = " × ".join(str(size) for size in copy.map.box)
    return f"copies a box of {box} {copy.map.dtype}: {copy.bytes} bytes"


def _total(parts: list[tuple[int | None, int | None]]) -> int | None:
    total = 0
    for count, size in parts:
        if count is None or size is None:
            return None
        total += count * size
    return total


# ---- arrivals


def _arrivals(facts: Facts) -> Iterator[Found]:
    by_array: dict[int, list[Arrival]] = defaultdict(list)
    by_count: dict[int, list[Arrival]] = defaultdict(list)
    for arrival in facts.arrivals:
        if (place := arrival.barrier) is None or place.exact not in facts.inits:
            return
        array = facts.array(place)
        if arrival.count != 0 and array is None:
            by_count[facts.inits[place.exact]].append(arrival)
        elif arrival.count != 0 and array is not None:
            by_array[array].append(arrival)
    waits: dict[int, list[Wait]] = defaultdict(list)
    for wait in facts.waits:
        if (place := wait.barrier) is None or place.exact not in facts.inits:
            return
        if (array := facts.array(place)) is not None:
            waits[array].append(wait)
    for array, waiting in waits.items():
        yield from _array(facts, facts.inits[array], by_array[array], waiting)
    # Which array they belong to is not clear, but its number is.
    for number, arrivals in by_count.items():
        yield from _array(facts, number, arrivals, [])


def _array(facts: Facts, count: int, arrivals: list[Arrival], waits: list[Wait]) -> Iterator[Found]:
    graph = facts.evaluation.graph
    if not arrivals:
        if all(wait.parity == 1 for wait in waits):
            return  # the phase before the first is complete
        yield Found(
            "arrivals",
            f"nothing arrives at the barrier that is waited for; arrivals expected: {count}",
            waits[0].step.instruction,
        )
        return
    sums: dict[Hashable, int] = defaultdict(int)
    waits_before = [wait.step.number for wait in facts.waits]
    for arrival in arrivals:
        if arrival.step.count is None or arrival.count is None or arrival.barrier is None:
            return
        region = facts.evaluation.regions[arrival.step.block]
        # Between two waits, arrivals are those of one phase.
        phase = bisect.bisect(waits_before, arrival.step.number)
        sums[region, phase, _key(arrival.barrier)] += arrival.step.count * arrival.count
    shown = arrivals[:_MOST_SHOWN]
    others = tuple((_arrival_text(each), each.step.instruction) for each in shown)
    together = math.gcd(*sums.values())
    is_once = all(graph.loop_of[each.step.block] is None for each in arrivals)
    total = sum(sums.values())
    if waits and is_once and total < count:
        yield Found(
            "arrivals",
            f"the barrier expects {count} arrivals, but there are only {total}: this wait never "
            "ends",
            waits[0].step.instruction,
            others,
        )
    elif count % together:
        yield Found(
            "arrivals",
            f"the barrier expects {count} arrivals, but they come {together} at a time",
            arrivals[0].step.instruction,
            others,
        )


def _arrival_text(arrival: Arrival) -> str:
    threads, count = arrival.step.count, arrival.count
    each = "" if count == 1 else f", {count} times each"
    return (
        f"{threads} thread{'s' if threads != 1 else ''} arrive{'s' if threads == 1 else ''}{each}"
    )


# ---- reads


def _reads(facts: Facts, consumers: list[_Consumer]) -> Iterator[Found]:
    awaited = _Awaited(facts)
    loads = [(load, facts.array(load.barrier)) for load in facts.loads if _is_known(load)]
    reported: set[int] = set()
    for step, places, what in consumers:
        for load, array in loads:
            if array is None or load.step.number in reported or not _touches(places, load):
                continue
            if awaited.may_be(array, step):
                continue
            reported.add(load.step.number)
            yield Found(
                "read-before-wait",
                f"{what} memory that a bulk copy fills, with no earlier wait on the barrier of "
                "the copy",
                step.instruction,
                ((_copy_text(load), load.step.instruction),),
            )


def _is_known(load: BulkCopy) -> bool:
    return load.place is not None and load.bytes is not None


def _consumers(facts: Facts) -> Iterator[_Consumer]:
    """Yield what reads shared memory."""
    for product in facts.products:
        base, threads = product.step.instruction.parts[0], product.step.threads
        name = "tcgen05.mma" if base == "tcgen05" else base
        places = [(place, place.starts(threads)) for place in product.operands]
        yield product.step, places, f"{name} reads"
    for read in facts.reads:
        yield read.step, [(read.place, read.place.starts(read.step.threads))], "a load reads"


def _touches(places: Sequence[tuple[Place, Sequence[int]]], load: BulkCopy) -> bool:
    """Tell whether a read begins within what a copy fills, or in another slot of its buffer."""
    filled = load.place
    if filled is None or load.bytes is None or (start := filled.exact) is None:
        return False
    end = start + load.bytes
    for place, offsets in places:
        if filled.symbol == place.symbol and bool(filled.rest) == bool(place.rest):
            first = bisect.bisect_left(offsets, start)
            if first < len(offsets) and offsets[first] < end:
                return True
    return False


class _Awaited:
    """Which barriers are waited for before an instruction, in the order of a single pass."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        graph = facts.evaluation.graph
        self._waits: dict[int, list[Wait]] = defaultdict(list)
        self._unknown = False
        for wait in facts.waits:
            if wait.barrier is None or wait.barrier.exact not in facts.inits:
                self._unknown = True
            elif (array := facts.array(wait.barrier)) is not None:
                self._waits[array].append(wait)
        self._before = [0] * len(graph.blocks)
        for number in graph.order:
            for before in graph.blocks[number].before:
                if not graph.is_back(before, number):
                    self._before[number] |= self._before[before] | 1 << before

    def may_be(self, array: int, step: Any) -> bool:
        """Tell whether a barrier may have been waited for when an instruction runs."""
        if self._unknown:
            return True
        masks = self._facts.evaluation.masks
        for wait in self._waits[array]:
            block = wait.step.block
            if block == step.block and wait.step.number < step.number:
                return True
            if self._before[step.block] >> block & 1:
                return True
            # Other threads may wait, and then let these go on.
            if (masks[block] & ~masks[step.block]).any():
                return True
        return False


# ---- copies into memory that is read


def _refills(facts: Facts, consumers: list[_Consumer]) -> Iterator[Found]:
    """Yield copies in a loop that fill the same memory again and again, with nothing to wait for.

    Only where other threads read it: those of the loop may be held back by what they wait for.
    """
    evaluation = facts.evaluation
    graph, masks = evaluation.graph, evaluation.masks
    reported = set()
    for load in facts.loads:
        header = graph.loop_of[load.step.block]
        if header is None or header in reported or not _is_known(load):
            continue
        while (outer := _around(graph, header)) is not None:
            header = outer
        members = graph.loops[header]
        inside = [s for s in evaluation.steps if members >> s.block & 1]
        if any(_holds_back(step, evaluation.thread_count) for step in inside):
            continue
        readers = [(step, what) for step, places, what in consumers if _touches(places, load)]
        if not readers or any((masks[s.block] & masks[header]).any() for s, _ in readers):
            continue
        reported.add(header)
        yield Found(
            "refill-without-wait",
            "a loop refills this memory without waiting for the threads that read it",
            load.step.instruction,
            tuple((f"{what} it", step.instruction) for step, what in readers[:1]),
        )


def _around(graph: Any, header: int) -> int | None:
    """Return the header of the loop around a loop, or None."""
    around = [h for h, members in graph.loops.items() if h != header and members >> header & 1]
    return min(around, key=lambda h: graph.loops[h].bit_count(), default=None)


def _holds_back(step: Any, threads: int) -> bool:
    """Tell whether an instruction may wait for other threads."""
    base, *parts = step.instruction.parts
    if base == "mbarrier":
        return parts[0] in ("try_wait", "test_wait")
    if base == "bar":
        count = step.operands[1].number if len(step.operands) > 1 else None
        return count is None or step.count is None or count > step.count
    return base in ("barrier", "ld", "atom", "clusterlaunchcontrol")
