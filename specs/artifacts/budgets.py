"""Budgets: what the kernels of an artifact may take of each resource."""

from __future__ import annotations

from pallasc.errors import BudgetError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.spec import Budget

# Fields that a budget and the resources of a kernel have in common, and words for them.
_MEASURES = {
    "registers": "registers",
    "spill_bytes": "spill bytes",
    "stack_bytes": "stack bytes",
    "smem_bytes": "shared memory bytes",
}
_UNLIMITED = Budget()


def check_budget(artifact: Artifact, budget: Budget) -> BudgetError | None:
    """Return the error for the first limit that the artifact exceeds, None if there is none."""
    if budget == _UNLIMITED:
        return None
    for field, words in _MEASURES.items():
        limit = getattr(budget, field)
        for kernel in artifact.kernels if limit is not None else ():
            value = getattr(kernel, field)
            if value is None:
                return BudgetError(
                    f"{kernel.name}: {words} are not known; the budget is {limit}", kind=field
                )
            if value > limit:
                return BudgetError(
                    f"{kernel.name} takes {value} {words}; the budget is {limit}", kind=field
                )
    if budget.cubin_bytes is not None and artifact.cubin_bytes > budget.cubin_bytes:
        return BudgetError(
            f"the cubins take {artifact.cubin_bytes} bytes; the budget is {budget.cubin_bytes}",
            kind="cubin_bytes",
        )
    return None
