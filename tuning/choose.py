"""A small set of configurations that serves every key within the limit.

Configurations are columns, keys are rows. A column covers the rows for which it is within the
limit. A greedy algorithm takes the column that covers most of the remaining rows until all are
covered (Chvátal, "A greedy heuristic for the set-covering problem", 1979). Then swaps of single
columns minimize the geometric mean of the losses. All ties go to the first column.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

UNSERVED = 1e6
"""Loss of a key for which no chosen configuration was measured; larger than any other loss."""

_MOST_ROUNDS = 20
"""Maximum number of swap rounds; each reduces the sum, and they usually end after a few."""

Losses = Mapping[int, float]
"""log(time / best time) of each configuration that was measured for a key."""


class Chosen(NamedTuple):
    """The configurations to use.

    Attributes:
        columns: their indices, ascending.
        of_key: the configuration of each key, None if no chosen one was measured for it.
    """

    columns: tuple[int, ...]
    of_key: tuple[int | None, ...]


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
    covered = [{row for row, own in enumerate(within) if i in own} for i in range(count)]
    cover = greedy_cover(covered)
    if most is not None and len(cover) > most:
        cover, covered = cover[:most], [set()] * count
    columns = _swapped(losses, covered, cover)
    of_key = tuple(_fastest(row, columns, own) for row, own in zip(losses, within, strict=True))
    return Chosen(columns, of_key)


def _fastest(losses: Losses, columns: Sequence[int], within: Collection[int]) -> int | None:
    """Return the column of a row: one within the limit if possible, then the fastest."""
    usable = [column for column in columns if column in losses]
    return min(
        usable, key=lambda column: (column not in within, losses[column], column), default=None
    )


def greedy_cover(covered: Sequence[set[int]]) -> list[int]:
    """Return columns that cover every row that any column covers, the most useful first."""
    left, chosen = set[int]().union(*covered), list[int]()
    while left:
        best = max(range(len(covered)), key=lambda i: (len(covered[i] & left), -i))
        chosen.append(best)
        left -= covered[best]
    for column in tuple(chosen):
        others = [other for other in chosen if other != column]
        if covered[column] <= set[int]().union(*(covered[other] for other in others)):
            chosen = others
    return chosen


def _swapped(
    losses: Sequence[Losses], covered: Sequence[set[int]], columns: Sequence[int]
) -> tuple[int, ...]:
    """Reduce the loss by swapping columns; their number stays, and so do the covered rows."""
    chosen = list(columns)
    for _ in range(_MOST_ROUNDS):
        before = tuple(chosen)
        for place, column in enumerate(before):
            others = [*chosen[:place], *chosen[place + 1 :]]
            lost = [min([row[o] for o in others if o in row] or [UNSERVED]) for row in losses]
            need = covered[column].difference(*(covered[other] for other in others))
            usable = [i for i in range(len(covered)) if i not in others and need <= covered[i]]
            chosen[place] = min(usable, key=lambda i: (_total(losses, lost, i), i))
        if tuple(chosen) == before:
            break
    return tuple(sorted(chosen))


def _total(losses: Sequence[Losses], lost: Sequence[float], column: int) -> float:
    """Return the sum of the losses if a column is added to others that lose `lost`."""
    return sum(
        min(before, own.get(column, before)) for own, before in zip(losses, lost, strict=True)
    )
