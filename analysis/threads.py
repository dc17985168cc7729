"""Follows the threads of a launch through the PTX, and counts the instructions they execute.

All threads are followed together, grouped into *lanes*. Each warp has two: its first thread, and
its other threads. If the index of a block does not matter, a lane has the threads of all blocks. A
register is an array with one element per lane. The lanes that are farthest back in the code run
first, so that lanes meet again.

Only instructions that decide control flow are computed: those that the guards of branches and of
counted instructions depend on. Registers that loads write are unknown. Waits always succeed
(`mbarrier.try_wait`), and no block takes over the work of another (`clusterlaunchcontrol`), so that
each block of the grid does its own work. `elect.sync` elects the first thread of a warp.

A branch that depends on something unknown, or on a thread's number within its warp, is followed
only if none of the instructions that it skips or repeats is counted, as in a loop that polls a
semaphore. The registers that these instructions write are unknown from then on.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pallasc.emulator.numbers.rounding import Array
from pallasc.emulator.numbers.table import find
from pallasc.emulator.ptx.syntax import (
    Immediate,
    Instruction,
    Kernel,
    Label,
    Operand,
    Register,
    Special,
    Symbol,
    register_numbers,
)
from pallasc.errors import UnsupportedError
from pallasc.specs.artifacts.plan import Launch

MOST_STEPS = 100_000
"""Maximum number of computed instructions, each for up to 2,048 lanes: about a second."""

_STEP_LANES = 2048
_MOST_LANES = 1 << 18
_WARP = 32
_LANE_BITS = 5
_FIRST = 1
"""Index of the first thread in the two lanes of a warp."""

_BRANCHES = frozenset({"bra", "ret", "exit", "trap"})

_KNOWN, _FIRST_THREAD, _UNKNOWN = range(3)
"""What is known of a register: its value in all threads, in the first of each warp, or in none."""


class UnknownWayError(Exception):
    """The threads cannot be followed; the text gives the reason."""


Event = tuple[int, int | None]
"""The number of a counted instruction, and the value of its operand, None if unknown."""


class _Computation(NamedTuple):
    """The operands of an instruction, and how its results follow from them.

    Attributes:
        operands: the sources.
        apply: computes a sequence of results; None if they are unknown.
        is_uniform: the results are the same in all threads of a warp.
    """

    operands: Sequence[Operand] = ()
    apply: Callable[..., Sequence[Array]] | None = None
    is_uniform: bool = False


class _Step(NamedTuple):
    """A computed instruction, a branch, or a counted instruction.

    Attributes:
        number: the number of the instruction.
        results, sources: slots of registers and of other operands.
        target: the step to branch to; None if it is no branch.
    """

    number: int
    guard: Register | None
    computation: _Computation
    results: Sequence[int]
    sources: Sequence[int]
    target: int | None


class _Count(NamedTuple):
    """How often each lane executed an instruction while its operand had these values."""

    number: int
    values: Array | None
    times: Array

    def events(self, threads: Array) -> Counter[Event]:
        """Return the executions by all threads."""
        times = self.times * threads
        if self.values is None:
            return Counter({(self.number, None): int(times.sum())})
        each = ((value, times[self.values == value]) for value in np.unique(self.values))
        return Counter({(self.number, int(value)): int(some.sum()) for value, some in each})


class Walk:
    """Follows the threads of a launch.

    Args:
        kernel: its kernel.
        launch: the launch.
        counted: the numbers of the instructions to count, each with an operand whose value matters.
        addresses: the addresses of the kernel's parameters.
    """

    def __init__(
        self,
        kernel: Kernel,
        launch: Launch,
        counted: Mapping[int, Operand],
        addresses: Mapping[str, int],
    ) -> None:
        self._kernel, self._launch = kernel, launch
        self._counted, self._addresses = counted, addresses
        self._slots: dict[Operand, int] = {}  # of operands that are not registers
        self._unknown: set[int] = set()
        needed, numbers = _needed(kernel, launch, counted), []
        for number, computation in sorted(needed.items()):
            each = kernel.instructions[number]
            if computation.apply is None:
                self._unknown.update(_registers(each.results))
            if computation.apply or number in counted or each.parts[0] in _BRANCHES:
                numbers.append(number)
        self._steps = [self._step(number, needed[number], numbers) for number in numbers]
        self._targets = {len(numbers), *(step.target for step in self._steps)}

    def _step(self, number: int, computation: _Computation, numbers: Sequence[int]) -> _Step:
        each, target = self._kernel.instructions[number], None
        if each.parts[0] in _BRANCHES:
            labels = [operand.target for operand in each.operands if isinstance(operand, Label)]
            target = bisect_left(numbers, labels[0]) if labels else len(numbers)
        sources = [self._slot(operand) for operand in computation.operands]
        return _Step(number, each.guard, computation, _registers(each.results), sources, target)

    def _slot(self, operand: Operand) -> int:
        if isinstance(operand, Register) and not operand.negated:
            return operand.number
        return self._slots.setdefault(operand, len(self._kernel.registers) + len(self._slots))

    def follow(self) -> Counter[Event]:
        """Return how many threads execute each counted instruction.

        Raises:
            UnknownWayError: the counts depend on unknown values, or take too long to compute.
        """
        names = {operand.name for operand in self._slots if isinstance(operand, Special)}
        self._threads, specials = _lanes(self._launch, names)
        self._left = MOST_STEPS * _STEP_LANES
        self._found = Counter[Event]()
        self._counts: dict[int, _Count] = {}
        slots = len(self._kernel.registers) + len(self._slots)
        self._values = [np.zeros(self._threads.size, np.uint64)] * slots
        self._doubts = [_UNKNOWN if slot in self._unknown else _KNOWN for slot in range(slots)]
        for operand, slot in self._slots.items():
            value, self._doubts[slot] = self._initial(operand, specials)
            self._values[slot] = np.full(self._threads.size, value, np.uint64)
        places = np.zeros(self._threads.size, np.int64)
        while (place := int(places.min())) < len(self._steps):
            lanes = places == place
            np.copyto(places, self._run(place, lanes), where=lanes)
        for count in self._counts.values():
            self._found += count.events(self._threads)
        return self._found

    def _initial(self, operand: Operand, specials: Mapping[str, Any]) -> tuple[Any, int]:
        """Return the value of an operand that is not a register, and what is known of it."""
        if isinstance(operand, Immediate) and operand.width is None:
            return operand.bits % (1 << 64), _KNOWN
        if isinstance(operand, Symbol) and operand.name in self._addresses:
            return self._addresses[operand.name] + operand.offset, _KNOWN
        if isinstance(operand, Special) and operand.name in specials:
            varies = operand.name == "%laneid" or operand.name.startswith("%tid")
            return specials[operand.name], _FIRST_THREAD if varies else _KNOWN
        return 0, _UNKNOWN

    def _run(self, place: int, lanes: Array) -> Array | int:
        """Run lanes up to a branch or the target of a branch; return the step of each lane."""
        while True:
            self._left -= max(lanes.size, _STEP_LANES)
            if self._left < 0:
                raise UnknownWayError(f"it takes more than {MOST_STEPS:,} steps to follow")
            step = self._steps[place]
            if step.target is not None:
                return self._branch(place, step.guard, step.target)
            if step.number in self._counted:
                self._count(step, lanes)
            else:
                self._compute(step, lanes)
            place += 1
            if place in self._targets:
                return place

    def _branch(self, place: int, guard: Register | None, target: int) -> Array | int:
        if guard is None:
            return target
        if self._doubts[guard.number] != _KNOWN:
            return self._skip(place, target)
        return np.where(self._holds(guard), target, place + 1)

    def _holds(self, guard: Register) -> Array:
        held: Array = (self._values[guard.number] != 0) != guard.negated
        return held

    def _compute(self, step: _Step, lanes: Array) -> None:
        doubt = max(self._doubts[source] for source in step.sources)
        if doubt != _UNKNOWN and step.computation.apply is not None:
            values = step.computation.apply(*[self._values[source] for source in step.sources])
            for register, value in zip(step.results, values, strict=True):
                self._values[register] = np.where(lanes, value, self._values[register])
            doubt = _KNOWN if step.computation.is_uniform else doubt
        for register in step.results:
            self._doubts[register] = max(doubt, self._doubts[register])

    def _count(self, step: _Step, lanes: Array) -> None:
        if step.guard is not None:
            if self._doubts[step.guard.number] != _KNOWN:
                raise self._unknown_way(step)
            lanes = lanes & self._holds(step.guard)
        (source,) = step.sources
        values = None if self._doubts[source] else self._values[source]
        count = self._counts.get(step.number)
        if count is None or count.values is not values:
            if count is not None:
                self._found += count.events(self._threads)
            count = _Count(step.number, values, np.zeros(lanes.size, np.int64))
            self._counts[step.number] = count
        np.add(count.times, lanes, out=count.times)

    def _skip(self, branch: int, target: int) -> int:
        """Return the step after the code that a branch skips or repeats.

        The registers that this code writes become unknown.

        Raises:
            UnknownWayError: the code has counted instructions, or another branch leaves it.
        """
        first, after = min(branch, target), max(branch + 1, target)
        for step in self._steps[first:after]:
            leaves = step.target is not None and not first <= step.target <= after
            if leaves or step.number in self._counted:
                raise self._unknown_way(self._steps[branch])
            for register in step.results:
                self._doubts[register] = _UNKNOWN
        return after

    def _unknown_way(self, step: _Step) -> UnknownWayError:
        line = self._kernel.instructions[step.number].line
        return UnknownWayError(f"line {line} of the PTX depends on data, or on the lane of a warp")


def _needed(
    kernel: Kernel, launch: Launch, counted: Mapping[int, Operand]
) -> dict[int, _Computation]:
    """Return the counted instructions, the branches, and the instructions that they depend on."""
    writers: defaultdict[int, list[int]] = defaultdict(list)
    needed: dict[int, _Computation] = {}
    waiting: list[int] = []
    for number, each in enumerate(kernel.instructions):
        for register in _registers(each.results):
            writers[register].append(number)
        if number in counted or each.parts[0] in _BRANCHES:
            operands = [counted[number]] if number in counted else []
            needed[number] = _Computation(operands)
            waiting += _registers([*operands, each.guard] if each.guard else operands)
    while waiting:
        for number in writers[waiting.pop()]:
            if number not in needed:
                needed[number] = _computation(kernel.instructions[number], launch)
                waiting += _registers(needed[number].operands)
    return needed


def _registers(operands: Sequence[Operand]) -> list[int]:
    return [number for operand in operands for number in register_numbers(operand)]


def _computation(each: Instruction, launch: Launch) -> _Computation:
    name, operands, count = each.parts[0], each.operands, len(_registers(each.results))
    if each.guard is not None:
        return _Computation()
    if name == "elect" and count == 2:
        return _Computation([Special("elect")], lambda elected: (0 * elected, elected))
    if count == 1 and ("try_wait" in each.parts or "test_wait" in each.parts):
        return _Computation([Immediate(1)], _copy)
    if count == 1 and "is_canceled" in each.parts:
        return _Computation([Immediate(0)], _copy)
    if count == 1 and name in ("mov", "cvta"):
        return _Computation(operands[1:], _copy)
    if count == 1 and each.opcode.startswith("shfl.sync.idx") and operands[2] == Immediate(0):
        return _Computation(operands[1:2], _copy_first, is_uniform=True)
    apply = _arithmetic(each.opcode, count, len(operands) - 1)
    if apply is None:
        return _Computation()
    by = operands[-1]
    finds_warp = name == "shr" and isinstance(by, Immediate) and by.bits >= _LANE_BITS
    is_uniform = finds_warp and launch.block[0] % _WARP == 0
    return _Computation(operands[1:], apply, is_uniform)


def _copy(value: Array) -> Sequence[Array]:
    return (value,)


def _copy_first(value: Array) -> Sequence[Array]:
    return (np.repeat(value[_FIRST::2], 2),)


def _arithmetic(opcode: str, results: int, sources: int) -> Callable[..., Sequence[Array]] | None:
    """Return the function of an integer instruction, for registers of 64 bits."""
    try:
        found = find(opcode, destinations=results)
    except UnsupportedError:
        return None
    if found is None or (len(found.results), len(found.sources)) != (results, sources):
        return None
    if any(dtype.kind not in "uib" for dtype in (*found.sources, *found.results)):
        return None

    def apply(*values: Array) -> Sequence[Array]:
        pairs = zip(values, found.sources, strict=True)
        computed = found.apply(*[value.astype(dtype) for value, dtype in pairs])
        return [each.astype(np.uint64) for each in (computed if results > 1 else [computed])]

    return apply


def _lanes(launch: Launch, names: set[str]) -> tuple[Array, dict[str, Any]]:
    """Return the number of threads of each lane, and the special registers, including "elect".

    Args:
        launch: the launch.
        names: the special registers that matter.

    Raises:
        UnknownWayError: there are too many lanes.
    """
    axes = [any(f"ctaid.{axis}" in name for name in names) for axis in "xyz"]
    blocks = [size if used else 1 for size, used in zip(launch.grid, axes, strict=True)]
    shape = (*blocks, -(-math.prod(launch.block) // _WARP), 2)
    if math.prod(shape) > _MOST_LANES:
        raise UnknownWayError(f"there are more than {_MOST_LANES:,} lanes to follow")
    *block, warp, elected = np.indices(shape).reshape(5, -1)
    x, y, _ = launch.block
    first, cluster = _WARP * warp, launch.cluster or (1, 1, 1)
    thread = (first % x, first // x % y, first // (x * y))
    specials = {"%laneid": 0, "elect": elected}
    for n, axis in enumerate("xyz"):
        specials[f"%tid.{axis}"] = thread[n]
        specials[f"%ntid.{axis}"] = launch.block[n]
        specials[f"%ctaid.{axis}"] = block[n]
        specials[f"%nctaid.{axis}"] = launch.grid[n]
        specials[f"%cluster_ctaid.{axis}"] = block[n] % cluster[n]
    blocks_together = math.prod(launch.grid) // math.prod(blocks)
    return np.where(elected == _FIRST, 1, _WARP - 1) * blocks_together, specials
