"""Graphs of basic blocks: order, dominators, natural loops.

A graph is a list with the successors of each block; block 0 is the entry. Sets of blocks are bit
masks in an integer: kernels have at most a few hundred blocks. A loop is natural (Aho, Lam, Sethi,
Ullman, "Compilers", 9.6.6): it is closed by an edge to a block that dominates the edge's source.
"""

from __future__ import annotations

from collections.abc import Sequence

Successors = Sequence[Sequence[int]]


def predecessors(after: Successors) -> list[list[int]]:
    """Return the predecessors of each block."""
    before: list[list[int]] = [[] for _ in after]
    for source, targets in enumerate(after):
        for target in targets:
            before[target].append(source)
    return before


def reverse_postorder(after: Successors) -> list[int]:
    """Return the reachable blocks, each before its successors except along back edges."""
    if not after:
        return []
    seen, postorder = {0}, []
    stack = [(0, iter(after[0]))]
    while stack:
        number, rest = stack[-1]
        following = next((each for each in rest if each not in seen), None)
        if following is None:
            postorder.append(number)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(after[following])))
    return postorder[::-1]


def dominators(after: Successors, order: Sequence[int]) -> list[int]:
    """Return for each block the set of its dominators, including itself."""
    before = predecessors(after)
    everything = (1 << len(after)) - 1
    found = [everything] * len(after)
    found[:1] = [1]
    changed = True
    while changed:
        changed = False
        for number in order[1:]:
            common = everything
            for each in before[number]:
                common &= found[each]
            common |= 1 << number
            if common != found[number]:
                found[number], changed = common, True
    return found


def natural_loops(after: Successors) -> dict[int, int]:
    """Return the blocks of each loop by the loop's header; loops that share a header are merged."""
    order = reverse_postorder(after)
    found = dominators(after, order)
    before = predecessors(after)
    reached = set(order)
    loops: dict[int, int] = {}
    for source in order:
        for target in after[source]:
            if found[source] >> target & 1:
                loops[target] = loops.get(target, 0) | _body(before, source, target, reached)
    return loops


def _body(before: Sequence[Sequence[int]], source: int, header: int, reached: set[int]) -> int:
    """Return the blocks of the loop closed by an edge from `source` to `header`."""
    found = 1 << header
    stack = [source]
    while stack:
        number = stack.pop()
        if not found >> number & 1:
            found |= 1 << number
            stack += (each for each in before[number] if each in reached)
    return found
