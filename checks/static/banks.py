"""Bank conflicts of shared loads and stores whose addresses are functions of the thread.

Shared memory has 32 banks of 4 bytes. Accesses of 8 and 16 bytes go in two and four turns of 16 and
8 threads, and so do the rows of `ldmatrix` and `stmatrix` (CUDA C++ Programming Guide, 20.7.3).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache

from pallasc.checks.static.events import Access
from pallasc.checks.static.facts import Facts
from pallasc.checks.static.found import Found

_BANKS, _BANK_BYTES = 32, 4
_LEAST = 4
"""Fewer threads in a bank are not worth a word."""


def check_banks(facts: Facts) -> Iterator[Found]:
    """Yield accesses at which four threads or more meet in a bank."""
    for access in (*facts.reads, *facts.writes):
        degree = conflict_degree(access)
        if degree >= _LEAST:
            yield Found(
                "bank-conflict",
                f"{degree} threads of a warp meet in one bank of shared memory.",
                access.step.instruction,
                severity="note",
            )


def conflict_degree(access: Access) -> int:
    """Return how many turns the slowest part of an access takes, in the first warp that makes it.

    An access at addresses that are not known, or known to be the same, takes one.
    """
    offset, threads = access.place.offset, access.step.threads
    if isinstance(offset, int) or threads is None:
        return 1
    executing = threads.nonzero()[0]
    warp = executing[0] // 32 * 32
    lanes = [int(each) - warp for each in executing if each < warp + 32]
    if access.is_matrix:
        lanes = [lane for lane in lanes if lane < 8 * _matrices(access)]
    starts = tuple((offset[warp:][lanes] - offset[warp + lanes[0]]).tolist())
    first = int(offset[warp + lanes[0]]) % (_BANKS * _BANK_BYTES)
    return _turns(tuple(lanes), starts, first, access.width)


@lru_cache(4096)
def _turns(lanes: tuple[int, ...], starts: tuple[int, ...], first: int, width: int) -> int:
    """Return the turns of an access at `first + starts` by lanes of a warp."""
    turn = max(1, 32 * _BANK_BYTES // max(_BANK_BYTES, width))
    by_turn: dict[int, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for lane, start in zip(lanes, starts, strict=True):
        begin = first + start
        for word in range(begin // _BANK_BYTES, -(-(begin + width) // _BANK_BYTES)):
            by_turn[lane // turn][word % _BANKS].add(word)
    return max(len(words) for banks in by_turn.values() for words in banks.values())


def _matrices(access: Access) -> int:
    parts = access.step.instruction.parts
    return next((int(part[1:]) for part in parts if part in ("x1", "x2", "x4")), 1)
