"""Bank conflicts of shared loads and stores whose addresses are functions of the thread.

Shared memory has 32 banks of 4 bytes. Accesses of 8 and 16 bytes go in two and four turns of 16 and
8 threads, and so do the rows of `ldmatrix` and `stmatrix` (CUDA C++ Programming Guide, 20.7.3).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from pallasc.checks.static.events import Access
from pallasc.checks.static.facts import Facts
from pallasc.checks.static.found import Found

_LANES, _BANKS, _BANK_BYTES = 32, 32, 4
_LEAST = 4
"""Fewer threads in a bank are not worth a word."""


def check_banks(facts: Facts) -> Iterator[Found]:
    """Yield accesses at which four threads or more meet in a bank."""
    for access in (*facts.reads, *facts.writes):
        degree = conflict_degree(access)
        if degree >= _LEAST:
            yield Found(
                "bank-conflict",
                f"{degree}-way bank conflict in shared memory",
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
    warp = int(threads.argmax()) // _LANES * _LANES
    lanes, starts = threads[warp : warp + _LANES], offset[warp : warp + _LANES]
    first = int(starts[0])
    used = 8 * _matrices(access) if access.is_matrix else _LANES
    return _turns(
        lanes[:used].tobytes(),
        (starts - first).astype(np.int64).tobytes(),
        first % (_BANKS * _BANK_BYTES),
        access.width,
    )


@lru_cache(4096)
def _turns(executing: bytes, starts: bytes, first: int, width: int) -> int:
    """Return the turns of an access at `first + starts` by lanes of a warp, int64 each."""
    lanes = np.frombuffer(executing, bool).nonzero()[0].tolist()
    begins = (np.frombuffer(starts, np.int64) + first).tolist()
    turn = max(1, 32 * _BANK_BYTES // max(_BANK_BYTES, width))
    by_turn: dict[int, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for lane in lanes:
        begin = begins[lane]
        for word in range(begin // _BANK_BYTES, -(-(begin + width) // _BANK_BYTES)):
            by_turn[lane // turn][word % _BANKS].add(word)
    return max((len(words) for banks in by_turn.values() for words in banks.values()), default=1)


def _matrices(access: Access) -> int:
    parts = access.step.instruction.parts
    return next((int(part[1:]) for part in parts if part in ("x1", "x2", "x4")), 1)
