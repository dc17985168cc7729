"""Addresses and coordinates against what they lie in: arrays, shared memory, tensor maps.

Only accesses that some block certainly makes are reported: none depends on an unknown condition,
and its indices are multiples of the block's index, of threads and of iterations of counted loops.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pallasc.checks.static.evaluation import Step
from pallasc.checks.static.events import BulkCopy
from pallasc.checks.static.facts import Facts
from pallasc.checks.static.found import Found
from pallasc.checks.static.read_facts import access_bytes
from pallasc.checks.static.values import Value
from pallasc.checks.static.walk import Iteration, number_of, walk
from pallasc.specs.artifacts.plan import Binding, Buffer, LaunchPlan

_ACCESSES = ("ld.", "st.", "red.", "atom.")


class Arrays(NamedTuple):
    """The arrays of a launch plan, and the buffers that they lie in."""

    buffers: tuple[Buffer, ...]
    inputs: tuple[Binding, ...]
    outputs: tuple[Binding, ...]


def check_bounds(facts: Facts, arrays: Arrays) -> Iterator[Found]:
    """Yield the accesses of a kernel that are out of bounds."""
    reach = _Reach(facts)
    yield from _shared(facts)
    for copy in (*facts.loads, *facts.stores):
        if copy.map is not None and copy.map.im2col is None:
            yield from _coordinates(copy, reach)
    for step in facts.evaluation.steps:
        if _is_global(step):
            yield from _pointer(step, facts, arrays, reach)


def _is_global(step: Step) -> bool:
    return "global" in step.instruction.parts and step.instruction.opcode.startswith(_ACCESSES)


def _shared(facts: Facts) -> Iterator[Found]:
    """Yield what lies behind the end of a block's shared memory."""
    size = facts.launch.dynamic_smem_bytes
    accesses = [(each.step, each.place, each.width) for each in (*facts.reads, *facts.writes)]
    accesses += [
        (each.step, each.place, each.bytes)
        for each in (*facts.loads, *facts.stores)
        if each.place is not None and each.bytes is not None
    ]
    for step, place, width in accesses:
        if place is None or place.rest or place.symbol != facts.dynamic_memory:
            continue
        starts = place.starts(step.threads)
        if starts and (starts[-1] + width > size or starts[0] < 0):
            span = (starts[0], starts[-1] + width)
            yield Found(
                "out-of-bounds",
                _outside(*span, size, "the block's shared memory"),
                step.instruction,
                subject="shared memory",
            )


class _Reach:
    """The values that atoms take for certain."""

    def __init__(self, facts: Facts) -> None:
        self._evaluation = facts.evaluation
        self._grid = facts.launch.grid
        self._walks: dict[int, list[Iteration]] = {}
        self._certain: dict[int, bool] = {}
        self._spans: dict[tuple[int, Value], tuple[int, int] | None] = {}

    def last(self, value: Value, step: Step) -> tuple[int, int] | None:
        """Return the least and the largest number that a value takes, None if not known."""
        if not self._is_certain(step.block) or step.threads is None:
            return None
        constant = value.constant
        if isinstance(constant, int):
            least = most = constant
        else:
            chosen = constant[step.threads]
            least, most = int(chosen.min()), int(chosen.max())
        for atom, factor in value.terms:
            end = self._end(atom, step.block)
            if end is None:
                return None
            least, most = least + min(0, factor * end), most + max(0, factor * end)
        return least, most

    def walked(self, value: Value, step: Step) -> tuple[int, int] | None:
        """Return the same of a value in a loop that is walked, as far as it is."""
        header = self._evaluation.graph.loop_of[step.block]
        is_number = isinstance(value.constant, int)
        if header is None or value.is_known or step.threads is None or not is_number:
            return None
        if header not in self._walks:
            certain = self._is_certain(header)
            self._walks[header] = walk(self._evaluation, header) if certain else []
        key = step.block, value
        if key not in self._spans:
            self._spans[key] = self._span(value, step.block, self._walks[header])
        return self._spans[key]

    def _span(
        self, value: Value, block: int, iterations: list[Iteration]
    ) -> tuple[int, int] | None:
        """Return the least and the largest number that a value is in a block of a loop."""
        spans = []
        for iteration in iterations:
            if block not in iteration.blocks:
                continue
            lowest = highest = value.constant
            for atom, factor in value.terms:
                end = self._end(atom, block) if self._is_index(atom) else None
                number = number_of(self._evaluation, Value(((atom, 1),), 0), iteration.numbers)
                if end is None and number is None:
                    return None
                steps = (0, factor * end) if end is not None else (factor * (number or 0),)
                lowest, highest = lowest + min(steps), highest + max(steps)
            spans.append((lowest, highest))
        if not spans:
            return None
        return min(low for low, _ in spans), max(high for _, high in spans)

    def _is_index(self, atom: int) -> bool:
        return str(self._evaluation.atoms.kind(atom)) == "special"

    def _end(self, atom: int, block: int) -> int | None:
        """Return the largest number that an atom takes; the least is 0."""
        description = self._evaluation.atoms.descriptions[atom]
        if description[0] == "special" and description[1].startswith("%ctaid."):
            return self._grid["xyz".index(description[1][-1])] - 1
        if description[0] == "iteration":
            return self._evaluation.last_iteration(description[1], block)
        return None

    def _is_certain(self, block: int) -> bool:
        """Tell whether a block runs whatever the conditions that are not known."""
        if block not in self._certain:
            self._certain[block] = self._runs(block)
        return self._certain[block]

    def _runs(self, block: int) -> bool:
        evaluation = self._evaluation
        region = evaluation.regions[block]
        while region != 0:
            if region not in evaluation.graph.loops:
                return False
            before = [
                each
                for each in evaluation.graph.blocks[region].before
                if not evaluation.graph.is_back(each, region)
            ]
            if len({evaluation.regions[each] for each in before}) != 1:
                return False
            region = evaluation.regions[before[0]]
        return True


