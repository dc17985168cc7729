"""Traces a value to the loads, copies and MMAs that it was computed from.

While a kernel runs, `Sources` records for each read of shared, tensor and global memory which
instruction wrote the data. Between a read and a write, values pass through registers, which are
followed in the code. Addresses are not followed: a load from a wrong address is itself reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pallasc.emulator.machine.block import Asynchronous, Observer
from pallasc.emulator.machine.memory import PARAMETERS, SHARED, Region
from pallasc.emulator.machine.warp import Warp
from pallasc.emulator.ptx.syntax import Instruction, Kernel, Operand, register_numbers
from pallasc.emulator.tensors.tensor_memory import COLUMNS, LANES

_SHIFT = 2  # writes are tracked per 4-byte granule
_WRITES_NO_REGISTER = {
    "bar", "barrier", "bra", "cp", "exit", "fence", "griddepcontrol", "membar", "multimem",
    "prefetch", "red", "ret", "st", "stmatrix", "trap",
}  # fmt: skip
_TENSOR_WITHOUT_RESULT = {"st", "mma", "cp", "commit", "wait", "alloc", "dealloc", "shift"}


class Source(NamedTuple):
    """An instruction that a value comes from.

    Attributes:
        instruction: the instruction.
        early: True if it was not complete when its result was read.
        unwritten: description of the shared-memory bytes that it reads before anything wrote them.
    """

    instruction: Instruction
    early: bool
    unwritten: str = ""


class Sources(Observer):
    """Records which instruction wrote the data that another one reads."""

    def __init__(self) -> None:
        self._written: dict[int, np.ndarray] = {}  # numbers of writes, by the identity of memory
        self._alive: list[Any] = []  # keeps those identities from being reused
        self._writes: list[tuple[Instruction, Asynchronous | None]] = []
        self._plain: dict[int, int] = {}  # numbers of plain writes, by their instruction's identity
        self._fed: dict[int, dict[int, Source]] = {}  # by the identity of the instruction that read
        self._unwritten: dict[int, range] = {}  # granules of shared memory, by that identity

    def behind(self, start: Instruction, kernels: Sequence[Kernel]) -> list[Source]:
        """Return the instructions that a written value comes from, nearest first.

        Args:
            start: the instruction that wrote the value.
            kernels: all kernels that ran; one may read what another has written.
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
                loads = _loads(instruction)
                if loads and id(instruction) not in found and instruction is not start:
                    found[id(instruction)] = Source(instruction, early=False)
                values = () if loads else _values(instruction)
                kernel = of[id(instruction)]
                if id(kernel) not in definitions:
                    definitions[id(kernel)] = _definitions(kernel)
                defined = definitions[id(kernel)]
                for number in (n for value in values for n in register_numbers(value)):
                    following += defined.get(number, ())
            left = following
        return [
            source._replace(unwritten=self._unwritten_text(source.instruction))
            for source in found.values()
            if source.instruction is not start
        ]

    def writers(self, region: Region) -> list[Instruction]:
        """Return the instructions that wrote the current contents of a memory region."""
        numbers = np.unique(self._written.get(id(region), np.zeros(0, np.int32))).tolist()
        found = [self._writes[number - 1][0] for number in numbers if number]
        return list({id(instruction): instruction for instruction in found}.values())

    def unread(self) -> list[Instruction]:
        """Return the plain writes to memory that was never read."""
        read = {number for fed in self._fed.values() for number in fed}
        return [self._writes[n - 1][0] for i, n in self._plain.items() if i not in read]

    # Observer methods.

    def read(self, w: Warp, place: int, region: Region, offsets: Any, mask: Any, size: int) -> None:
        """Record reads by lanes."""
        if PARAMETERS <= region.base < SHARED:
            return
        if mask is not None:
            offsets = offsets[mask]
        self._feed(_at(w, place), region, _granules(offsets, size))

    def write(
        self, w: Warp, place: int, region: Region, offsets: Any, mask: Any, size: int
    ) -> None:
        """Record writes by lanes."""
        if mask is not None:
            offsets = offsets[mask]
        instruction = _at(w, place)
        number = self._plain.get(id(instruction))
        if number is None:
            number = self._plain[id(instruction)] = self._number(instruction, None)
        self._of(region, region.size >> _SHIFT)[_granules(offsets, size)] = number

    atomic = write

    def issued(self, w: Warp, place: int, operation: Asynchronous) -> None:
        """Record the start of an asynchronous operation."""
        instruction = operation.instruction
        for region, offsets, size in operation.reads:
            self._feed(instruction, region, _granules(offsets, size))
        for cells in operation.cells_read:
            memory, index = _cells(cells)
            self._feed(instruction, memory, index, LANES * COLUMNS)
        if not operation.writes and not operation.cells_written:
            return
        number = self._number(instruction, operation)
        for region, offsets, size in operation.writes:
            if isinstance(offsets, np.ndarray) or 0 <= offsets < region.size:
                written = self._of(region, region.size >> _SHIFT)
                written[_granules(offsets, size)] = number
        for cells in operation.cells_written:
            memory, index = _cells(cells)
            self._of(memory, LANES * COLUMNS)[index] = number

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
        if isinstance(memory, Region) and memory.base >= SHARED and not written.all():
            granules = np.arange(len(everything))[index][written == 0]
            first, last = int(granules.min()), int(granules.max())
            before = self._unwritten.get(id(reader), range(first, last + 1))
            both = range(min(first, before.start), max(last + 1, before.stop))
            self._unwritten[id(reader)] = both
        fed = self._fed.setdefault(id(reader), {})
        for number in np.unique(written).tolist():
            if number:
                instruction, operation = self._writes[number - 1]
                known = fed.get(id(instruction))
                early = operation is not None and not operation.done
                if known is None or (early and not known.early):
                    fed[id(instruction)] = Source(instruction, early)

    def _unwritten_text(self, reader: Instruction) -> str:
        granules = self._unwritten.get(id(reader))
        if granules is None:
            return ""
        begin, end = granules.start << _SHIFT, granules.stop << _SHIFT
        return f"bytes {begin:#x} to {end - 1:#x} of shared memory, never written"


