"""What messages list where no variant fits: the few that are likest to what was asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pallasc.errors import ArgumentError
from pallasc.runtime.matching.candidates import ArrayType, Candidate
from pallasc.specs.arrays import array_text

MOST_LISTED = 5
"""Variants that one message lists."""

_OTHER_DTYPE = 4.0
_OTHER_RANK = 16.0


def nearest_to_arrays(
    candidates: Sequence[Candidate], arrays: Sequence[ArrayType]
) -> list[Candidate]:
    """Return variants in the order of how like their arrays are to these, the likest first."""
    return sorted(candidates, key=lambda one: _distance(one.arrays, arrays))


def no_variant_for(
    name: str, candidates: Sequence[Candidate], arrays: Sequence[ArrayType]
) -> ArgumentError:
    """Return the error for arrays that no variant takes, whatever the GPU."""
    kinds = list({one.arrays: one for one in reversed(candidates)}.values())[::-1]
    given = ", ".join(array_text(*one) for one in arrays)
    return ArgumentError(
        f"{name} has no variant for {given}.",
        hint=_hint(
            nearest_to_arrays(kinds, arrays), len(candidates), lambda one: _differences(one, arrays)
        ),
    )


def no_variant_with(
    name: str, candidates: Sequence[Candidate], params: Mapping[str, Any]
) -> ArgumentError:
    """Return the error for values of parameters that no variant has."""
    given = ", ".join(f"{key}={value!r}" for key, value in params.items())
    ordered = sorted(
        candidates, key=lambda one: sum(one.params.get(k) != v for k, v in params.items())
    )
    return ArgumentError(
        f"{name} has no variant with {given}.",
        hint=_hint(ordered, len(candidates), lambda one: ""),
    )


def cut(lines: Sequence[str]) -> list[str]:
    """Return the first lines of a list, and how many more there are."""
    more = len(lines) - MOST_LISTED
    return [*lines[:MOST_LISTED], *([f"… and {more} more"] if more > 0 else [])]


def _hint(ordered: Sequence[Candidate], count: int, said: Callable[[Candidate], str]) -> str:
    listed = [f"{one.id}{said(one)}" for one in ordered[:MOST_LISTED]]
    if len(listed) == count == 1:
        return f"It has {listed[0]}."
    head = "It has:" if len(listed) == count else f"The nearest of its {count} variants:"
    return "\n    ".join([head, *listed])


def _differences(one: Candidate, arrays: Sequence[ArrayType]) -> str:
    inputs = one.facts.inputs
    if len(inputs) != len(arrays):
        return f", which takes {len(inputs)} arrays, not {len(arrays)}"
    found = [
        f"{own.path} is {array_text(*taken)}"
        for own, taken, given in zip(inputs, one.arrays, arrays, strict=True)
        if taken != tuple(given)
    ]
    return f", where {', '.join(found)}"


def _distance(own: Sequence[ArrayType], given: Sequence[ArrayType]) -> float:
    pairs = zip(own, given, strict=False)
    counts = abs(len(own) - len(given))
    return counts * 2 * _OTHER_RANK + sum(_difference(*pair) for pair in pairs)


def _difference(own: ArrayType, given: ArrayType) -> float:
    dtypes = _OTHER_DTYPE if own[0] != given[0] else 0.0
    dtypes += 1.0 if own[2:] != given[2:] else 0.0
    if len(own[1]) != len(given[1]):
        return dtypes + _OTHER_RANK
    sizes = zip(own[1], given[1], strict=True)
    return dtypes + sum((abs(math.log2(a + 1) - math.log2(b + 1)) for a, b in sizes), 0.0)
