"""Read what a kernel does with shared memory and barriers from its evaluated instructions."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

from pallasc.checks.static.evaluation import Evaluation, Step, plain_address
from pallasc.checks.static.events import Access, Arrival, BulkCopy, Place, Product, Wait
from pallasc.checks.static.facts import Facts
from pallasc.checks.static.values import Value, signed
from pallasc.specs.artifacts.plan import Bytes, Launch, TensorMap
from pallasc.specs.artifacts.tensor_maps import ELEMENT_BYTES

_CANCEL_BYTES = 16
_ROW_BYTES = 16
_DYNAMIC = "__dynamic_shmem__0"
"""Mosaic's name for a block's dynamic shared memory."""


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
        statement = self.facts.evaluation.kernel.instructions.statements[step.number]
        results = frozenset(statement.results)
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
    return _access_bytes(step.instruction.opcode)


@cache
def _access_bytes(opcode: str) -> int:
    *parts, last = opcode.split(".")
    digits = last.lstrip("bsuf")
    size = int(digits) // 8 if digits.isdigit() else 4
    return size * next((int(p[1:]) for p in parts if p[:1] == "v" and p[1:].isdigit()), 1)