def _coordinates(copy: BulkCopy, reach: _Reach) -> Iterator[Found]:
    tensor = copy.map
    coordinates = copy.step.coordinates
    if tensor is None or len(coordinates) != len(tensor.dims):
        return
    for axis, (value, size, box) in enumerate(
        zip(coordinates, tensor.dims, tensor.box, strict=True)
    ):
        found = reach.last(value, copy.step) or reach.walked(value, copy.step)
        if found is None:
            continue
        least, most = found
        if most >= size or least + box <= 0:
            start = most if most >= size else least
            yield Found(
                "out-of-bounds",
                f"a copied box begins at index {start} of dimension {len(tensor.dims) - 1 - axis}, "
                f"which has {size} elements: the whole box is out of bounds",
                copy.step.instruction,
                subject="a copied box",
            )
            return


def _pointer(step: Step, facts: Facts, arrays: Arrays, reach: _Reach) -> Iterator[Found]:
    is_store = step.instruction.parts[0] in ("st", "red")
    address = step.operands[0 if is_store else 1]
    if not isinstance(address, Value):
        return
    pointer = facts.pointer(address)
    if pointer is None:
        return
    atom, parameter = pointer
    rest = Value(tuple(term for term in address.terms if term[0] != atom), address.constant)
    found = reach.last(rest, step)
    if found is None:
        return
    size = arrays.buffers[parameter.buffer].size - parameter.offset
    least, most = found[0], found[1] + access_bytes(step)
    if most > size or least < 0:
        yield Found(
            "out-of-bounds",
            _outside(least, most, size, name_of(arrays, parameter.buffer)),
            step.instruction,
            subject=name_of(arrays, parameter.buffer),
        )


def _outside(begin: int, end: int, size: int, name: str) -> str:
    """Return what is wrong with accesses from one byte up to another, of which one is outside."""
    if end > size:
        return f"an access ends at byte {end} of {name}, which has {size} bytes"
    return f"an access begins at byte {begin}, before the first byte of {name}"


def name_of(arrays: Arrays | LaunchPlan, buffer: int) -> str:
    """Return what a user calls a buffer."""
    for bindings, kind in ((arrays.inputs, "the input"), (arrays.outputs, "the output")):
        for binding in bindings:
            if binding.buffer == buffer:
                return f"{kind} {binding.path}".rstrip()
    return f"buffer {buffer}"


def written_buffers(facts: Facts) -> set[int] | None:
    """Return the buffers that a kernel may write to, None if that is not known."""
    written: set[int] = set()
    for copy in facts.stores:
        target = copy.step.operands[0]
        if copy.map is not None:
            written.add(copy.map.buffer)
        elif isinstance(target, Value) and (pointer := facts.pointer(target)) is not None:
            written.add(pointer[1].buffer)
        else:
            return None
    for step in facts.evaluation.steps:
        base, *parts = step.instruction.parts
        if base not in ("st", "red", "atom", "multimem") or "shared" in parts or "local" in parts:
            continue
        if any(part.startswith("shared") for part in parts):
            continue
        values = [each for each in step.operands if isinstance(each, Value)]
        pointers = [found for each in values if (found := facts.pointer(each)) is not None]
        if not pointers:
            return None
        written |= {pointer.buffer for _, pointer in pointers}
    return written
