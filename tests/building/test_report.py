"""Reports, their exit codes and budgets."""

from typing import Any

import pytest
from msgspec.structs import replace

from pallasc.compiler.builds.report import Report, VariantResult
from pallasc.errors import BudgetError, CompileError, PallascError, SpecError, ToolError
from pallasc.specs.artifacts.artifact import KernelResources, check_budget
from pallasc.specs.spec import Budget

KERNEL = KernelResources(
    name="k", cubin="c" * 64, ptx=None, origin="mosaic", registers=40, stack_bytes=16,
    spill_store_bytes=4, spill_load_bytes=8, static_smem_bytes=1000, dynamic_smem_bytes=24,
    barriers=1,
)  # fmt: skip


class Measured:
    """Stands for an artifact: only what budgets look at."""

    def __init__(self, *kernels: KernelResources, cubin_bytes: int = 500) -> None:
        self.kernels, self.launch_sizes = kernels, ()
        self.cubin_bytes = cubin_bytes


def check(artifact: Any, **limits: int) -> str | None:
    error = check_budget(artifact, Budget(**limits))
    assert error is None or isinstance(error, BudgetError)
    return error.message if error else None


@pytest.mark.parametrize(
    ("field", "limit", "taken"),
    [
        ("registers", 40, "k has 40 registers"),
        ("spill_bytes", 12, "k has 12 spill bytes"),
        ("stack_bytes", 16, "k has 16 stack bytes"),
        ("smem_bytes", 1024, "k has 1024 shared memory bytes"),
        ("cubin_bytes", 500, "the variant has 500 cubin bytes"),
    ],
)
def test_a_limit_that_is_exceeded_is_named_with_both_figures(
    field: str, limit: int, taken: str
) -> None:
    assert check(Measured(KERNEL), **{field: limit}) is None
    message = f"{taken}; the budget is {limit - 1}"
    assert check(Measured(KERNEL), **{field: limit - 1}) == message


def test_all_that_is_exceeded_or_not_known_is_named_with_the_kernel() -> None:
    assert check(Measured(KERNEL), registers=1, spill_bytes=0) == (
        "k has 40 registers; the budget is 1\nk has 12 spill bytes; the budget is 0"
    )
    larger = replace(KERNEL, name="larger", registers=100)
    assert check(Measured(KERNEL, larger), registers=50) == (
        "larger has 100 registers; the budget is 50"
    )
    unknown = Measured(replace(KERNEL, spill_store_bytes=None))
    assert check(unknown, spill_bytes=100) == "k: spill bytes are not known; the budget is 100"
    assert check(unknown, registers=100) is None


@pytest.mark.parametrize(
    ("errors", "code"),
    [
        ((), 0),
        ((None, None), 0),
        ((None, CompileError("a")), 1),
        ((BudgetError("a"), CompileError("b")), 1),
        ((SpecError("a"), BudgetError("b")), 2),
        ((ToolError("a"), SpecError("b")), 4),
    ],
)
def test_the_exit_code_is_that_of_the_gravest_failure(
    errors: tuple[PallascError | None, ...], code: int
) -> None:
    variant: Any = None
    results = [VariantResult(variant, "failed" if e else "compiled", error=e) for e in errors]
    made = Report((*results, VariantResult(variant, "skipped")), 0.0)
    assert made.exit_code == code
    assert len(made.failed) == sum(e is not None for e in errors)
    assert (len(made.compiled), len(made.having("skipped"))) == (len(errors) - len(made.failed), 1)
