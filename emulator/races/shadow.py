"""The last write and reads of each granule of a memory, and who agrees on the bytes written.

Determines the granularity at which accesses are tracked, from the accesses of a kernel.

The last write and reads of each granule of a memory, as event numbers.

Checks if stores of one instruction by several warps or blocks write the same bytes.

Names of asynchronous operations in messages, and of the waits for them.

Finds loads that may read unwritten bytes: their values are only stored again, or unused.

A kernel may copy a buffer that is only partly filled, as Mosaic's profiler does. With lane
semantics, Mosaic lowers `ref[...] = value` to a swap, whose load of the old value is dead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from pallasc.emulator.machine.block import Asynchronous
from pallasc.emulator.machine.memory import Region
from pallasc.emulator.numbers.table import BASES
from pallasc.emulator.ptx.syntax import Address, Instruction, Kernel, register_numbers
from pallasc.emulator.races.threads import WEAK, Event


def granule_shifts(kernel: Kernel, element_bytes: int) -> tuple[int, int]:
    """Return the granule sizes of shared and of global memory, as powers of two.

    A granule is as large as the smallest access of the kernel; all other accesses are multiples.
    Tensor copies of bytes may begin and end at any byte of global memory.

    Args:
        kernel: the kernel.
        element_bytes: size of the smallest element that a tensor map describes.
    """
    shared = 4
    everywhere = min(2, element_bytes)
    for instruction in kernel.instructions:
        parts = instruction.parts
        if parts[0] not in ("ld", "st", "atom", "red", "cp", "ldu", "multimem"):
            continue
        digits = "".join(c for c in parts[-1] if c.isdigit())
        if not digits or parts[-1][0] not in "bufs":
            if parts[0] == "cp":
                everywhere = min(everywhere, 2)
            continue
        if any(p.split("::")[0] in ("param", "local", "const") for p in parts):
            continue
        size = max(1, int(digits) // 8)
        if not any(p.startswith("global") for p in parts):
            shared = min(shared, size)
        if not any(p.startswith("shared") for p in parts):
            everywhere = min(everywhere, size)
    return shared.bit_length() - 1, everywhere.bit_length() - 1


Index = slice | np.ndarray


class Shadow:
    """Events of one memory by granule; a granule has `1 << shift` bytes.

    Attributes:
        written: int32[granules], the last write event; 0 if nothing has written.
        reads: int32[readers, granules], the last read event of each agent.
        readers: the agents of `reads`.
        region: the memory; None for tensor memory.
    """

    __slots__ = (
        "_rows", "granules", "is_shared", "name", "reader_array", "readers", "reads", "region",
        "shift", "written",
    )  # fmt: skip

    def __init__(
        self,
        granules: int,
        shift: int,
        name: str,
        *,
        is_shared: bool = False,
        region: Region | None = None,
    ) -> None:
        self.region = region
        self.is_shared = is_shared
        self.granules = granules
        self.shift = shift
        self.name = name
        self.written = np.zeros(granules, np.int32)
        self.reads = np.zeros((0, granules), np.int32)
        self.readers: list[int] = []
        self.reader_array = np.zeros(0, np.intp)
        self._rows: dict[int, int] = {}

    def index(self, offsets: np.ndarray | int, size: int) -> Index:
        """Return the granules of `size` bytes at each offset."""
        shift = self.shift
        if not isinstance(offsets, np.ndarray):
            return slice(offsets >> shift, -(-(offsets + size) >> shift))
        count = size >> shift
        starts = offsets >> shift
        if count <= 1:
            return starts
        found: np.ndarray = (starts[:, None] + _STEPS[:count]).ravel()
        return found

    def record_read(self, agent: int, index: Index, event: int) -> None:
        """Record a read by an agent."""
        row = self._rows.get(agent)
        if row is None:
            row = self._rows[agent] = len(self.readers)
            self.readers.append(agent)
            self.reader_array = np.array(self.readers, np.intp)
            if row >= len(self.reads):
                grown = np.zeros((max(4, 2 * row), self.granules), np.int32)
                grown[:row] = self.reads[:row]
                self.reads = grown
        self.reads[row, index] = event

    def late_read(self, index: Index, known: np.ndarray) -> int:
        """Return a read that has not happened before, or 0; `known` is the last event by agent."""
        count = len(self.readers)
        if not count:
            return 0
        last = self.reads[:count, index].max(axis=1, initial=0)
        late = last > known[self.reader_array]
        return int(last[late].max()) if late.any() else 0

    def content(self, index: Index) -> np.ndarray:
        """Return a copy of the bytes of granules, one row each; empty rows for tensor memory."""
        where = _numbers(index)
        if self.region is None:
            return np.zeros((len(where), 0), np.uint8)
        data = self.region.data
        rows = (where.astype(np.int64)[:, None] << self.shift) + np.arange(1 << self.shift)
        found: np.ndarray = data[np.minimum(rows, len(data) - 1)]
        return found

    def chosen(self, index: Index, chosen: np.ndarray | None) -> np.ndarray:
        """Return the numbers of the chosen granules, or of all."""
        where = _numbers(index)
        return where if chosen is None else where[chosen]

    def bytes_of(self, index: Index, chosen: np.ndarray | None = None) -> tuple[int, int]:
        """Return the start and end of these granules in bytes."""
        where = self.chosen(index, chosen)
        return int(where.min()) << self.shift, (int(where.max()) + 1) << self.shift


def _numbers(index: Index) -> np.ndarray:
    return np.arange(index.start, index.stop) if isinstance(index, slice) else index


_STEPS = np.arange(1 << 16)


@dataclass(slots=True, eq=False)
class Doubt:
    """Two unordered executions of one store: a race if their bytes differ.

    Args:
        first: the one whose store was seen first.
        second: the other one.
        shadow: the memory.
        where: the granules that both write.
        held: their bytes before the later one of the two writes.
    """

    first: Event
    second: Event
    shadow: Shadow
    where: np.ndarray
    held: np.ndarray | None = None

    def hold(self) -> Doubt:
        """Save the current memory contents."""
        self.held = self.shadow.content(self.where)
        return self

    def differ(self) -> np.ndarray:
        """Return bool[granules]: True where memory has changed since `hold`."""
        changed: np.ndarray = (self.shadow.content(self.where) != self.held).any(axis=1)
        return changed


@dataclass(slots=True)
class Agreements:
    """The doubts to decide once the later one of two stores is in memory."""

    _stores: list[Doubt] = field(default_factory=list)  # by the store that is being executed
    _copies: dict[Asynchronous, list[Doubt]] = field(default_factory=dict)

    def doubt(self, doubt: Doubt) -> None:
        """Record two stores, the second of which has not written yet."""
        if doubt.second.operation is None:
            self._stores.append(doubt.hold())
            return
        for operation in (doubt.first.operation, doubt.second.operation):
            if operation is not None and not operation.done:
                self._copies.setdefault(operation, []).append(doubt)

    def wrote(self) -> list[tuple[Doubt, np.ndarray]]:
        """Return the doubts confirmed by the store that has just written."""
        if not self._stores:
            return []
        found, self._stores = self._stores, []
        return _differing(found)

    def completing(self, operation: Asynchronous) -> None:
        """Save memory that an operation will write, if the other store of a doubt is done."""
        for doubt in self._copies.get(operation, ()):
            pair = (doubt.first.operation, doubt.second.operation)
            if all(each is None or each.done for each in pair):
                doubt.hold()

    def completed(self, operation: Asynchronous) -> list[tuple[Doubt, np.ndarray]]:
        """Return the doubts confirmed by an operation that has just written."""
        doubts = self._copies.pop(operation, ())
        return _differing([doubt for doubt in doubts if doubt.held is not None])


def _differing(doubts: list[Doubt]) -> list[tuple[Doubt, np.ndarray]]:
    found = [(doubt, doubt.differ()) for doubt in doubts]
    return [(doubt, differ) for doubt, differ in found if differ.any()]


NAMES = {
    "wgmma": "the wgmma",
    "cp.async": "the copy",
    "tcgen05.mma": "the tcgen05.mma",
    "tcgen05.cp": "the copy",
    "tcgen05.commit": "the commit",
    "tcgen05.ld": "the load",
    "tcgen05.st": "the store",
    "a bulk store": "the bulk store",
    "a tensor load": "the tensor load",
    "a bulk copy": "the bulk copy",
    "st.async": "the asynchronous store",
    "red.async": "the asynchronous reduction",
}


def wait_of(operation: Asynchronous) -> str:
    """Return the name of the wait for an operation."""
    return {
        "wgmma": "wgmma.wait_group",
        "cp.async": "cp.async.wait_group",
        "a bulk store": "cp.async.bulk.wait_group",
        "tcgen05.mma": "wait on the mbarrier of a tcgen05.commit",
        "tcgen05.cp": "wait on the mbarrier of a tcgen05.commit",
        "tcgen05.ld": "tcgen05.wait::ld",
        "tcgen05.st": "tcgen05.wait::st",
    }.get(operation.what, "wait on the mbarrier of the copy")


def is_replicated(first: Event, second: Event, *, shared: bool) -> bool:
    """Return True if several execute the same store: no race if they write the same bytes.

    In Mosaic's kernels, every warp of a block stores a scalar, and every warp or block stores the
    same rows.
    """
    if first.access.instruction is not second.access.instruction or first.scope != WEAK:
        return False
    if not shared:
        return True
    plain = first.operation is None and second.operation is None
    return plain and first.warp.block is second.warp.block


_LOADS = {"ld", "ldu", "ldmatrix"}
_MOVES = {"mov", "shr", "shl", "cvt", "prmt"}
"""Instructions that move bits: storing their results still copies the loaded bytes."""


def copying_loads(kernel: Kernel) -> dict[Instruction, bool]:
    """Map each load of the kernel to True if nothing is computed from its values."""
    uses: dict[int, list[Instruction]] = {}
    for instruction in kernel.instructions:
        for number in _sources(instruction):
            uses.setdefault(number, []).append(instruction)
    return {
        instruction: all(_is_harmless(n, uses) for n in register_numbers(instruction.operands[0]))
        for instruction in kernel.instructions
        if instruction.parts[0] in _LOADS
    }


def _is_harmless(register: int, uses: dict[int, list[Instruction]]) -> bool:
    """Return True if no result of a computation with the register has an effect."""
    start = (register, False)
    seen, left = {start}, [start]
    while left:
        number, is_computed = left.pop()
        for use in uses.get(number, ()):
            if use.parts[0] in ("st", "stmatrix"):
                if is_computed or number in _deciding(use):
                    return False
                continue
            if not _only_computes(use):
                return False
            computed = is_computed or use.parts[0] not in _MOVES or number in _deciding(use)
            results = {(n, computed) for n in register_numbers(use.operands[0])}
            left += results - seen
            seen |= results
    return True


def _only_computes(instruction: Instruction) -> bool:
    name = instruction.parts[0]
    return name in ("mov", "shfl", "mma") or (name in BASES and "cc" not in instruction.parts)


def _deciding(instruction: Instruction) -> Iterator[int]:
    """Yield the registers that determine an instruction's addresses and guard."""
    if instruction.guard is not None:
        yield instruction.guard.number
    for operand in instruction.operands:
        if isinstance(operand, Address):
            yield from register_numbers(operand)


def _sources(instruction: Instruction) -> list[int]:
    operands = instruction.operands
    results = 0 if instruction.parts[0] in ("st", "stmatrix", "red", "bra", "ret", "exit") else 1
    found = [number for operand in operands[results:] for number in register_numbers(operand)]
    if instruction.guard is not None:
        found.append(instruction.guard.number)
    return found
