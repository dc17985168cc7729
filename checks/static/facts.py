"""What a kernel does with shared memory and barriers, read from its evaluated instructions."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from pallasc.checks.static.evaluate import Evaluation, Step, plain_address
from pallasc.checks.static.values import Terms, Value, signed
from pallasc.emulator.ptx.syntax import Register
from pallasc.specs.artifacts.plan import Bytes, Launch, Pointer, TensorMap
from pallasc.specs.artifacts.tensor_maps import ELEMENT_BYTES

_CANCEL_BYTES = 16
_ROW_BYTES = 16
_SLOT_BYTES = 8
_MASKS = (0xFF, 0xFFFF)
"""Of a whole register, that leave a number as it is."""
_DYNAMIC = "__dynamic_shmem__0"
"""Mosaic's name for a block's dynamic shared memory."""


class Place(NamedTuple):
    """A place in shared memory, `symbol + rest + offset`.

    The offset may differ from thread to thread.
    """

    symbol: int
    rest: Terms
    offset: Any

    @property
    def exact(self) -> int | None:
        """The offset, if it is the same in all threads."""
        if isinstance(self.offset, int):
            return self.offset
        first = int(self.offset[0])
        return first if (self.offset == first).all() else None

    def starts(self, threads: Any) -> list[int]:
        """Return the offsets of some threads, each once."""
        if isinstance(self.offset, int):
            return [self.offset]
        chosen = self.offset if threads is None else self.offset[threads]
        found: list[int] = np.unique(chosen).tolist()
        return found

    def is_like(self, other: Place) -> bool:
        """Tell whether two places differ by a known number of bytes."""
        return self.symbol == other.symbol and self.rest == other.rest


@dataclass(slots=True)
class Arrival:
    """An arrival at a barrier: `count` for each thread, None where it is not known.

    `bytes` is what each thread announces, None for nothing or an unknown number.
    """

    step: Step
    barrier: Place | None
    count: int | None
    bytes: int | None = None
    announces: bool = False


@dataclass(slots=True)
class Wait:
    """A wait for a phase of a barrier."""

    step: Step
    barrier: Place | None
    parity: int | None


@dataclass(slots=True)
class BulkCopy:
    """A copy between global and shared memory by TMA, or what signals a barrier like one.

    `bytes` is its size, None where it is not known; `map` is there for tensors.
    """

    step: Step
    place: Place | None
    bytes: int | None
    map: TensorMap | None = None
    barrier: Place | None = None


@dataclass(slots=True)
class Access:
    """A load or store of the generic proxy, of `width` bytes by each thread."""

    step: Step
    place: Place
    width: int
    is_matrix: bool = False


@dataclass(slots=True)
class Product:
    """An asynchronous product: the places that its descriptors start at."""

    step: Step
    operands: list[Place]
    results: frozenset[int] = frozenset()


@dataclass
class Facts:
    """What a kernel does.

    Attributes:
        inits: offset of a barrier -> its count; those that lie at a known offset.
        is_local: whether all that reaches its barriers and its shared memory is in view: no other
            block of a cluster takes part, and every barrier has a known place.
    """

    evaluation: Evaluation
    launch: Launch
    inits: dict[int, int] = field(default_factory=dict)
    is_local: bool = True
    arrivals: list[Arrival] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    loads: list[BulkCopy] = field(default_factory=list)
    stores: list[BulkCopy] = field(default_factory=list)
    reads: list[Access] = field(default_factory=list)
    writes: list[Access] = field(default_factory=list)
    products: list[Product] = field(default_factory=list)
    by_step: dict[int, Any] = field(default_factory=dict)
    dynamic_memory: int | None = None
    parameters: dict[int, int] = field(default_factory=dict)

    def pointer(self, value: Value) -> tuple[int, Pointer] | None:
        """Return the atom of the only parameter in an address, and the parameter."""
        atoms = self.evaluation.atoms
        found = [atom for atom, _ in value.terms if atoms.kind(atom) == "parameter"]
        if len(found) != 1 or dict(value.terms)[found[0]] != 1:
            return None
        (place,) = atoms.operands[found[0]]
        if len(place.terms) != 1 or place.constant != 0:
            return None
        number = self.parameters.get(place.terms[0][0])
        if number is None or number >= len(self.launch.parameters):
            return None
        parameter = self.launch.parameters[number]
        return (found[0], parameter) if isinstance(parameter, Pointer) else None

    @cached_property
    def _sizes(self) -> dict[int, int | None]:
        """The offsets that arrays of barriers seem to begin at, and their slots where known."""
        events: list[Any] = [*self.arrivals, *self.waits, *self.loads]
        sizes: dict[int, int | None] = {}
        for place in (event.barrier for event in events):
            if place is not None and place.rest and (offset := place.exact) in self.inits:
                sizes[offset] = sizes.get(offset) or slot_count(self.evaluation, place.rest)
        return dict(sorted(sizes.items()))

    @cached_property
    def _bases(self) -> list[int]:
        return list(self._sizes)

    def array(self, barrier: Place | None) -> int | None:
        """Return the offset of the first barrier of the array that a barrier belongs to.

        None if that is not clear. In a loop that was unrolled, some offsets are not those of an
        array but of its next slot; arrays whose slots are computed have two slots at least.
        """
        offset = barrier.exact if barrier else None
        if barrier is None or offset not in self.inits:
            return None
        before = bisect.bisect_right(self._bases, offset)
        for base in self._bases[:before]:
            if (size := self._sizes[base]) and offset < base + size * _SLOT_BYTES:
                return base
        if not before or (self._sizes[self._bases[before - 1]] and not barrier.rest):
            return offset
        base = self._bases[before - 1]
        slots = range(base, offset + 1, _SLOT_BYTES)
        if not all(self.inits.get(each) == self.inits[offset] for each in slots):
            return offset
        chain = [base]
        while self._follows(chain[0], chain[0] - _SLOT_BYTES):
            chain.insert(0, chain[0] - _SLOT_BYTES)
        while self._follows(chain[-1], chain[-1] + _SLOT_BYTES):
            chain.append(chain[-1] + _SLOT_BYTES)
        return chain[0] if len(chain) < 3 else None

    def _follows(self, one: int, other: int) -> bool:
        """Tell whether a barrier is one that arrays seem to begin at, with another one's count."""
        return other in self._bases and self.inits[other] == self.inits[one]


