"""The order of the points of a key by what is known without a GPU.

A score is a sum of weights times logarithms of figures relative to the other points of the key, so
that only what differs between them counts. It is no time: it has no unit, and scores of two keys
say nothing of each other.

The weights were fitted, by pairwise logistic regression, to the winners that Tokamax 0.0.17
publishes for H100 and B200, half of the sampled shapes; `bench/tune_pruning.py` judges them by the
others. They say: large tiles, so that a grid has few blocks, but few spills; deep pipelines that
fill shared memory; and rather one tile a block than persistent blocks. Instructions, bytes, warps,
operations of a tile and the bound changed little besides, and have no weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pallasc.analysis.tuning.facts import Facts


class _Term(NamedTuple):
    """A weight, and the figure that it is for; None where that is not known."""

    weight: float
    figure: Callable[[Facts], float | None]


_FREE_SPILLS = 64
"""Spills that hardly count: added to them before the logarithm."""

TERMS: Mapping[str, _Term] = {
    "mbarriers": _Term(-0.9, lambda facts: 1 + facts.mbarriers),
    "smem_bytes": _Term(-1.0, lambda facts: facts.smem_bytes or None),
    "spill_bytes": _Term(0.8, lambda facts: _FREE_SPILLS + (facts.spill_bytes or 0)),
    # Blocks that the GPU holds at once may do several tiles each: their number says nothing.
    "tiles": _Term(1.8, lambda facts: None if _is_one_wave(facts) else facts.waves),
    "one wave": _Term(1.2, lambda facts: math.e if _is_one_wave(facts) else 1.0),
}


def scores(facts: Sequence[Facts]) -> list[float]:
    """Return a number for each point of a key; the lowest is the best."""
    totals = [0.0] * len(facts)
    for term in TERMS.values():
        for number, value in enumerate(_relative([term.figure(own) for own in facts])):
            totals[number] += term.weight * value
    # Logarithms differ in their last bits between C libraries, and equal points must stay equal.
    return [round(total, 9) for total in totals]


def _relative(values: Sequence[float | None]) -> list[float]:
    """Return logarithms relative to the mean of the known; what is not known counts as that."""
    logarithms = [None if value is None else math.log(value) for value in values]
    known = [value for value in logarithms if value is not None]
    mean = math.fsum(known) / len(known) if known else 0.0
    return [0.0 if value is None else value - mean for value in logarithms]


def _is_one_wave(facts: Facts) -> bool:
    return facts.waves <= 1.0 + 1e-9
