"""Budgets: what the kernels of an artifact may take of each resource."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pallasc.errors import BudgetError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.resources import kernels_of, number_of, worst_kernel
from pallasc.specs.budget_rules import parse_rule
from pallasc.specs.resources import MORE_IS_BETTER, WORDS, Resources
from pallasc.specs.spec import Budget

_UNLIMITED = Budget()
_NOTHING = Resources()
_OF_NO_KERNEL = "cubin_bytes"

Kernels = Sequence[tuple[str, Resources]]
"""The name of each kernel, and what it takes."""


class _Compared(NamedTuple):
    """A number of a kernel, and what it is in the baseline; None for what is not known."""

    kernel: str
    number: int | None
    before: int | None


def check_budget(
    artifact: Artifact,
    budget: Budget,
    *,
    before: Resources = _NOTHING,
    kernels: Kernels = (),
    baseline: str = "the baseline",
) -> BudgetError | None:
    """Return the error for all limits that the artifact exceeds, None if there are none.

    Args:
        artifact: what was compiled.
        budget: its limits.
        before: its resources in the baseline; a rule whose number is not known holds.
        kernels: those of each kernel in the baseline, if known: then a rule is for each kernel that
            has one of its name there. Else it is for the kernel that takes most.
        baseline: what the baseline is called, for messages.

    Raises:
        CorruptError: the artifact's plan or target is damaged.
    """
    if budget == _UNLIMITED:
        return None
    clauses: list[tuple[str, str]] = []
    for field in Resources._fields:
        limit = getattr(budget, field)
        if limit is None or (type(limit) is str and getattr(before, field) is None):
            continue
        for compared in _compared(artifact, field, before, kernels if type(limit) is str else ()):
            if text := _exceeded(limit, field, compared, baseline):
                clauses.append((field, text))
    if not clauses:
        return None
    return BudgetError("\n".join(text for _, text in clauses), kind=clauses[0][0])


def _compared(
    artifact: Artifact, field: str, before: Resources, kernels: Kernels
) -> Iterator[_Compared]:
    """Yield what a limit is held to: each kernel, or the one that takes most."""
    whole = getattr(before, field)
    if not kernels or field == _OF_NO_KERNEL:
        yield _Compared(worst_kernel(artifact, field), number_of(artifact, field), whole)
        return
    # Kernels of one name follow each other in the order of their first launch.
    known: dict[str, list[int | None]] = defaultdict(list)
    for name, taken in reversed(kernels):
        known[name].append(getattr(taken, field))
    for name, taken in kernels_of(artifact):
        yield _Compared(name, getattr(taken, field), known[name].pop() if known[name] else whole)


def _exceeded(limit: int | str, field: str, compared: _Compared, baseline: str) -> str:
    """Return how a number exceeds a limit, "" where it does not."""
    kernel, number, before = compared
    if number is None:
        return f"{kernel}: {WORDS[field]} are not known; the budget is {limit}"
    if _allows(limit, number, before, field):
        return ""
    return (
        f"{_taking(kernel, field, number)}; the budget is {_words(limit, before, field, baseline)}"
    )


def _allows(limit: int | str, number: int, before: int | None, field: str) -> bool:
    if type(limit) is int:
        return number >= limit if field in MORE_IS_BETTER else number <= limit
    rule = parse_rule(str(limit), field)
    return rule is None or before is None or rule.allows(number, before)


def _taking(kernel: str, field: str, number: int) -> str:
    """Return `k takes 40 registers`."""
    if field == _OF_NO_KERNEL:
        return f"the cubins take {number} bytes"
    if field == "occupancy":
        return f"{kernel} has {number} warps on a multiprocessor"
    return f"{kernel} takes {number} {WORDS[field]}"


def _words(limit: int | str, before: int | None, field: str, baseline: str) -> str:
    if isinstance(limit, str):
        joint = "," if limit.endswith("baseline") else " on"
        return f"{limit}{joint} {before} in {baseline}"
    return f"at least {limit}" if field in MORE_IS_BETTER else f"{limit}"