def slot_count(evaluation: Evaluation, rest: Terms) -> int | None:
    """Return the number of slots in an array of barriers, from how a slot is computed.

    That is `x % n`: as a mask, as a remainder, or as `x - n * (x / n)`.
    """
    atoms = evaluation.atoms
    if len(rest) == 2:
        return _ratio(rest)
    if len(rest) != 1 or rest[0][1] != _SLOT_BYTES:
        return None
    atom = rest[0][0]
    kind = str(atoms.kind(atom)).partition(".")[0]
    if kind not in ("and", "rem"):
        return None
    value, number = atoms.operands[atom][0], atoms.operands[atom][1].number
    if number is None or number <= 0:
        return None
    if kind == "rem":
        return number
    if number in _MASKS:
        return _ratio(value.terms) if len(value.terms) == 2 else None
    return number + 1 if number & (number + 1) == 0 else None


def _ratio(terms: Terms) -> int | None:
    """Return n of a multiple of `x - n * y`."""
    (_, first), (_, second) = terms
    small, large = sorted((first, second), key=abs)
    if small <= 0 or large >= 0 or -large % small or -large // small < 2:
        return None
    return -large // small


def facts_of(evaluation: Evaluation, launch: Launch) -> Facts:
    """Return what a kernel does, launched like this."""
    facts = Facts(evaluation, launch)
    if launch.cluster is not None and math.prod(launch.cluster) > 1:
        facts.is_local = False
    reader = _Reader(facts)
    for step in evaluation.steps:
        reader.read(step)
    return facts


