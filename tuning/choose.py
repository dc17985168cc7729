"""The smallest set of configurations that serves every key within the limit.

Configurations are columns, keys are rows. A column covers the rows for which it is within the
limit. The number of columns matters first; among sets of one size, swaps of single columns minimize
the geometric mean of the losses. All ties go to the first column.

The smallest cover is found by branch and bound (Beasley, "An algorithm for set covering problem",
European Journal of Operational Research 31, 1987), starting with the cover of the greedy algorithm
(Chvátal, "A greedy heuristic for the set-covering problem", 1979). The search ends after a fixed
number of nodes and returns the best cover so far.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

UNSERVED = 1e6
"""Loss of a key for which no chosen configuration was measured; larger than any other loss."""

MOST_NODES = 100_000
"""Nodes of the search: at most a few seconds with hundreds of columns and thousands of rows."""

_MOST_ROUNDS = 20
"""Maximum number of swap rounds; each reduces the sum, and they usually end after a few."""

Losses = Mapping[int, float]
"""log(time / best time) of each configuration that was measured for a key."""


class Cover(NamedTuple):
    """Columns that cover all rows that can be covered.

    Attributes:
        chosen: their indices, ascending.
        is_smallest: True if no smaller set covers as much; False if the search ended early.
    """

    chosen: tuple[int, ...]
    is_smallest: bool


class Chosen(NamedTuple):
    """The configurations to use.

    Attributes:
        columns: their indices, ascending.
        of_key: the configuration of each key, None if no chosen one was measured for it.
        is_smallest: True if fewer cannot be within the limit for every key; False if unknown.
    """

    columns: tuple[int, ...]
    of_key: tuple[int | None, ...]
    is_smallest: bool


def choose(
    losses: Sequence[Losses],
    within: Sequence[Collection[int]],
    count: int,
    *,
    most: int | None = None,
) -> Chosen:
    """Choose the configurations to use, and the configuration of each key.

    Args:
        losses: losses of each key by configuration.
        within: configurations within the limit for each key.
        count: number of configurations.
        most: maximum number to use; if the limit needs more, keys lose more.
    """
    masks = [0] * count
    for row, own in enumerate(within):
        for column in own:
            masks[column] |= 1 << row
    cover = smallest_cover(masks)
    if most is not None and len(cover.chosen) > most:
        columns = _swapped(losses, [0] * count, _closest(losses, count, most))
    else:
        columns = _swapped(losses, masks, cover.chosen)
    of_key = tuple(_fastest(row, columns, own) for row, own in zip(losses, within, strict=True))
    return Chosen(columns, of_key, cover.is_smallest)


def _fastest(losses: Losses, columns: Iterable[int], within: Collection[int]) -> int | None:
    """Return the column of a row: one within the limit if possible, then the fastest."""
    usable = [column for column in columns if column in losses]
    return min(
        usable, key=lambda column: (column not in within, losses[column], column), default=None
    )


def _closest(losses: Sequence[Losses], count: int, most: int) -> list[int]:
    """Return at most `most` columns, each the one that saves most after the previous ones."""
    lost, chosen = [UNSERVED] * len(losses), list[int]()

    def saved(column: int) -> float:
        own = ((lost[row], all_.get(column)) for row, all_ in enumerate(losses))
        return sum(max(0.0, before - loss) for before, loss in own if loss is not None)

    while len(chosen) < min(most, count):
        best = max(range(count), key=lambda column: (saved(column), -column))
        if saved(best) <= 0:
            break
        chosen.append(best)
        lost = [min(own, all_.get(best, own)) for own, all_ in zip(lost, losses, strict=True)]
    return chosen


def _swapped(
    losses: Sequence[Losses], masks: Sequence[int], columns: Iterable[int]
) -> tuple[int, ...]:
    """Reduce the loss by swapping columns; their number stays, and so do the rows in `masks`."""
    chosen = list(columns)
    by_column: list[dict[int, float]] = [{} for _ in masks]
    for row, own in enumerate(losses):
        for column, loss in own.items():
            by_column[column][row] = loss
    for _ in range(_MOST_ROUNDS):
        before = tuple(chosen)
        for place, column in enumerate(before):
            others = [*chosen[:place], *chosen[place + 1 :]]
            lost = [min([row[o] for o in others if o in row] or [UNSERVED]) for row in losses]
            need = masks[column] & ~_union(masks[other] for other in others)
            usable = (i for i in range(len(masks)) if i not in others and not need & ~masks[i])
            chosen[place] = min(usable, key=lambda i: (_change(lost, by_column[i]), i))
        if tuple(chosen) == before:
            break
    return tuple(sorted(chosen))


def _change(lost: Sequence[float], own: Mapping[int, float]) -> float:
    return sum(min(0.0, loss - lost[row]) for row, loss in own.items())


def smallest_cover(columns: Sequence[int], *, most_nodes: int = MOST_NODES) -> Cover:
    """Return a smallest set of columns that covers every row that any column covers.

    Args:
        columns: the rows of each column, as bits; earlier columns are preferred.
        most_nodes: the search ends after this many nodes.
    """
    best, nodes = greedy_cover(columns), 0
    rows = _deciding_rows(columns)

    def visit(left: Sequence[int], usable: int, taken: tuple[int, ...]) -> None:
        """Search covers of the remaining rows; each row is the mask of its columns."""
        nonlocal best, nodes
        nodes += 1
        if len(taken) + _least(left, usable) >= len(best) or nodes > most_nodes:
            return
        if not left:
            best = taken
            return
        row = min(left, key=lambda row: (row & usable).bit_count())
        gains = {i: sum(own >> i & 1 for own in left) for i in _bits(row & usable)}
        for index in sorted(gains, key=lambda i: (-gains[i], i)):
            visit([own for own in left if not own >> index & 1], usable, (*taken, index))
            usable &= ~(1 << index)  # all covers with this column have been visited

    visit(rows, (1 << len(columns)) - 1, ())
    return Cover(tuple(sorted(best)), nodes <= most_nodes)


def greedy_cover(columns: Sequence[int]) -> tuple[int, ...]:
    """Return columns that cover every row, each the one that covers most of the remaining rows."""
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


def _deciding_rows(columns: Sequence[int]) -> list[int]:
    """Return rows, as masks of their columns; a cover of these covers all other rows, too."""
    rows = {
        sum(1 << i for i, column in enumerate(columns) if column >> row & 1)
        for row in _bits(_union(columns))
    }
    kept: list[int] = []
    for row in sorted(rows, key=lambda row: (row.bit_count(), row)):
        if not any(other & row == other for other in kept):
            kept.append(row)
    return kept


def _least(rows: Sequence[int], usable: int) -> int:
    """Return a lower bound on the columns that rows need: count rows that share no column."""
    count = seen = 0
    for row in rows:
        if not row & usable & seen:
            count += 1
            seen |= row & usable
    return count


def _bits(mask: int) -> Iterator[int]:
    return (place for place in range(mask.bit_length()) if mask >> place & 1)


def _union(columns: Iterable[int]) -> int:
    union = 0
    for column in columns:
        union |= column
    return union
