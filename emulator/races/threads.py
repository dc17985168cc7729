"""The race observer's state of warps, clusters, barriers, and operations, and its findings.

Scopes are the reach of strong accesses and fences (PTX ISA 9.0, section 8.5). Two strong accesses
do not race, and an acquire sees a release, if the scope of each includes the thread of the other.

Agents are warps, and the asynchronous units that access memory for them. Each agent of a cluster
has a number. A frontier is what a warp knows: a table with a column for each agent, which holds the
agent's last event that is ordered before the warp's next access. Events are numbered in a single
sequence as they occur, so the event numbers of an agent increase.

Each row of a frontier has its own happened-before relation:

    GENERIC   for plain accesses
    ASYNC     for asynchronous accesses to shared memory, too (after fence.proxy.async)
    GLOBAL    for asynchronous accesses to global memory, too
    INIT      initialization of mbarriers, for asynchronous operations that signal them
    BEFORE    for tcgen05, as of the last tcgen05.fence::before_thread_sync
    OVER      events that have certainly happened, though their writes may not be visible yet; even
              relaxed arrivals pass this row on
    AFTER     for tcgen05, as of this thread's last tcgen05.fence::after_thread_sync;
              never passed on, because every waiting thread needs its own fence

A shadow has the last write and reads of each granule of a memory, as event numbers. The size of a
granule depends on the accesses of the kernel. Stores of one instruction by several warps or blocks
are races unless they write the same bytes. Loads may read unwritten bytes if the loaded values are
unused or only stored again: with lane semantics, Mosaic lowers `ref[...] = value` to a swap that
loads the unused old value, and a kernel may copy a buffer that is only partly filled.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakSet, ref

import numpy as np

from pallasc.emulator.machine.block import Asynchronous, Cluster
from pallasc.emulator.machine.memory import Actor, Fault, Region
from pallasc.emulator.machine.warp import Warp
from pallasc.emulator.numbers.table import BASES
from pallasc.emulator.ptx.syntax import Address, Instruction, Kernel, register_numbers

WEAK, CTA, CLUSTER, GPU, SYS = range(-1, 4)
NAMES = (".cta", ".cluster", ".gpu", ".sys")
_SCOPES = {"cta": CTA, "cluster": CLUSTER, "gpu": GPU, "gl": GPU, "sys": SYS}


def scope_of(parts: Collection[str], default: int) -> int:
    """Return the scope named in the parts of an opcode."""
    return next((scope for name, scope in _SCOPES.items() if name in parts), default)


def distance(one: Warp, other: Warp) -> int:
    """Return the narrowest scope that includes both warps."""
    if one.block is other.block:
        return CTA
    if one.block.cluster is other.block.cluster:
        return CLUSTER
    return GPU if one.block.device == other.block.device else SYS


class Domain(NamedTuple):
    """The threads that a release reaches: a block, a cluster, a device, or all threads."""

    scope: int
    device: int
    cluster: int = 0
    rank: int = 0

    @classmethod
    def around(cls, warp: Warp, cluster: int, scope: int) -> Domain:
        """Return the domain of a warp's release; `cluster` is the number of its cluster."""
        block = warp.block
        if scope >= GPU:
            return cls(scope, block.device)
        return cls(scope, block.device, cluster, block.rank if scope == CTA else 0)

    def has(self, warp: Warp, cluster: int) -> bool:
        """Return True if the domain includes a warp."""
        return self.scope == SYS or self == Domain.around(warp, cluster, self.scope)

    def needed(self, warp: Warp, is_near: bool) -> int:
        """Return the smallest scope with which a warp can acquire a release to this domain.

        Args:
            warp: the warp that acquires.
            is_near: True if the release contains knowledge about the warp's own cluster.
        """
        if self.device != warp.block.device:
            return SYS
        return CTA if is_near else GPU


GENERIC, ASYNC, GLOBAL, INIT, BEFORE, OVER, AFTER = range(7)
_ROWS = 7

# The agents of a warp.
WARP = 0
WGMMA = 1
LANE_COPIES = 2  # cp.async
BULK_READS = 3  # reads of bulk stores
BULK_WRITES = 4  # writes of bulk stores
TENSOR_CORE = 5
TENSOR_LOADS = 6
TENSOR_STORES = 7
KINDS = 8

COPIES = 128
"""Number of agents for tensor loads and similar copies: more than are in flight at any time."""

ALWAYS = np.iinfo(np.int32).max

Table = np.ndarray


