"""Pairs similar elements of two sequences, keeping their order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

Pair = tuple[int | None, int | None]


def paired(first: Sequence[Counter[str]], second: Sequence[Counter[str]]) -> list[Pair]:
    """Return pairs of positions, with None for an element without a counterpart.

    Of all pairings that keep the order, returns one with the fewest differing instructions.

    Args:
        first: for each element, such as a loop, the number of instructions of each class.
        second: the same for the other side.
    """
    # For the rest from two positions on: the minimum number of differences, and the first pair.
    least: dict[tuple[int, int], tuple[int, Pair]] = {}
    for i in range(len(first), -1, -1):
        for j in range(len(second), -1, -1):
            ways: list[tuple[int, Pair]] = []
            if i < len(first) and j < len(second):
                differing = (first[i] - second[j]).total() + (second[j] - first[i]).total()
                ways.append((differing + least[i + 1, j + 1][0], (i, j)))
            if i < len(first):
                ways.append((first[i].total() + least[i + 1, j][0], (i, None)))
            if j < len(second):
                ways.append((second[j].total() + least[i, j + 1][0], (None, j)))
            least[i, j] = min(ways, key=lambda way: way[0], default=(0, (None, None)))
    pairs: list[Pair] = []
    i = j = 0
    while i < len(first) or j < len(second):
        pairs.append(least[i, j][1])
        i, j = i + (pairs[-1][0] is not None), j + (pairs[-1][1] is not None)
    return pairs