def _at(w: Warp, place: int) -> Instruction:
    found: Instruction = w.block.launch.program.kernel.instructions[place]
    return found


def _granules(offsets: np.ndarray | int, size: int) -> slice | np.ndarray:
    if not isinstance(offsets, np.ndarray):
        return slice(max(offsets, 0) >> _SHIFT, -(-(offsets + size) >> _SHIFT))
    starts = offsets.astype(np.int64) >> _SHIFT
    count = -(-size >> _SHIFT)
    found: np.ndarray = (starts[:, None] + np.arange(count)).ravel() if count > 1 else starts
    return found


def _cells(cells: Any) -> tuple[Any, np.ndarray]:
    memory, lanes, columns = cells
    if isinstance(columns, range):
        columns = np.arange(columns.start, columns.stop)
        return memory, (lanes[:, None] * COLUMNS + columns).ravel()
    return memory, (lanes * COLUMNS + columns).ravel()


def _has_result(instruction: Instruction) -> bool:
    first, *rest = instruction.parts
    if first == "tcgen05":
        return rest[0] not in _TENSOR_WITHOUT_RESULT
    return first not in _WRITES_NO_REGISTER


def _loads(instruction: Instruction) -> bool:
    """Return True if its value comes from memory, so that its registers are addresses."""
    first, *rest = instruction.parts
    if first == "tcgen05":
        return rest[0] == "ld"
    return first in ("ldmatrix", "atom") or (first == "ld" and rest[0] != "param")


def _values(instruction: Instruction) -> Sequence[Operand]:
    """Return the operands whose values flow into an instruction's result."""
    if instruction.parts[0] in ("st", "stmatrix", "red"):
        return instruction.operands[1:]
    if instruction.parts[0] == "tcgen05":
        return instruction.operands[1:] if instruction.parts[1] == "st" else ()
    return () if instruction.parts[0] == "cp" else instruction.operands[1:]


def _definitions(kernel: Kernel) -> Mapping[int, Sequence[Instruction]]:
    found: dict[int, list[Instruction]] = {}
    for instruction, number in _defined(kernel):
        found.setdefault(number, []).append(instruction)
    return found


def _defined(kernel: Kernel) -> Iterator[tuple[Instruction, int]]:
    for instruction in kernel.instructions:
        if instruction.operands and _has_result(instruction):
            for number in register_numbers(instruction.operands[0]):
                yield instruction, number
