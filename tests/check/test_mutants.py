"""Mutants of kernels are found by executing what they compile to, and kernels themselves are not.

A few mutants are compiled and run here; `bench/check.py` runs and counts all of them.
"""

from pathlib import Path

import jax
import pytest
from equivalent_mutants import reason
from kernel_mutants import NOT_FOUND, NOT_RUN, Case, cases, measure
from mutated_kernels import SUBJECTS

NEW = tuple(map(int, jax.__version__.split(".")[:2])) >= (0, 12)
needs_new = pytest.mark.skipif(not NEW, reason="sources of JAX 0.12 are changed")

SAMPLE = {
    "hopper_matmul/multiply:delete wgmma_wait",
    "hopper_matmul/accumulate_and_store:delete commit_smem",
    "hopper_matmul/accumulate_and_store:weaken wait_smem_to_gmem read-only",  # equivalent
}


def chosen() -> list[Case]:
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
    outcomes = measure(own, tmp_path, timeout_s=1200)
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
    assert len(counted) == len(SAMPLE) - 1
    assert [outcome.id for outcome in counted if outcome.found in NOT_FOUND] == []
    assert [outcome.id for outcome in counted if not outcome.lines] == []