class Agents(NamedTuple):
    """Numbers the agents of a cluster: per kind, one agent for each warp; then `COPIES` agents."""

    warps: int

    @property
    def size(self) -> int:
        """The number of agents."""
        return KINDS * self.warps + COPIES

    def of_warp(self, kind: int, warp: int) -> int:
        """Return an agent of a warp, by the warp's number in its cluster."""
        return kind * self.warps + warp

    def copy(self, number: int) -> int:
        """Return the agent of a copy that signals an mbarrier."""
        return KINDS * self.warps + number % COPIES

    def frontier(self) -> Table:
        """Return an empty frontier: no event has happened before."""
        return np.zeros((_ROWS, self.size), np.int32)

    def generic(self) -> np.ndarray:
        """Return bool[agents]: True for agents that write through the generic proxy."""
        kinds = np.arange(self.size) // self.warps
        found: np.ndarray = (kinds == WARP) | (kinds == LANE_COPIES)
        return found


class Clusters:
    """Knowledge about several clusters: immutable tables by cluster number.

    Thousands of warps know about hundreds of clusters, mostly the same ones, so they share
    instances, and unions are cached by identity.
    """

    __slots__ = ("__weakref__", "_last", "tables")

    def __init__(self, tables: dict[int, Table]) -> None:
        self.tables = tables
        self._last: tuple[ref[Clusters], ref[Clusters]] | None = None  # argument, result

    def union(self, more: Clusters) -> Clusters:
        """Return the joint knowledge; if one object includes the other, return that object."""
        if more is self or not more.tables:
            return self
        if not self.tables:
            return more
        if self._last is not None and self._last[0]() is more:
            found = self._last[1]()
            if found is not None:
                return found
        found = self._union(more)
        self._last = ref(more), ref(found)
        return found

    def _union(self, more: Clusters) -> Clusters:
        both = dict(self.tables)
        is_own = True
        for number, table in more.tables.items():
            known = both.get(number)
            if known is not table:
                both[number] = later = merged(known, table)
                is_own = is_own and later is known
        if is_own:
            return self
        if len(both) == len(more.tables) and all(both[n] is t for n, t in more.tables.items()):
            return more
        return Clusters(both)

    def with_one(self, number: int, table: Table) -> Clusters:
        """Return a copy that includes the knowledge about one more cluster."""
        known = self.tables.get(number)
        later = merged(known, table)
        return self if later is known else Clusters({**self.tables, number: later})


NONE = Clusters({})


class Passed:
    """Knowledge released at a semaphore, for the threads that acquire there."""

    __slots__ = ("_covered", "clusters")

    def __init__(self) -> None:
        self.clusters = NONE
        self._covered: WeakSet[Clusters] = WeakSet()  # known to be included in `clusters`

    def release(self, number: int, own: Table, others: Clusters) -> None:
        """Add a thread's knowledge about its own cluster, and about other clusters."""
        self._covered.add(self.clusters)
        if others not in self._covered:
            self.clusters = self.clusters.union(others)
            self._covered.add(others)
        self.clusters = self.clusters.with_one(number, own)

    def acquire(self, known: Clusters) -> Clusters:
        """Return the knowledge of a thread after it has acquired the released knowledge."""
        return self.clusters if known in self._covered else known.union(self.clusters)


class Frontier:
    """The knowledge of a thread about its own cluster and about other clusters."""

    __slots__ = ("others", "own")

    def __init__(self, own: Table) -> None:
        self.own = own
        self.others = NONE  # may contain unused knowledge about this cluster, too

    def copy(self) -> Frontier:
        """Return a copy that can be changed independently."""
        made = Frontier(self.own.copy())
        made.others = self.others
        return made

    def join(self, other: Frontier) -> None:
        """Add the knowledge of another frontier of the same cluster."""
        self.join_own(other.own)
        self.others = self.others.union(other.others)

    def join_own(self, table: Table) -> None:
        """Add another thread's knowledge about this cluster, except its AFTER row."""
        np.maximum(self.own[:AFTER], table[:AFTER], out=self.own[:AFTER])


def merged(known: Table | None, table: Table) -> Table:
    """Return a table with the later event of each agent in two immutable tables.

    Returns one of the two if it includes the other.
    """
    if known is None or known is table:
        return table
    if (known >= table).all():
        return known
    both: Table = np.maximum(known, table)
    return table if (both == table).all() else both


@dataclass(frozen=True, slots=True)
class Access:
    """An action of an instruction; `what` is a noun phrase, such as "the tensor load"."""

    what: str
    instruction: Instruction
    actor: Actor

    def __str__(self) -> str:
        return f"{self.what} by {self.actor}, PTX line {self.instruction.line}"


