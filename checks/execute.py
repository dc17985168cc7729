"""Runs a plan under several schedules, and finds the instructions that computed a wrong element.

While a kernel runs, `Sources` records for each read of shared, tensor and global memory which
instruction wrote the data. From a read to the next write, a value passes through registers; these
are followed backward in the kernel's code. Registers with addresses are not followed: the list of
instructions already contains the load from a wrong address.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import numpy as np

from pallasc.emulator.machine.block import AccessKind, Asynchronous, Observer, cell_numbers
from pallasc.emulator.machine.machine import Launch, Machine, Policy
from pallasc.emulator.machine.memory import PARAMETERS, SHARED, Actor, EmulationTimeout, Region
from pallasc.emulator.machine.warp import Step, Warp
from pallasc.emulator.program import PlanRun, Program, program
from pallasc.emulator.ptx.syntax import Instruction, Kernel, Operand, register_numbers
from pallasc.emulator.tensors.tensor_memory import COLUMNS, LANES
from pallasc.specs.arrays import parse_dtype
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.plan import Binding

_SHIFT = 2  # writes are tracked per 4-byte granule


class Source(NamedTuple):
    """An instruction that a value comes from.

    Attributes:
        early: True if the instruction was still in flight when its result was read.
        accesses: description of the shared-memory bytes that the instruction accesses.
    """

    instruction: Instruction
    early: bool
    accesses: str = ""


class Writer(NamedTuple):
    """An instruction that wrote an element."""

    instruction: Instruction
    actor: Actor


class Sources(Observer):
    """Records which instruction wrote the data that another instruction reads.

    Each write has a number: its index in `_writes`, counted from 1. "By id" means by Python's id().

    Args:
        watched: returns a region, and the start and end of its watched bytes.

    Attributes:
        writer: the last instruction that wrote watched bytes.
    """

    records = True

    def __init__(self, watched: Callable[[], tuple[Region, int, int]]) -> None:
        self._watched, self.writer = watched, cast("Writer | None", None)
        self._written: dict[int, np.ndarray] = {}  # last write of each granule, by id of memory
        self._alive: list[Any] = []  # keeps memories alive, so that no id is reused
        self._writes: list[tuple[Instruction, Asynchronous | None]] = []
        self._plain: dict[int, int] = {}  # synchronous writes, by id of instruction
        self._fed: dict[int, dict[int, Source]] = {}  # sources, by id of the reading instruction
        self._unwritten: dict[int, range] = {}  # unwritten shared granules read, by id of reader
        self._accessed: dict[int, range] = {}  # shared granules accessed, by id of instruction

    def behind(self, start: Instruction, kernels: Sequence[Kernel]) -> list[Source]:
        """Return the instructions that a written value comes from, nearest first.

        Args:
            start: the instruction that wrote the value.
            kernels: all kernels that ran; a kernel may read data that another has written.
        """
        of = {id(each): kernel for kernel in kernels for each in kernel.instructions}
        definitions: dict[int, Mapping[int, Sequence[Instruction]]] = {}
        found: dict[int, Source] = {}
        seen: set[int] = set()
        left = [start]
        while left:
            following: list[Instruction] = []
            for instruction in left:
                if id(instruction) in seen:
                    continue
                seen.add(id(instruction))
                for source in self._fed.get(id(instruction), {}).values():
                    known = found.get(id(source.instruction))
                    early = source.early or (known is not None and known.early)
                    found[id(source.instruction)] = Source(source.instruction, early)
                    following.append(source.instruction)
                if id(instruction) in self._fed:
                    found.setdefault(id(instruction), Source(instruction, early=False))
                values = () if _loads(instruction) else _values(instruction)
                kernel = of[id(instruction)]
                if id(kernel) not in definitions:
                    definitions[id(kernel)] = _definitions(kernel)
                defined = definitions[id(kernel)]
                for number in (n for value in values for n in register_numbers(value)):
                    following += defined.get(number, ())
            left = following
        return [
            source._replace(accesses=self._accesses_text(source.instruction))
            for source in found.values()
            if source.instruction is not start
        ]

    def writers(self, region: Region) -> list[Instruction]:
        """Return the instructions that wrote the current contents of a memory region."""
        numbers = np.unique(self._written.get(id(region), np.zeros(0, np.int32))).tolist()
        found = [self._writes[number - 1][0] for number in numbers if number]
        return list({id(instruction): instruction for instruction in found}.values())

    def unread(self) -> list[Instruction]:
        """Return the synchronous writes whose data was never read."""
        read = {number for fed in self._fed.values() for number in fed}
        return [self._writes[n - 1][0] for i, n in self._plain.items() if i not in read]

    # Observer methods.

    def accessed(
        self,
        w: Warp,
        place: int,
        kind: AccessKind,
        region: Region,
        offsets: Any,
        mask: Any,
        size: int,
    ) -> None:
        """Record an access by lanes; see `Observer`."""
        if mask is not None:
            offsets = offsets[mask]
        instruction = w.instruction(place)
        if kind == "read":
            if not PARAMETERS <= region.base < SHARED:
                self._feed(instruction, region, _granules(offsets, size))
            return
        number = self._plain.get(id(instruction))
        if number is None:
            number = self._plain[id(instruction)] = self._number(instruction, None)
        self._write(instruction, region, offsets, size, number)
        self._change(Writer(instruction, w.actor), region, offsets, size)

    def issued(self, w: Warp, place: int, operation: Asynchronous) -> None:
        """Record the start of an asynchronous operation."""
        instruction = operation.instruction
        for region, offsets, size in operation.reads:
            self._feed(instruction, region, _granules(offsets, size))
        for cells in operation.cells_read:
            memory, index = cell_numbers(cells)
            self._feed(instruction, memory, index, LANES * COLUMNS)
        if not operation.writes and not operation.cells_written:
            return
        number = self._number(instruction, operation)
        for region, offsets, size in operation.writes:
            if isinstance(offsets, np.ndarray) or 0 <= offsets < region.size:
                self._write(instruction, region, offsets, size, number)
        for cells in operation.cells_written:
            memory, index = cell_numbers(cells)
            self._of(memory, LANES * COLUMNS)[index] = number

    def completed(self, operation: Asynchronous) -> None:
        """Record the writes of an asynchronous operation."""
        for region, offsets, size in operation.writes:
            self._change(Writer(operation.instruction, operation.actor), region, offsets, size)

    def _write(
        self, instruction: Instruction, region: Region, offsets: Any, size: int, number: int
    ) -> None:
        index = _granules(offsets, size)
        written = self._of(region, region.size >> _SHIFT)
        written[index] = number
        if region.base >= SHARED:
            _extend(self._accessed, instruction, _numbers(index, len(written)))

    def _change(self, writer: Writer, region: Region, offsets: Any, size: int) -> None:
        watched, begin, end = self._watched()
        if region is watched and np.any((offsets < end) & (offsets + size > begin)):
            self.writer = writer

    def _number(self, instruction: Instruction, operation: Asynchronous | None) -> int:
        self._writes.append((instruction, operation))
        return len(self._writes)

    def _of(self, memory: Any, size: int) -> np.ndarray:
        found = self._written.get(id(memory))
        if found is None:
            found = self._written[id(memory)] = np.zeros(size + 1, np.int32)
            self._alive.append(memory)
        return found

    def _feed(self, reader: Instruction, memory: Any, index: Any, size: int | None = None) -> None:
        count = memory.size >> _SHIFT if size is None else size
        everything = self._of(memory, count)
        written = everything[index]
        if isinstance(memory, Region) and memory.base >= SHARED:
            granules = _numbers(index, len(everything))
            _extend(self._accessed, reader, granules)
            _extend(self._unwritten, reader, granules[written == 0])
        fed = self._fed.setdefault(id(reader), {})
        for number in np.unique(written).tolist():
            if number:
                instruction, operation = self._writes[number - 1]
                known = fed.get(id(instruction))
                early = operation is not None and not operation.done
                if known is None or (early and not known.early):
                    fed[id(instruction)] = Source(instruction, early)

    def _accesses_text(self, instruction: Instruction) -> str:
        unwritten = self._unwritten.get(id(instruction))
        granules = unwritten or self._accessed.get(id(instruction))
        if granules is None:
            return ""
        begin, end = granules.start << _SHIFT, granules.stop << _SHIFT
        text = f"bytes {begin:#x} to {end - 1:#x} of shared memory"
        return f", which reads {text}, never written" if unwritten else f" at {text}"


def _extend(ranges: dict[int, range], instruction: Instruction, granules: np.ndarray) -> None:
    """Extend the range of an instruction to these granules."""
    if granules.size:
        first, last = int(granules.min()), int(granules.max())
        before = ranges.get(id(instruction), range(first, last + 1))
        both = range(min(first, before.start), max(last + 1, before.stop))
        ranges[id(instruction)] = both


def _granules(offsets: np.ndarray | int, size: int) -> slice | np.ndarray:
    if not isinstance(offsets, np.ndarray):
        return slice(max(offsets, 0) >> _SHIFT, -(-(offsets + size) >> _SHIFT))
    starts = offsets.astype(np.int64) >> _SHIFT
    count = -(-size >> _SHIFT)
    found: np.ndarray = (starts[:, None] + np.arange(count)).ravel() if count > 1 else starts
    return found


def _numbers(index: slice | np.ndarray, count: int) -> np.ndarray:
    return index if isinstance(index, np.ndarray) else np.arange(*index.indices(count))


def _loads(instruction: Instruction) -> bool:
    """Return True if an instruction's value comes from memory; its registers are addresses."""
    first, *rest = instruction.parts
    if first == "tcgen05":
        return rest[0] == "ld"
    return first in ("ldmatrix", "atom", "multimem") or (first == "ld" and rest[0] != "param")


