"""What a kernel does with shared memory and barriers."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pallasc.checks.static.evaluation import Evaluation
from pallasc.checks.static.events import Access, Arrival, BulkCopy, Place, Product, Wait
from pallasc.checks.static.values import Terms, Value
from pallasc.specs.artifacts.plan import Launch, Pointer

_SLOT_BYTES = 8
_MASKS = (0xFF, 0xFFFF)
"""Of a whole register, that leave a number as it is."""


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
    _arrays: dict[tuple[int, bool], int | None] = field(default_factory=dict)

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
        if barrier is None or offset is None or offset not in self.inits:
            return None
        key = offset, bool(barrier.rest)
        if key not in self._arrays:
            self._arrays[key] = self._array(*key)
        return self._arrays[key]

    def _array(self, offset: int, is_computed: bool) -> int | None:
        before = bisect.bisect_right(self._bases, offset)
        for base in self._bases[:before]:
            if (size := self._sizes[base]) and offset < base + size * _SLOT_BYTES:
                return base
        if not before or (self._sizes[self._bases[before - 1]] and not is_computed):
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
