"""Mutants of kernels are found by executing what they compile to, and kernels themselves are not.

A few mutants are compiled and run here, one of each kind, and with `PALLASC_ALL_MUTANTS=1` all of
them, of which 95 % must be found. `bench/check.py` counts them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import jax
import pytest
from equivalent_mutants import REASONS, reason
from kernel_mutants import NOT_FOUND, NOT_RUN, Case, cases, measure, outcome
from kernel_mutations import mutants
from mutated_kernels import SUBJECTS

NEW = tuple(map(int, jax.__version__.split(".")[:2])) >= (0, 12)
needs_new = pytest.mark.skipif(not NEW, reason="sources of JAX 0.12 are changed")

ALL = os.environ.get("PALLASC_ALL_MUTANTS", "") not in ("", "0")
SAMPLE = {
    "hopper_matmul/multiply:delete wgmma_wait",
    "blackwell_matmul/multiply:delete barrier_wait",
    "blackwell_matmul/wait_for_empty_slot:twice barrier_wait",
    "blackwell_matmul/matmul:count arrivals+1",
    "fused_matmul/matmul_bias_activation_body:delete barrier_wait",
    "fused_matmul/matmul_bias_activation_body:bytes half of copy",
    "row_sum/load:index ds+8",
    "hopper_matmul/accumulate_and_store:delete commit_smem",
    "hopper_matmul/accumulate_and_store:delete wait_smem_to_gmem",
    "fused_matmul/multiply_all:count delay_release-1",
    "blackwell_matmul/drain:delete barrier_wait",  # equivalent
}

SOURCE = """
def kernel(n):
    def body(x_smem, out_smem):
        plgpu.copy_gmem_to_smem(x.at[pl.ds(0, n)], x_smem, loaded.at[slot])
        plgpu.barrier_wait(
            loaded.at[slot]
        )
        out_smem[...] = x_smem[...]
        plgpu.commit_smem()
        rows = pl.ds(0, n)
        plgpu.wait_smem_to_gmem(0)
    return body, plgpu.Barrier(num_arrivals=n)
"""


def test_a_mutant_differs_in_one_place_and_keeps_its_lines() -> None:
    for mutant in mutants(SOURCE, ["kernel"], swaps=["loaded", "used"]):
        ours, theirs = mutant.source.splitlines(), SOURCE.splitlines()
        assert len(ours) == len(theirs), mutant.name
        changed = [n for n, (a, b) in enumerate(zip(ours, theirs, strict=True), 1) if a != b]
        assert mutant.line <= changed[-1] <= mutant.last or changed[0] <= mutant.line
        assert all(mutant.line - 3 <= line <= mutant.last for line in changed), mutant.name


def test_each_operator_has_its_mutants() -> None:
    found = [m.name for m in mutants(SOURCE, ["kernel"], swaps=["loaded", "used"])]
    assert len(set(found)) == len(found)
    assert {name.partition(":")[2] for name in found} == {
        "4:bytes half of copy",
        "4:delete copy_gmem_to_smem",
        "4:index ds+8",
        "4:slot loaded[0]",
        "4:swap loaded in copy_gmem_to_smem",
        "5:delete barrier_wait",
        "5:earlier barrier_wait",
        "5:later barrier_wait",
        "6:slot loaded[0]",
        "6:swap loaded in barrier_wait",
        "9:delete commit_smem",
        "9:earlier commit_smem",
        "10:index ds+8",
        "11:delete wait_smem_to_gmem",
        "11:weaken wait_smem_to_gmem n+1",
        "11:weaken wait_smem_to_gmem read-only",
        "12:count arrivals+1",
        "12:count arrivals-1",
    }


@needs_new
def test_the_subjects_have_at_least_150_mutants_and_each_reason_is_that_of_one() -> None:
    found = [case for case in cases(SUBJECTS) if case.mutant]
    names = [case.id for case in found]
    assert len(set(names)) == len(names)
    assert len({_without_line(case) for case in found if not reason(case)}) >= 150
    assert not [each for each, _ in REASONS if not any(re.search(each, name) for name in names)]


@pytest.mark.parametrize(
    ("message", "stopped"),
    [
        ("the compiling process took longer than 120 s (--timeout) and was stopped", True),
        ("ValueError: MMA barrier must have orders_tensor_core set to True.", False),
    ],
)
def test_a_mutant_that_does_not_compile_has_its_reason(message: str, stopped: bool) -> None:
    found = outcome(Case(SUBJECTS[0], 0, None), {"results": [], "error": {"message": message}})
    assert (found.found, found.message, found.stopped) == ("not compiled", message, stopped)


def chosen() -> list[Case]:
    if ALL:
        return list(cases(SUBJECTS, most=1))
    kernels = {name.partition("/")[0] for name in SAMPLE}
    found: dict[str, Case] = {}
    for case in cases(subject for subject in SUBJECTS if subject.name in kernels):
        found.setdefault(_without_line(case), case)
    return [found[name] for name in sorted({f"{k}/unchanged" for k in kernels} | SAMPLE)]


def _without_line(case: Case) -> str:
    if case.mutant is None:
        return case.id
    return f"{case.subject.name}/{case.mutant.function}:{case.mutant.operator}"


@needs_new
def test_mutants_are_found_and_kernels_are_not(tmp_path: Path) -> None:
    own = sorted(chosen(), key=lambda case: case.mutant is not None)
    outcomes = measure(own, tmp_path, timeout_s=120 if ALL else 1200)
    harmless = [outcomes[c.id] for c in own if not c.mutant or reason(c)]
    assert len(harmless) > len({c.subject.name for c in own})
    assert not [o for o in harmless if o.found not in (*NOT_FOUND, *NOT_RUN)]
    assert not [o for o in harmless if o.found == "not checked"]
    counted = [
        outcomes[case.id]
        for case in own
        if case.mutant and not reason(case)
        if outcomes[case.id].found not in NOT_RUN
    ]
    allowed = 0.05 * len(counted) if ALL else 0
    missed = [outcome.id for outcome in counted if outcome.found in NOT_FOUND]
    assert len(missed) <= allowed, missed
    elsewhere = {o.id: o.lines for o in counted if o.found not in NOT_FOUND and not o.lines}
    assert len(elsewhere) <= allowed, elsewhere