class _Reader:
    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.atoms = facts.evaluation.atoms
        kernel = facts.evaluation.kernel
        names = [v.name for v in kernel.variables if v.space == "shared"]
        self.shared = {self.atoms.atom("symbol", name) for name in names}
        if _DYNAMIC in names:
            facts.dynamic_memory = self.atoms.atom("symbol", _DYNAMIC)
        self.parameters = facts.parameters = {
            self.atoms.atom("symbol", variable.name): number
            for number, variable in enumerate(kernel.parameters)
        }

    def read(self, step: Step) -> None:
        """Take in an instruction."""
        base, *parts = step.instruction.parts
        found: Any = None
        if base == "mbarrier":
            found = self._mbarrier(step, parts)
        elif base == "cp":
            found = self._copy(step, parts)
        elif base == "tcgen05":
            found = self._tensor(step, parts)
        elif base == "wgmma" and parts[0] == "mma_async":
            found = self._wgmma(step)
        elif base in ("ld", "ldmatrix", "st", "stmatrix"):
            found = self._access(step, base, parts)
        elif base == "clusterlaunchcontrol" and parts[0] == "try_cancel":
            found = self._cancel(step)
        elif "complete_tx::bytes" in "".join(parts) or "shared::cluster" in parts:
            self.facts.is_local = False
        if found is not None:
            self.facts.by_step[step.number] = found

    def place(self, value: Any) -> Place | None:
        """Return the place of an address of shared memory, None for another one."""
        if not isinstance(value, Value):
            return None
        symbols = [(atom, n) for atom, n in value.terms if atom in self.shared]
        if len(symbols) != 1 or symbols[0][1] != 1:
            return None
        rest = tuple(term for term in value.terms if term[0] != symbols[0][0])
        return Place(symbols[0][0], rest, signed(value.constant, 32))

    def barrier(self, value: Any) -> Place | None:
        """Return the place of a barrier."""
        found = self.place(value)
        if found is None:
            self.facts.is_local = False
        return found

    def _apart(self, step: Step, barrier: Place | None) -> list[tuple[Step, Place | None]]:
        """Return an instruction for each barrier that it is executed on by some threads."""
        if barrier is None or barrier.exact is not None:
            return [(step, barrier)]
        threads = self.facts.evaluation.masks[step.block] if step.threads is None else step.threads
        return [
            (
                replace(step, threads=None if step.threads is None else at),
                barrier._replace(offset=start),
            )
            for start in barrier.starts(threads)
            if (at := threads & (barrier.offset == start)).any()
        ]

    def _mbarrier(self, step: Step, parts: list[str]) -> Any:
        facts, operands = self.facts, step.operands
        if parts[0] == "init":
            place, count = self.barrier(operands[0]), operands[1].number
            if place is None or place.rest or place.exact is None or count is None:
                facts.is_local = False
                return None
            facts.inits[place.exact] = count
        elif parts[0] in ("try_wait", "test_wait"):
            parity = operands[2].number
            waits = [Wait(s, b, parity) for s, b in self._apart(step, self.barrier(operands[1]))]
            facts.waits += waits
            return waits[0]
        elif parts[0] in ("arrive", "arrive_drop"):
            if "shared::cluster" in parts:
                facts.is_local = False
            barrier, announces = self.barrier(operands[1]), "expect_tx" in parts
            count = operands[2].number if len(operands) > 2 and not announces else 1
            size = operands[2].number if announces else None
            arrivals = [
                Arrival(s, b, count, size, announces) for s, b in self._apart(step, barrier)
            ]
            facts.arrivals += arrivals
            return arrivals[0] if len(arrivals) == 1 else None
        elif parts[0] in ("expect_tx", "complete_tx"):
            arrival = Arrival(step, self.barrier(operands[0]), 0, operands[1].number, True)
            facts.arrivals.append(arrival)
            return arrival
        return None

    def _copy(self, step: Step, parts: list[str]) -> Any:
        if parts[0] == "reduce":
            parts = parts[1:]
        if parts[:2] != ["async", "bulk"]:
            if "mbarrier" in parts:
                self.facts.is_local = False  # it arrives later
            return None
        if "prefetch" in parts or "commit_group" in parts or "wait_group" in parts:
            return None
        if any(part.startswith(("multicast", "cta_group")) for part in parts):
            self.facts.is_local = False
        is_tensor = "tensor" in parts
        spaces = [part.partition("::")[0] for part in parts if part[:6] in ("shared", "global")]
        if spaces == ["shared", "global"]:
            return self._load(step, is_tensor)
        if spaces == ["global", "shared"]:
            operands = step.operands
            tensor = self._map(operands[0]) if is_tensor else None
            size = self._box_bytes(tensor) if is_tensor else operands[2].number
            copy = BulkCopy(step, self.place(operands[1]), size, tensor)
            self.facts.stores.append(copy)
            return copy
        self.facts.is_local = False
        return None

    def _load(self, step: Step, is_tensor: bool) -> BulkCopy:
        operands = step.operands
        tensor = self._map(operands[1]) if is_tensor else None
        size = self._box_bytes(tensor) if is_tensor else operands[2].number
        if any(part.startswith("im2col") or "gather4" in part for part in step.instruction.parts):
            size = None
        barrier = self.barrier(operands[2 if is_tensor else 3])
        copy = BulkCopy(step, self.place(operands[0]), size, tensor, barrier)
        self.facts.loads.append(copy)
        return copy

    def _cancel(self, step: Step) -> BulkCopy:
        place, barrier = self.place(step.operands[0]), self.barrier(step.operands[1])
        copy = BulkCopy(step, place, _CANCEL_BYTES, None, barrier)
        self.facts.loads.append(copy)
        return copy

    def _map(self, value: Value) -> TensorMap | None:
        if len(value.terms) != 1 or value.terms[0][1] != 1 or not isinstance(value.constant, int):
            return None
        number = self.parameters.get(value.terms[0][0])
        parameters = self.facts.launch.parameters
        if number is None or number >= len(parameters):
            return None
        parameter = parameters[number]
        if not isinstance(parameter, Bytes):
            return None
        return dict(parameter.tensor_maps).get(value.constant)

    def _box_bytes(self, tensor: TensorMap | None) -> int | None:
        if tensor is None or tensor.im2col is not None or tensor.dtype not in ELEMENT_BYTES:
            return None
        return math.prod(tensor.box) * ELEMENT_BYTES[tensor.dtype]

    def _tensor(self, step: Step, parts: list[str]) -> Any:
        if parts[0] == "commit":
            if any(part.startswith("multicast") for part in parts):
                self.facts.is_local = False
            arrival = Arrival(step, self.barrier(step.operands[0]), 1)
            self.facts.arrivals.append(arrival)
            return arrival
        if parts[0] == "mma":
            values = [each for each in step.operands[1:3] if isinstance(each, Value)]
            product = Product(step, self._descriptors(values))
            self.facts.products.append(product)
            return product
        return None

    def _wgmma(self, step: Step) -> Product:
        values = [each for each in step.operands[1:3] if isinstance(each, Value)]
        vector = step.operands[0]
        results = frozenset(e.number for e in vector if isinstance(e, Register))
        product = Product(step, self._descriptors(values), results)
        self.facts.products.append(product)
        return product

    def _descriptors(self, values: list[Value]) -> list[Place]:
        addresses = [plain_address(self.facts.evaluation, value) for value in values]
        places = [self.place(address) for address in addresses if address is not None]
        return [place for place in places if place is not None]

    def _access(self, step: Step, base: str, parts: list[str]) -> Access | None:
        if "async" in parts or "shared::cluster" in parts:
            self.facts.is_local = False
            return None
        is_read, is_matrix = base.startswith("ld"), base.endswith("matrix")
        place = self.place(step.operands[1 if is_read else 0])
        if place is None or len(step.operands) < 2:
            return None
        width = _ROW_BYTES if is_matrix else access_bytes(step)
        access = Access(step, place, width, is_matrix)
        (self.facts.reads if is_read else self.facts.writes).append(access)
        return access


def access_bytes(step: Step) -> int:
    """Return how many bytes a load or store moves for each thread."""
    parts = step.instruction.parts
    digits = parts[-1].lstrip("bsuf")
    size = int(digits) // 8 if digits.isdigit() else 4
    vector = next((int(p[1:]) for p in parts if p[:1] == "v" and p[1:].isdigit()), 1)
    return size * vector