@dataclass(frozen=True, slots=True)
class Finding:
    """An error in a kernel.

    Args:
        rule: name of the kind of error, as in `docs/check.md`.
        message: one sentence that describes what is missing.
        second: the access at which the error was found.
        first: the access that `second` conflicts with, None if there is none.
        memory: the memory, as text.
        begin: start of the affected bytes in that memory; None if there are none.
        end: end of the affected bytes, exclusive.
    """

    rule: str
    message: str
    second: Access
    first: Access | None = None
    memory: str = ""
    begin: int | None = None
    end: int | None = None

    def __str__(self) -> str:
        where = "" if self.begin is None else f" ({self.memory}, {self.begin:#x} to {self.end:#x})"
        lines = [f"{self.rule}: {self.message}{where}"]
        for access in (self.first, self.second):
            if access is not None:
                lines.append(f"  {access}: {access.instruction.text}")
        return "\n".join(lines)

    def fault(self) -> Fault:
        """Return the finding as an error."""
        second = self.second
        return Fault(self.rule, str(self), instruction=second.instruction, actor=second.actor)


class Thread:
    """The state of a warp."""

    __slots__ = (
        "acquired", "acquired_at", "asynchronous", "cluster", "events", "fenced", "frontier",
        "in_flight", "number", "released", "stamp", "stores", "warp",
    )  # fmt: skip

    def __init__(self, warp: Warp, cluster: ClusterState, number: int) -> None:
        self.warp = warp
        self.cluster = cluster
        self.number = number  # its agent number
        self.frontier = Frontier(cluster.agents.frontier())
        self.frontier.own[GENERIC, number] = ALWAYS
        self.stamp = 0  # the last event before its last release
        self.events: dict[int, int] = {}  # by instruction: events since then
        self.stores: dict[int, int] = {}  # by instruction: number of stores
        # By scope: `released` has the knowledge at the last fence, for relaxed writes; `acquired`
        # has the knowledge seen by relaxed reads, for the next fence.
        self.released: dict[int, Frontier] = {}
        self.acquired: dict[int, Frontier] = {}
        # By semaphore, domain and order: the knowledge last acquired there.
        self.acquired_at: dict[tuple[tuple[int, int], Domain, Order], Clusters] = {}
        # By register: the event of the wgmma that uses it, and True if the wgmma writes it.
        self.in_flight: dict[int, tuple[int, bool]] = {}
        self.fenced: list[np.ndarray] | None = None  # registers at the last wgmma.fence
        self.asynchronous: list[Asynchronous] = []  # operations not waited for


class ClusterState:
    """Threads and barriers of a cluster."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        warps = cluster.warps
        self.number = number
        self.agents = Agents(len(warps))
        self.generic = self.agents.generic()
        self.threads = [Thread(warp, self, n) for n, warp in enumerate(warps)]
        self.warpgroups = np.array([(w.block.rank << 8) + w.index // 4 for w in warps])
        self.barriers: dict[object, BarrierState] = {}
        self.copies = 0
        # By the rank of a block and by agent: the agent's last access to the block's shared memory.
        self.reached: dict[int, dict[int, int]] = {}


class BarrierState:
    """Knowledge passed on by arrivals of the current phase, and of completed phases."""

    __slots__ = ("coming", "over", "phase")

    def __init__(self) -> None:
        self.coming: Frontier | None = None
        self.over: Frontier | None = None
        self.phase = 0

    def turn(self, phase: int) -> None:
        """Record that this phase is now current."""
        if phase == self.phase:
            return
        self.phase = phase
        if self.coming is not None:
            if self.over is None:
                self.over = self.coming
            else:
                self.over.join(self.coming)
            self.coming = None

    def arrive(self, frontier: Frontier) -> None:
        """Add the knowledge of an arrival in the current phase."""
        if self.coming is None:
            self.coming = frontier.copy()
        else:
            self.coming.join(frontier)


@dataclass(frozen=True, slots=True)
class Event:
    """One access, or several by one instruction of a warp between two releases."""

    access: Access
    warp: Warp
    scope: int = WEAK  # of a strong access
    operation: Asynchronous | None = None


@dataclass(slots=True)
class Tag:
    """The observer's data on an operation."""

    agent: int
    event: int
    thread: Thread
    frontier: Frontier
    waited: bool = False
    reads_waited: bool = False


@dataclass(frozen=True, slots=True)
class Order:
    """The ordering of an access, from the parts of its opcode."""

    acquires: bool
    releases: bool
    scope: int  # WEAK, or the scope of a strong access