def _values(instruction: Instruction) -> Sequence[Operand]:
    """Return the operands whose values flow into an instruction's result."""
    if instruction.parts[0] in ("st", "stmatrix", "red"):
        return instruction.operands[1:]
    if instruction.parts[0] == "tcgen05":
        return instruction.operands[1:] if instruction.parts[1] == "st" else ()
    return () if instruction.parts[0] == "cp" else instruction.operands[1:]


def _definitions(kernel: Kernel) -> Mapping[int, Sequence[Instruction]]:
    found: dict[int, list[Instruction]] = {}
    for instruction in kernel.instructions:
        for number in (n for each in instruction.results for n in register_numbers(each)):
            found.setdefault(number, []).append(instruction)
    return found


POISONS = (0xFF, 0x00)
"""Initial bytes of memory, alternating between schedules.

They read as NaN and zero, True and False, -1 and 0: no element of any type is the same in both.
"""


def policies(count: int, seed: int) -> list[Policy]:
    """Return the schedules of a check.

    In the first schedule, asynchronous operations complete only when something waits for them. In
    the others, warps take turns at random, and asynchronous operations complete at once or at
    random times. In every second schedule, starting with the first, other kernels keep the GPU
    busy, so that running clusters take over the work of waiting clusters (`Policy.busy`).
    """
    others = [
        Policy(
            seed=seed + number,
            shuffle=True,
            eagerness=1.0 if number % 2 else 0.5,
            busy=not number % 2,
        )
        for number in range(1, count)
    ]
    return [Policy(seed=seed, busy=True), *others]


