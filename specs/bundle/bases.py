"""Choose the base of each blob: the blob whose content helps most to compress it.

Variants of a kernel differ in a few instructions, and cubins of neighbouring architectures in not
many more. So the contents form a forest: a root is compressed alone, any other with the contents on
the path from its root as dictionary. To read one, the path is read and nothing else; its length is
bounded. A content is compared by its pieces, 16-byte rows of a cubin or items of a text, and the
cost of one on top of another is the number of pieces that the other lacks. First, roots are chosen
so that the sum of costs is small (greedy facility location); then contents move to cheaper bases as
long as no path gets too long. Both go through the contents in their order: the same contents in the
same order give the same forest.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from zlib import crc32

from pallasc.specs.bundle.blobs import Kind

LONGEST_PATH = 4
"""Most bases that are read for one blob; the format allows more."""
LARGEST_PATH_BYTES = 2**20
_LARGEST_BYTES = 2**18
_ROW_BYTES = 16
_NEIGHBOURS = range(32, 129)
_MOST_PAIRS = 2**18
_MOST_PIECES = 2**21
_PASSES = 8


@dataclass(frozen=True, slots=True)
class Content:
    """A content to store, and its kind."""

    kind: Kind
    data: bytes


@dataclass(slots=True)
class _Forest:
    """Bases and what they cost; `costs[a]` has the cost of content `a` on top of its neighbours."""

    alone: list[int]
    costs: list[dict[int, int]]
    bases: list[int | None] = field(default_factory=list)
    children: list[set[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bases = [None] * len(self.alone)
        self.children = [set() for _ in self.alone]

    def cost(self, item: int) -> int:
        base = self.bases[item]
        return self.alone[item] if base is None else self.costs[item][base]

    def move(self, item: int, base: int | None) -> None:
        old = self.bases[item]
        if old is not None:
            self.children[old].discard(item)
        self.bases[item] = base
        if base is not None:
            self.children[base].add(item)

    def depth(self, item: int) -> int:
        depth, base = 0, self.bases[item]
        while base is not None:
            depth, base = depth + 1, self.bases[base]
        return depth

    def height(self, item: int) -> int:
        return 1 + max(map(self.height, self.children[item])) if self.children[item] else 0

    def is_under(self, item: int, other: int) -> bool:
        """Tell whether `item` is `other` or has it on its path."""
        at: int | None = item
        while at is not None and at != other:
            at = self.bases[at]
        return at == other


def choose_bases(contents: Sequence[Content]) -> list[int | None]:
    """Return for each content the index of its base, None where it has none.

    Args:
        contents: what is to be stored; contents that are alike should be near each other.
    """
    pieces = _sampled([_pieces(content) for content in contents])
    forest = _Forest([len(own) for own in pieces], _costs(contents, pieces))
    _choose_roots(forest)
    for _ in range(_PASSES):
        if not _improve(forest):
            break
    _cut_long_paths(forest, contents)
    return forest.bases


def in_order(bases: Sequence[int | None]) -> list[int]:
    """Return the indices in an order in which each comes soon after its base."""
    children: list[list[int]] = [[] for _ in bases]
    for item, base in enumerate(bases):
        if base is not None:
            children[base].append(item)
    result: list[int] = []
    stack = [item for item, base in enumerate(bases) if base is None][::-1]
    while stack:
        item = stack.pop()
        result.append(item)
        stack += reversed(children[item])
    return result


def _pieces(content: Content) -> set[int]:
    """Return the pieces of a content by their checksums; none for what gets no base."""
    data = content.data
    if len(data) > _LARGEST_BYTES or content.kind is Kind.CONSTANT:
        return set()
    if content.kind is Kind.CUBIN:
        rows = {data[at : at + _ROW_BYTES] for at in range(0, len(data), _ROW_BYTES)}
        rows.discard(bytes(_ROW_BYTES))
    else:
        rows = set(data.split(b"," if content.kind is Kind.RECORD else b"\n"))
    return set(map(crc32, rows))


def _sampled(pieces: list[set[int]]) -> list[set[int]]:
    """Return a sample of the pieces where there are very many: the same ones of each content."""
    total = sum(map(len, pieces))
    each = 1 << max(0, (total - 1) // _MOST_PIECES).bit_length()
    return (
        pieces if each == 1 else [{piece for piece in own if piece % each == 0} for own in pieces]
    )


def _costs(contents: Sequence[Content], pieces: Sequence[set[int]]) -> list[dict[int, int]]:
    """Return the cost of each content on top of those near it that share something with it."""
    costs: list[dict[int, int]] = [{} for _ in contents]
    near = _MOST_PAIRS // max(1, len(contents))
    near = min(max(near, _NEIGHBOURS.start), _NEIGHBOURS.stop - 1)
    for item, own in enumerate(pieces):
        for other in range(max(0, item - near), item):
            if not own or contents[other].kind is not contents[item].kind:
                continue
            shared = len(own & pieces[other])
            if shared:
                costs[item][other] = len(own) - shared
                costs[other][item] = len(pieces[other]) - shared
    return costs


def _choose_roots(forest: _Forest) -> None:
    """Choose bases as long as that makes the sum of costs smaller.

    The gain of a base only shrinks as others are chosen. So the best of the heap is computed again,
    and is the right choice if it is still the best.
    """
    heap = [(-_gain(forest, item), item) for item in range(len(forest.alone))]
    heapq.heapify(heap)
    while heap and heap[0][0] < 0:
        _, item = heapq.heappop(heap)
        gain = _gain(forest, item)
        if gain <= 0:
            continue
        if heap and -heap[0][0] > gain:
            heapq.heappush(heap, (-gain, item))
            continue
        forest.move(item, None)
        for other in _takers(forest, item):
            forest.move(other, item)


def _takers(forest: _Forest, base: int) -> list[int]:
    """Return the contents that would cost less on top of `base`; bases stay roots."""
    return [
        other
        for other in forest.costs[base]
        if not forest.children[other]
        and base in forest.costs[other]
        and forest.costs[other][base] < forest.cost(other)
    ]


def _gain(forest: _Forest, base: int) -> int:
    loss = forest.alone[base] - forest.cost(base)
    takers = _takers(forest, base)
    return sum(forest.cost(taker) - forest.costs[taker][base] for taker in takers) - loss


def _improve(forest: _Forest) -> bool:
    """Move each content to its cheapest possible base; tell whether any moved."""
    moved = False
    for item in range(len(forest.alone)):
        best, cheapest = forest.bases[item], forest.cost(item)
        height = forest.height(item)
        for base, cost in forest.costs[item].items():
            if (
                cost < cheapest
                and forest.depth(base) + 1 + height <= LONGEST_PATH
                and not forest.is_under(base, item)
            ):
                best, cheapest = base, cost
        if best != forest.bases[item]:
            forest.move(item, best)
            moved = True
    return moved


def _cut_long_paths(forest: _Forest, contents: Sequence[Content]) -> None:
    """Take the base from a content whose path has too many bytes."""
    lengths: dict[int, int] = {}
    for item in in_order(forest.bases):
        base = forest.bases[item]
        before = 0 if base is None else lengths[base] + len(contents[base].data)
        if before > LARGEST_PATH_BYTES:
            forest.move(item, None)
            before = 0
        lengths[item] = before