def granule_shifts(kernel: Kernel, element_bytes: int) -> tuple[int, int]:
    """Return the base-2 logarithms of the granule sizes of shared and global memory.

    A granule is as large as the smallest access of the kernel; larger accesses are several whole
    granules. Tensor copies of bytes may begin and end at any byte of global memory.

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
        readers: the agent of each row of `reads`.
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
        """Return the last read that is later than its agent's event in `known`, or 0."""
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
        """Return the numbers of the chosen granules, of all if `chosen` is None."""
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
class Use:
    """An access that is checked against the events of a memory.

    Attributes:
        thread: the warp that makes the access, or that issued the operation.
        shadow: the memory.
        index: the granules.
        event: the number of the access.
        known: by agent, the last event that happened before the access.
        reads: True if the access only reads.
        is_near: True if only agents of the warp's own cluster access this memory.
        proxy: the row of the frontier that applies to the access.
    """

    thread: Thread
    shadow: Shadow
    index: Index
    event: int
    known: np.ndarray
    reads: bool
    is_near: bool
    proxy: int = GENERIC


@dataclass(slots=True, eq=False)
class Doubt:
    """Two unordered executions of one store: a race if their bytes differ.

    Args:
        first: the store that was seen first.
        second: the other store.
        shadow: the memory.
        where: the granules that both write.
        held: the bytes of these granules before the later write.
    """

    first: Event
    second: Event
    shadow: Shadow
    where: np.ndarray
    held: np.ndarray | None = None

    def hold(self) -> Doubt:
        """Save the current contents of the granules."""
        self.held = self.shadow.content(self.where)
        return self

    def differ(self) -> np.ndarray:
        """Return bool[granules]: True for granules that have changed since `hold`."""
        changed: np.ndarray = (self.shadow.content(self.where) != self.held).any(axis=1)
        return changed


@dataclass(slots=True)
class Agreements:
    """The doubts about stores: each is decided when the later of its two stores has written."""

    _stores: list[Doubt] = field(default_factory=list)  # about the store that is being executed
    _copies: dict[Asynchronous, list[Doubt]] = field(default_factory=dict)

    def doubt(self, doubt: Doubt) -> None:
        """Record a doubt whose second store has not written yet."""
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


class OperationKind(NamedTuple):
    """A kind of asynchronous operation.

    Attributes:
        name: a noun phrase.
        wait: the wait that completes it.
        agent: the agent of the warp that executes it; None for a copy, which is an agent itself.
    """

    name: str
    wait: str = "wait on the mbarrier of the copy"
    agent: int | None = None


_COMMIT = "wait on the mbarrier of a tcgen05.commit"
_OPERATIONS = {
    "wgmma": OperationKind("the wgmma", "wgmma.wait_group", WGMMA),
    "cp.async": OperationKind("the copy", "cp.async.wait_group", LANE_COPIES),
    "tcgen05.mma": OperationKind("the tcgen05.mma", _COMMIT, TENSOR_CORE),
    "tcgen05.cp": OperationKind("the copy", _COMMIT, TENSOR_CORE),
    "tcgen05.commit": OperationKind("the commit", agent=TENSOR_CORE),
    "tcgen05.ld": OperationKind("the load", "tcgen05.wait::ld", TENSOR_LOADS),
    "tcgen05.st": OperationKind("the store", "tcgen05.wait::st", TENSOR_STORES),
    "a bulk store": OperationKind("the bulk store", "cp.async.bulk.wait_group", BULK_WRITES),
    "a tensor load": OperationKind("the tensor load"),
    "a bulk copy": OperationKind("the bulk copy"),
    "st.async": OperationKind("the asynchronous store"),
    "red.async": OperationKind("the asynchronous reduction"),
}


def kind_of(operation: Asynchronous) -> OperationKind:
    """Return the kind of an operation."""
    return _OPERATIONS.get(operation.what) or OperationKind(operation.what)


def is_replicated(first: Event, second: Event, *, shared: bool) -> bool:
    """Return True if both execute the same store: not a race if they write the same bytes.

    In Mosaic's kernels, all warps of a block store the same scalar, and several warps or blocks may
    store the same rows.
    """
    if first.access.instruction is not second.access.instruction or first.scope != WEAK:
        return False
    if not shared:
        return True
    plain = first.operation is None and second.operation is None
    return plain and first.warp.block is second.warp.block


_LOADS = {"ld", "ldu", "ldmatrix"}
_MOVES = {"mov", "shr", "shl", "cvt", "prmt"}
"""Instructions that move bits: a store of their results still copies the loaded bytes."""


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
    """Return True if the register's value has no effect other than being stored unchanged."""
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
    found = [number for operand in instruction.sources for number in register_numbers(operand)]
    if instruction.guard is not None:
        found.append(instruction.guard.number)
    return found
