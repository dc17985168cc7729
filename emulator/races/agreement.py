"""Checks if stores of one instruction by several warps or blocks write the same bytes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pallasc.emulator.machine.block import Asynchronous
from pallasc.emulator.races.shadow import Shadow
from pallasc.emulator.races.threads import Event


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
