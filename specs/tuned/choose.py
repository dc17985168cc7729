"""A smallest set of configurations that serves every key within the limit, or a few that do best.

Configurations are columns, keys are rows. The first thing that counts is how few columns there
are; of sets of one size, the one with the least sum of logarithms of what is lost, which is the one
with the least geometric mean, as swaps of one column for another find it. All ties go to the column
that comes first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from pallasc.specs.tuned.cover import smallest_cover

UNSERVED = 1e6
"""What a key costs that no chosen configuration was measured for: more than all that is lost."""

_MOST_ROUNDS = 20
"""Rounds of swaps; each makes the sum smaller, and they end by themselves after a few."""

Losses = Mapping[int, float]
"""Of each configuration that was measured for a key: log(its time / the best time)."""


class Chosen(NamedTuple):
    """Which configurations are used.

    Attributes:
        columns: their indices, ascending.
        of_key: the one that each key uses, None where none of them was measured for it.
        is_smallest: no fewer are within the limit for every key; False where that is not known.
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
    """Return which configurations are used, and for which key.

    Args:
        losses: what each key loses with each configuration.
        within: the configurations that are within the limit for each key.
        count: how many configurations there are.
        most: how many may be used; if the limit needs more, keys lose more than it.
    """
    masks = [0] * count
    for row, own in enumerate(within):
        for column in own:
            masks[column] |= 1 << row
    cover = smallest_cover(masks)
    if most is not None and len(cover.chosen) > most:
        columns = _swapped(losses, count, closest(losses, count, most))
    else:
        columns = _swapped(losses, count, cover.chosen, masks)
    of_key = tuple(_own(row, columns, own) for row, own in zip(losses, within, strict=True))
    return Chosen(columns, of_key, cover.is_smallest)


def closest(losses: Sequence[Losses], count: int, most: int) -> tuple[int, ...]:
    """Return so many configurations at most, each the one that saves most beside those before."""
    lost, chosen = [UNSERVED] * len(losses), list[int]()
    by_column = _by_column(losses, count)
    while len(chosen) < most:
        saved = [sum(max(0.0, lost[row] - loss) for row, loss in own.items()) for own in by_column]
        best = max(range(count), key=lambda column: (saved[column], -column), default=0)
        if not saved or saved[best] <= 0:
            break
        chosen.append(best)
        for row, loss in by_column[best].items():
            lost[row] = min(lost[row], loss)
    return tuple(sorted(chosen))


def _swapped(
    losses: Sequence[Losses],
    count: int,
    columns: Iterable[int],
    masks: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """Return as many columns, with which less is lost: those that swaps of one find.

    With `masks`, rows that are covered stay so.
    """
    chosen, by_column = list(columns), _by_column(losses, count)
    for _ in range(_MOST_ROUNDS):
        before = tuple(chosen)
        for place in range(len(chosen)):
            others = [*chosen[:place], *chosen[place + 1 :]]
            lost = [_least(row, others) for row in losses]
            need = _only(chosen[place], others, masks)
            candidates = (
                own
                for own in range(count)
                if own not in others and (masks is None or not need & ~masks[own])
            )
            chosen[place] = min(candidates, key=lambda own: (_sum(lost, by_column[own]), own))
        if tuple(chosen) == before:
            break
    return tuple(sorted(chosen))


def _own(losses: Losses, columns: Iterable[int], within: Collection[int]) -> int | None:
    """Return the column that a row uses: one within the limit if there is, then the fastest."""
    usable = [column for column in columns if column in losses]
    return min(
        usable, key=lambda column: (column not in within, losses[column], column), default=None
    )


def _by_column(losses: Sequence[Losses], count: int) -> list[dict[int, float]]:
    by_column: list[dict[int, float]] = [{} for _ in range(count)]
    for row, own in enumerate(losses):
        for column, loss in own.items():
            by_column[column][row] = loss
    return by_column


def _least(losses: Losses, columns: Iterable[int]) -> float:
    return min((losses[column] for column in columns if column in losses), default=UNSERVED)


def _only(column: int, others: Iterable[int], masks: Sequence[int] | None) -> int:
    """Return the rows that a column covers and no other one does."""
    if masks is None:
        return 0
    need = masks[column]
    for other in others:
        need &= ~masks[other]
    return need


def _sum(lost: Sequence[float], own: Mapping[int, float]) -> float:
    """Return what is lost with one more column, beyond what is lost without it."""
    return sum(min(0.0, loss - lost[row]) for row, loss in own.items())
