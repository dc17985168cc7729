"""The last write and reads of each granule of a memory, as event numbers."""

from __future__ import annotations

import numpy as np

from pallasc.emulator.machine.memory import Region

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
