"""What a thread leaves running: products, bulk stores, and writes without a fence.

One pass over the graph keeps, for each thread's path, what has been started and not been waited
for: where paths meet, what is pending on all of them; where a loop begins, also what its last
iteration left.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from pallasc.checks.static.evaluation import Step
from pallasc.checks.static.events import Access, Arrival, BulkCopy, Place, Product
from pallasc.checks.static.facts import Facts
from pallasc.checks.static.found import Found
from pallasc.checks.static.pending import (
    Pending,
    State,
    commit_group,
    meet,
    overlap,
    wait_group,
    with_iteration,
)
from pallasc.emulator.ptx.syntax import Instruction

Effect = Callable[[State], None]

_OPERAND_BYTES = 128
_READERS = {"cp": "bulk store", "wgmma": "wgmma", "tcgen05": "tcgen05.mma"}
"""What reads shared memory through the asynchronous proxy, by the first part of its opcode."""


def check_asynchrony(facts: Facts) -> Iterator[Found]:
    """Yield what a kernel uses, overwrites or leaves before it has been waited for."""
    walk = _Walk(facts)
    found = {(each.rule, each.instruction): each for each in walk.run()}
    yield from found.values()


class _Walk:
    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.evaluation = facts.evaluation
        self.results: dict[int, frozenset[str]] = {
            product.step.number: product.results for product in facts.products
        }
        self.all_results = frozenset[str]().union(*self.results.values())
        masks = self.evaluation.masks
        self.masks_of = {step.number: masks[step.block] for step in self.evaluation.steps}
        self.found: list[Found] = []
        self.released = self._released_memory()
        self.effects: dict[int, list[tuple[int, Effect]]] = defaultdict(list)
        for step in self.evaluation.steps:
            if (effect := self._effect(step)) is not None:
                self.effects[step.block].append((step.number, effect))

    def run(self) -> list[Found]:
        """Walk over the graph twice, the second time with what loops leave."""
        graph, masks = self.evaluation.graph, self.evaluation.masks
        ends: dict[int, State] = {}
        for is_last in (False, True):
            self.found = []
            earlier, ends = ends, {}
            for number in graph.order:
                if masks[number] is None:
                    continue
                block = graph.blocks[number]
                before = [e for e in block.before if e in ends and not graph.is_back(e, number)]
                if len(before) == 1 and number not in self.effects:
                    state = ends[before[0]]
                else:
                    state = meet([(ends[each], masks[each]) for each in before], self.masks_of)
                if is_last and number in graph.loops:
                    backs = [e for e in block.before if graph.is_back(e, number) and e in earlier]
                    state = with_iteration(state, [earlier[each] for each in backs])
                self._block(number, state)
                ends[number] = state
            if not graph.loops:
                break
        self._never_waited()
        return self.found

    def _never_waited(self) -> None:
        """Note loops that fill what their products read, and wait for none of them."""
        graph = self.evaluation.graph
        if not self.all_results or not self.facts.loads:
            return
        for members in graph.loops.values():
            inside = [s for s in self.evaluation.steps if members >> s.block & 1]
            if any(s.instruction.opcode.startswith("wgmma.wait_group") for s in inside):
                continue
            numbers = {step.number for step in inside}
            products = [p for p in self.facts.products if p.results and p.step.number in numbers]
            for load in self.facts.loads:
                if load.step.number not in numbers:
                    continue
                reader = next((p for p in products if _fills(load, p, self.masks_of)), None)
                if reader is not None:
                    self._tell(
                        "operand-overwritten",
                        "a loop refills the operands of its wgmma and never waits for the wgmma",
                        load.step.instruction,
                        (("reads the memory", reader.step.number),),
                    )
                    break

    def _block(self, number: int, state: State) -> None:
        block = self.evaluation.graph.blocks[number]
        start = block.start
        for place, effect in self.effects.get(number, ()):
            self._accumulators(range(start, place), state)
            effect(state)
            start = place
        self._accumulators(range(start, block.end), state)

    def _effect(self, step: Step) -> Effect | None:
        """Return what an instruction makes of a state, None for nothing."""
        base, *parts = step.instruction.parts
        fact = self.facts.by_step.get(step.number)
        if base == "wgmma":
            return partial(self._wgmma, step, parts, fact)
        if base == "cp" and "bulk" in parts:
            return partial(self._bulk, step, parts, fact)
        if base == "fence" and parts[:2] == ["proxy", "async"] and "global" not in parts[-1]:
            return lambda state: state.writes.clear()
        if base in ("st", "stmatrix") and isinstance(fact, Access):
            return partial(self._write, step, fact)
        if base == "tcgen05" and isinstance(fact, Product):
            return partial(self._unfenced, step, [(p, None, _OPERAND_BYTES) for p in fact.operands])
        if base == "mbarrier" and isinstance(fact, Arrival) and not fact.announces:
            return partial(self._release, step, fact)
        return partial(self._end, step) if base in ("ret", "exit") else None

    # ---- products

    def _wgmma(self, step: Step, parts: list[str], fact: Any, state: State) -> None:
        if isinstance(fact, Product):
            state.products[step.number] = Pending(0)
            self._unfenced(step, [(p, step, _OPERAND_BYTES) for p in fact.operands], state)
        elif parts[0] == "commit_group":
            commit_group(state.products)
        elif parts[0] == "wait_group":
            wait_group(state.products, step.operands[0].number)

    def _accumulators(self, numbers: range, state: State) -> None:
        """Note accumulators that instructions use before they are waited for."""
        code = self.evaluation.kernel.instructions
        for index in numbers if state.products else ():
            statement = code.statements[index]
            if self.all_results.isdisjoint(statement.names):
                continue
            if statement.opcode.startswith("wgmma"):
                continue
            for number, pending in state.products.items():
                if not self.results.get(number, frozenset()).isdisjoint(statement.names):
                    why = "committed" if pending.age == 0 else "waited for"
                    self._tell(
                        "accumulator-before-wait",
                        f"the accumulator of a wgmma that is not {why} is used",
                        code[index],
                        (("starts the wgmma", number),),
                    )
                    break

    def _release(self, step: Step, arrival: Arrival, state: State) -> None:
        """Note memory that is given back while a product still reads it."""
        barrier = arrival.barrier
        if not state.products or barrier is None:
            return
        for number, pending in state.products.items():
            product = self.facts.by_step[number]
            for place in product.operands:
                load = self._refilled(place, product.step, barrier, pending.stale)
                if load is not None:
                    self._tell(
                        "operand-overwritten",
                        "memory is released for the next copy while a wgmma that is not waited for "
                        "may still read it",
                        step.instruction,
                        (("reads the memory", number), ("overwrites it", load.step.number)),
                    )
                    return

    def _released_memory(self) -> dict[int, list[tuple[Place, BulkCopy]]]:
        """Return the copies that wait for a barrier first: by its array, with the barrier."""
        graph = self.evaluation.graph
        released: dict[int, list[tuple[Place, BulkCopy]]] = defaultdict(list)
        if not self.facts.is_local:
            return released
        for wait in self.facts.waits:
            array = self.facts.array(wait.barrier)
            if array is None or wait.barrier is None:
                continue
            for load in self.facts.loads:
                if load.place is None or load.step.number < wait.step.number:
                    continue
                if graph.dominates(wait.step.block, load.step.block):
                    released[array].append((wait.barrier, load))
        return released

    def _refilled(self, place: Place, step: Step, barrier: Place, stale: bool) -> BulkCopy | None:
        """Return a copy that fills a place once a barrier has been arrived at, for certain."""
        array = self.facts.array(barrier)
        for waited, load in self.released.get(array, []) if array is not None else ():
            target = load.place
            if target is None or load.bytes is None or target.symbol != place.symbol:
                continue
            start = target.exact
            if start is None:
                continue
            if not waited.rest and not target.rest and barrier.rest and place.rest:
                if not stale and self._is_slot(place, step, barrier, waited, load):
                    return load
                continue
            inside = any(start <= o < start + load.bytes for o in place.starts(step.threads))
            if not inside or not waited.rest == barrier.rest == place.rest == target.rest == ():
                factor = _factor(waited, target)
                if factor is None or stale or not inside:
                    continue
                if waited.exact != barrier.exact or not _is_multiple(place, barrier, factor):
                    continue
            elif waited.exact != barrier.exact:
                continue
            return load
        return None

    def _is_slot(
        self, place: Place, step: Step, barrier: Place, waited: Place, load: BulkCopy
    ) -> bool:
        """Tell whether a copy of an unrolled loop fills the slot of a place in a loop.

        That is where the copy waits for the barrier of the slot last, for a phase that nobody has
        completed before.
        """
        target, factor = load.place, _factor(barrier, place)
        if factor is None or waited.exact is None or barrier.exact != self.facts.array(barrier):
            return False
        before = [w for w in self.facts.waits if w.step.number < load.step.number]
        graph = self.evaluation.graph
        before = [w for w in before if graph.dominates(w.step.block, load.step.block)]
        last = max(before, key=lambda wait: wait.step.number, default=None)
        if last is None or last.barrier != waited or last.parity != 0 or target is None:
            return False
        start, moved = target.exact, factor * (waited.exact - (barrier.exact or 0))
        return start is not None and any(
            start <= offset + moved < start + (load.bytes or 0)
            for offset in place.starts(step.threads)
        )

    # ---- bulk copies

    def _bulk(self, step: Step, parts: list[str], fact: Any, state: State) -> None:
        if "commit_group" in parts:
            commit_group(state.stores)
        elif "wait_group" in parts:
            wait_group(state.stores, step.operands[0].number)
        elif isinstance(fact, BulkCopy) and fact.barrier is None:
            if fact.place is not None:
                self._unfenced(step, [(fact.place, step, fact.bytes)], state)
                if "bulk_group" in parts:
                    state.stores[step.number] = Pending(0)
        elif isinstance(fact, BulkCopy):
            self._overwrite(step, fact.place, fact.bytes or 1, state)
            self._operands(step, fact.place, fact.bytes or 1, state)

    def _write(self, step: Step, access: Access, state: State) -> None:
        self._overwrite(step, access.place, access.width, state)
        self._operands(step, access.place, access.width, state)
        state.writes[step.number] = Pending(0)

    def _overwrite(self, step: Step, place: Place | None, width: int, state: State) -> None:
        """Note a write to what a bulk store still reads."""
        if place is None:
            return
        for number, pending in state.stores.items():
            store = self.facts.by_step[number]
            if not overlap(place, step, width, store.place, store.step, store.bytes, pending):
                continue
            why = "committed" if pending.age == 0 else "waited for"
            self._tell(
                "bulk-store-source",
                f"memory is overwritten while a bulk store that is not {why} may still read it",
                step.instruction,
                (("reads the memory", number),),
            )
            return

    def _operands(self, step: Step, place: Place | None, width: int, state: State) -> None:
        """Note a write to what a product that was not waited for reads."""
        if place is None:
            return
        for number, pending in state.products.items():
            product = self.facts.by_step[number]
            for read in product.operands:
                if overlap(place, step, width, read, product.step, _OPERAND_BYTES, pending):
                    self._tell(
                        "operand-overwritten",
                        "memory is overwritten while a wgmma that is not waited for may still read "
                        "it",
                        step.instruction,
                        (("reads the memory", number),),
                    )
                    return

    def _unfenced(
        self, step: Step, places: list[tuple[Place, Step | None, int | None]], state: State
    ) -> None:
        """Note asynchronous reads of what was written without a fence since."""
        for number, pending in state.writes.items():
            access = self.facts.by_step[number]
            for place, reader, size in places:
                if overlap(access.place, access.step, access.width, place, reader, size, pending):
                    what = _READERS[step.instruction.parts[0]]
                    self._tell(
                        "missing-proxy-fence",
                        f"no fence.proxy.async between a store to memory and the {what} that reads "
                        "it",
                        step.instruction,
                        (("stores to the memory", number),),
                    )
                    return

    def _end(self, step: Step, state: State) -> None:
        for number, pending in state.stores.items():
            why = "committed" if pending.age == 0 else "waited for"
            self._tell(
                "unfinished-copy",
                f"the kernel ends while a bulk store that is not {why} may still read shared "
                "memory",
                step.instruction,
                (("reads the memory", number),),
            )
            return

    def _tell(
        self,
        rule: str,
        message: str,
        instruction: Instruction,
        others: tuple[tuple[str, int], ...],
    ) -> None:
        instructions = self.evaluation.kernel.instructions
        involved = tuple((text, instructions[number]) for text, number in others)
        self.found.append(Found(rule, message, instruction, involved))


def _fills(load: BulkCopy, product: Product, masks: dict[int, Any]) -> bool:
    """Tell whether a copy fills what a product of the same threads reads, some slot of it."""
    place, size = load.place, load.bytes
    if place is None or size is None or not place.rest or (start := place.exact) is None:
        return False
    if not (masks[load.step.number] & masks[product.step.number]).any():
        return False
    return any(
        read.rest
        and read.symbol == place.symbol
        and any(start <= offset < start + size for offset in read.starts(product.step.threads))
        for read in product.operands
    )


def _factor(barrier: Place, target: Place) -> int | None:
    """Return how many bytes of a buffer a byte of its barriers stands for, None if unclear."""
    if not barrier.rest or len(barrier.rest) != len(target.rest):
        return None
    factors = set()
    for (a, n), (b, m) in zip(barrier.rest, target.rest, strict=True):
        if a != b or m % n:
            return None
        factors.add(m // n)
    return factors.pop() if len(factors) == 1 else None


def _is_multiple(place: Place, barrier: Place, factor: int) -> bool:
    return place.rest == tuple((atom, n * factor) for atom, n in barrier.rest)