class Element(NamedTuple):
    """An element of an output on a device."""

    device: int
    output: Binding
    at: tuple[int, ...]

    def bytes(self) -> tuple[int, int]:
        """Return the start and end of the element's bytes in its buffer."""
        output = self.output
        order = output.layout[::-1] if output.layout is not None else range(len(output.shape))
        shape = tuple(output.shape[d] for d in order)
        index = tuple(self.at[d] for d in order)
        number = int(np.ravel_multi_index(index, shape)) if shape else 0
        bits = parse_dtype(output.dtype).bits
        return number * bits // 8, -(-(number + 1) * bits // 8)


class Origin(NamedTuple):
    """The origin of an element's value.

    Attributes:
        writer: the last instruction that wrote the element, None if no kernel wrote it.
        sources: the instructions that the written value comes from.
        kernel: cubin digest and name of the kernel that contains `writer`, `others`, and `unread`.
        others: if nothing wrote the element, the instructions that wrote other elements of its
            array.
        unread: if nothing wrote the array, the instructions that wrote memory that was never read.
        elsewhere: the kernels of those `sources` that are in other kernels, by id() of the
            source's instruction.
    """

    writer: Writer | None
    sources: Sequence[Source] = ()
    kernel: tuple[str, str] | None = None
    others: Sequence[Instruction] = ()
    unread: Sequence[Instruction] = ()
    elsewhere: Mapping[int, tuple[str, str]] = MappingProxyType({})


