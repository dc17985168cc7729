"""Budgets: what the kernels of an artifact may take of each resource."""

from __future__ import annotations

from collections.abc import Callable

from pallasc.errors import BudgetError
from pallasc.specs.artifacts.artifact import Artifact, KernelResources
from pallasc.specs.spec import Budget

_MEASURES: tuple[tuple[str, str, Callable[[KernelResources], int | None]], ...] = (
    ("registers", "registers", lambda kernel: kernel.registers),
    ("spill_bytes", "spill bytes", lambda kernel: kernel.spill_bytes),
    ("stack_bytes", "stack bytes", lambda kernel: kernel.stack_bytes),
    ("smem_bytes", "shared memory bytes", lambda kernel: kernel.smem_bytes),
)


_UNLIMITED = Budget()


def check_budget(artifact: Artifact, budget: Budget) -> BudgetError | None:
    """Return the error for the first limit that the artifact exceeds, None if there is none."""
    if budget == _UNLIMITED:
        return None
    for field, words, measure in _MEASURES:
        limit = getattr(budget, field)
        for kernel in artifact.kernels if limit is not None else ():
            value = measure(kernel)
            if value is None:
                return BudgetError(f"{kernel.name}: {words} are not known; the budget is {limit}")
            if value > limit:
                return BudgetError(f"{kernel.name} takes {value} {words}; the budget is {limit}")
    if budget.cubin_bytes is not None and artifact.cubin_bytes > budget.cubin_bytes:
        return BudgetError(
            f"the cubins take {artifact.cubin_bytes} bytes; the budget is {budget.cubin_bytes}"
        )
    return None
