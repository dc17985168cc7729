"""What happens in a kernel, one dataclass for each kind of event, and where in shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from pallasc.checks.static.evaluation import Step
from pallasc.checks.static.values import Terms
from pallasc.specs.artifacts.plan import TensorMap


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

    def starts(self, threads: Any) -> tuple[int, ...]:
        """Return the offsets of some threads in order, each once."""
        offset = self.offset
        if isinstance(offset, int):
            return (offset,)
        return _starts(
            offset.tobytes(), offset.dtype, None if threads is None else threads.tobytes()
        )

    def is_like(self, other: Place) -> bool:
        """Tell whether two places differ by a known number of bytes."""
        return self.symbol == other.symbol and self.rest == other.rest


@lru_cache(1024)
def _starts(offsets: bytes, dtype: np.dtype[Any], threads: bytes | None) -> tuple[int, ...]:
    found = np.frombuffer(offsets, dtype)
    chosen = found if threads is None else found[np.frombuffer(threads, bool)]
    return tuple(sorted(set(chosen.tolist())))


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
    """An asynchronous product: the places that its descriptors start at, and its accumulators."""

    step: Step
    operands: list[Place]
    results: frozenset[str] = frozenset()