@dataclass(slots=True)
class Reaching(Machine):
    """A machine that records which instructions it executes.

    Attributes:
        left: the instructions that no run has executed yet, by cubin digest and kernel name; shared
            between runs.
    """

    left: dict[tuple[str, str], dict[int, Instruction]] = field(default_factory=dict)

    def run(self, launches: Sequence[Launch]) -> None:
        """Run kernels, and record the first execution of each instruction."""
        for launch in launches:
            if isinstance(launch.program, Program):
                kernel = launch.program.kernel
                key = (launch.cubin, kernel.name)
                left = self.left.setdefault(key, dict(enumerate(kernel.instructions)))
                if left:
                    launch.program = replace(launch.program, code=_noting(launch.program, left))
        Machine.run(self, launches)


def _noting(program: Program, left: dict[int, Instruction]) -> list[Step]:
    """Return code whose steps remove themselves from `left` when first executed."""
    code = list(program.code)

    def noting(step: Step) -> Step:
        def first(w: Warp, place: int) -> int:
            left.pop(place, None)
            code[place] = step
            return step(w, place)

        return first

    for place in left:
        code[place] = noting(code[place])
    return code


def find_origin(
    artifact: Artifact,
    texts: Mapping[str, str],
    inputs: Sequence[Sequence[Any]],
    policy: Policy,
    element: Element,
    deadline_s: float | None,
) -> Origin | None:
    """Run a plan again to find the origin of an element; None if the time runs out first."""
    begin, end = element.bytes()

    def watched() -> tuple[Region, int, int]:
        return run.buffers[element.device][element.output.buffer], begin, end

    sources = Sources(watched)
    run = PlanRun(artifact, Machine(policy, observer=sources, deadline=deadline_s), texts)
    try:
        run.run(inputs)
    except EmulationTimeout:
        return None
    kernels = {
        (step.cubin, step.kernel): program(run.ptx_of(step), step.kernel).kernel
        for step in run.plan.launches
    }
    kernel_of = {id(each): key for key, k in kernels.items() for each in k.instructions}
    codes = list(kernels.values())
    if (writer := sources.writer) is not None:
        made, own = sources.behind(writer.instruction, codes), kernel_of[id(writer.instruction)]
        return Origin(writer, made, own, elsewhere=_elsewhere(made, own, kernel_of))
    region, _, _ = watched()
    others = sources.writers(region)
    unread = [] if others else sources.unread()
    first = next(iter([*others, *unread]), None)
    kernel = kernel_of.get(id(first))
    if kernel is None:
        return Origin(None)
    others = [each for each in others if kernel_of.get(id(each)) == kernel]
    unread = [each for each in unread if kernel_of.get(id(each)) == kernel]
    made = [source for each in others for source in sources.behind(each, codes)]
    return Origin(None, made, kernel, others, unread, _elsewhere(made, kernel, kernel_of))


def _elsewhere(
    made: Sequence[Source], kernel: tuple[str, str], kernel_of: Mapping[int, tuple[str, str]]
) -> dict[int, tuple[str, str]]:
    places = {id(each.instruction): kernel_of[id(each.instruction)] for each in made}
    return {place: other for place, other in places.items() if other != kernel}
