"""The smallest set of columns that covers every row: set cover, over bit masks.

A column is a number whose bit *i* says that it covers row *i*. The smallest set is found by branch
and bound after the usual reductions: a row whose columns are all of another's goes, a column whose
rows are all another's goes, a row's only column is taken (Beasley, "An algorithm for set covering
problem", European Journal of Operational Research 31, 1987). That is exponential at worst, so the
search ends after a number of nodes, the same everywhere, and the best set so far is returned, which
begins as that of the greedy algorithm (Chvátal, "A greedy heuristic for the set-covering problem",
1979). Of equal sets the one whose columns come first wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

MOST_NODES = 20_000
"""Nodes of the search: some seconds at most, with hundreds of columns and thousands of rows."""


class Cover(NamedTuple):
    """Columns that cover all that can be covered.

    Attributes:
        chosen: their indices, ascending.
        is_smallest: no smaller set covers as much; False where the search was ended before it knew.
    """

    chosen: tuple[int, ...]
    is_smallest: bool


def smallest_cover(columns: Sequence[int], *, most_nodes: int = MOST_NODES) -> Cover:
    """Return a smallest set of columns that covers every row that any column covers.

    Args:
        columns: the rows of each, as bits; columns are preferred in this order.
        most_nodes: where the search ends.
    """
    search = _Search(_without_implied_rows(columns), most_nodes)
    search.run()
    return Cover(tuple(sorted(search.best)), search.nodes <= most_nodes)


def greedy_cover(columns: Sequence[int]) -> tuple[int, ...]:
    """Return columns that cover every row, each the one that covered most of what was left."""
    left, chosen = _union(columns), []
    while left:
        best = max(range(len(columns)), key=lambda i: ((columns[i] & left).bit_count(), -i))
        chosen.append(best)
        left &= ~columns[best]
    for index in tuple(chosen):
        others = [other for other in chosen if other != index]
        if not columns[index] & ~_union(columns[other] for other in others):
            chosen = others
    return tuple(chosen)


def bits(mask: int) -> Iterator[int]:
    """Yield the places of the bits of a mask, ascending."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _union(columns: Iterable[int]) -> int:
    union = 0
    for column in columns:
        union |= column
    return union


def _without_implied_rows(columns: Sequence[int]) -> list[int]:
    """Return the columns with the rows only that decide: any cover of these covers all."""
    rows: dict[int, int] = {}
    for row in bits(_union(columns)):
        rows.setdefault(_columns_of(row, columns), row)
    kept: list[int] = []
    for own in sorted(rows, key=lambda own: (own.bit_count(), own)):
        if not any(other & own == other for other in kept):
            kept.append(own)
    return [
        sum(1 << place for place, own in enumerate(kept) if own >> index & 1)
        for index in range(len(columns))
    ]


def _columns_of(row: int, columns: Sequence[int]) -> int:
    return sum(1 << index for index, column in enumerate(columns) if column >> row & 1)


class _Search:
    """Branch and bound: `best` is the smallest cover that it has seen."""

    def __init__(self, columns: Sequence[int], most_nodes: int) -> None:
        self.best = greedy_cover(columns)
        self.nodes = 0
        self._columns = columns
        self._most = most_nodes

    def run(self) -> None:
        """Search until no smaller cover can be left, or the nodes are used up."""
        self._visit(_union(self._columns), range(len(self._columns)), ())

    def _visit(self, left: int, usable: Sequence[int], taken: tuple[int, ...]) -> None:
        self.nodes += 1
        left, usable, taken = self._reduce(left, usable, taken)
        if not left:
            if len(taken) < len(self.best):
                self.best = taken
            return
        if len(taken) + self._least(left, usable) >= len(self.best):
            return
        row = min(bits(left), key=lambda row: (len(self._covering(row, usable)), row))
        covering = self._covering(row, usable)
        for index in sorted(covering, key=lambda i: (-(self._columns[i] & left).bit_count(), i)):
            if self.nodes > self._most:
                return
            self._visit(left & ~self._columns[index], usable, (*taken, index))
            # What this column could give has been seen.
            usable = [other for other in usable if other != index]

    def _reduce(
        self, left: int, usable: Sequence[int], taken: tuple[int, ...]
    ) -> tuple[int, Sequence[int], tuple[int, ...]]:
        """Drop columns that another one replaces, and take those that a row needs."""
        while left:
            usable = self._undominated(left, usable)
            only = {own[0] for row in bits(left) if len(own := self._covering(row, usable)) == 1}
            if not only:
                break
            taken = (*taken, *sorted(only))
            left &= ~_union(self._columns[index] for index in only)
        return left, usable, taken

    def _undominated(self, left: int, usable: Sequence[int]) -> list[int]:
        kept: list[int] = []
        for index in sorted(usable, key=lambda i: (-(self._columns[i] & left).bit_count(), i)):
            own = self._columns[index] & left
            if own and not any(own & ~self._columns[other] == 0 for other in kept):
                kept.append(index)
        return sorted(kept)

    def _covering(self, row: int, usable: Sequence[int]) -> list[int]:
        return [index for index in usable if self._columns[index] >> row & 1]

    def _least(self, left: int, usable: Sequence[int]) -> int:
        """Return how many columns are needed at least: rows of which no column has two."""
        rows = sorted(bits(left), key=lambda row: (len(self._covering(row, usable)), row))
        count = 0
        for row in rows:
            if left >> row & 1:
                count += 1
                left &= ~_union(self._columns[index] for index in self._covering(row, usable))
        return count
