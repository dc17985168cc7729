"""Budgets: what the kernels of an artifact may take of each resource."""

from __future__ import annotations

from pallasc.errors import BudgetError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.resources import number_of, worst_kernel
from pallasc.specs.budget_rules import parse_rule
from pallasc.specs.resources import MORE_IS_BETTER, WORDS, Resources
from pallasc.specs.spec import Budget

_UNLIMITED = Budget()
_NOTHING = Resources()


def check_budget(
    artifact: Artifact,
    budget: Budget,
    *,
    before: Resources = _NOTHING,
    baseline: str = "the baseline",
) -> BudgetError | None:
    """Return the error for all limits that the artifact exceeds, None if there are none.

    Args:
        artifact: what was compiled.
        budget: its limits.
        before: its resources in the baseline; a rule whose number is not known holds.
        baseline: what the baseline is called, for messages.

    Raises:
        CorruptError: the artifact's plan or target is damaged.
    """
    if budget == _UNLIMITED:
        return None
    clauses = {}
    for field in Resources._fields:
        limit = getattr(budget, field)
        if limit is None or (type(limit) is str and getattr(before, field) is None):
            continue
        number = number_of(artifact, field)
        if number is None:
            clauses[field] = (
                f"{worst_kernel(artifact, field)}: {WORDS[field]} are not known; the budget is "
                f"{limit}"
            )
        elif not _allows(limit, number, getattr(before, field), field):
            words = _words(limit, getattr(before, field), field, baseline)
            clauses[field] = f"{_taking(artifact, field, number)}; the budget is {words}"
    if not clauses:
        return None
    return BudgetError("\n".join(clauses.values()), kind=next(iter(clauses)))


def _allows(limit: int | str, number: int, before: int | None, field: str) -> bool:
    if type(limit) is int:
        return number >= limit if field in MORE_IS_BETTER else number <= limit
    rule = parse_rule(str(limit), field)
    return rule is None or before is None or rule.allows(number, before)


def _taking(artifact: Artifact, field: str, number: int) -> str:
    """Return `k takes 40 registers`."""
    if field == "cubin_bytes":
        return f"the cubins take {number} bytes"
    kernel = worst_kernel(artifact, field)
    if field == "occupancy":
        return f"{kernel} has {number} warps on a multiprocessor"
    return f"{kernel} takes {number} {WORDS[field]}"


def _words(limit: int | str, before: int | None, field: str, baseline: str) -> str:
    if isinstance(limit, str):
        joint = "," if limit.endswith("baseline") else " on"
        return f"{limit}{joint} {before} in {baseline}"
    return f"at least {limit}" if field in MORE_IS_BETTER else f"{limit}"
