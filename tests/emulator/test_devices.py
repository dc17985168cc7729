"""Some kernels of the coverage table over two devices give right numbers on two emulated ones."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import Options
from pallasc.compiler.toolchain.setup import prepare
from pallasc.compiler.workers.pool import find_ptx
from pallasc.emulator.arrays import numpy_dtype
from pallasc.emulator.machine.machine import Machine, Policy
from pallasc.emulator.program import PlanRun
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.loading.decorator import collect_python
from pallasc.specs.loading.matrix import expand
from pallasc.specs.spec import Variant

COVERAGE = Path(__file__).parents[1] / "coverage"


EXPECTED: dict[str, Callable[[Any, Any], list[Any]]] = {
    "sum_over_all_devices": lambda x, y: [x + y, x + y],
    "memory_of_another_device": lambda x, y: [y, x],
    "signals_to_another_device": lambda x, y: [x, y],
    "no_barrier_of_devices": lambda x, y: [y, x],
}
NOT_IN_0_10 = ("no_barrier_of_devices",)
NAMES = [
    name
    for name in EXPECTED
    if not (metadata.version("jax").startswith("0.10.") and name in NOT_IN_0_10)
]

Compiled = Mapping[str, tuple[Artifact, Mapping[str, str]]]


def _variants() -> list[Variant]:
    """Return those of the table that have two devices, for Hopper."""
    sys.path.insert(0, str(COVERAGE))
    try:
        every = expand(collect_python(COVERAGE / "kernels_devices.py"))
    finally:
        sys.path.remove(str(COVERAGE))
    return [v for v in every if v.mesh and v.target.arch == "sm_90a"]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """Return the artifact of each kernel, with the PTX of XLA's own."""
    wanted = [variant for variant in _variants() if variant.name in NAMES]
    assert {variant.name for variant in wanted} == set(NAMES)
    store = Store(tmp_path_factory.mktemp("store"))
    results = build(wanted, store=store, options=Options(jobs=1)).results
    made = [(r.variant, r.artifact) for r in results if r.artifact is not None]
    assert len(made) == len(wanted), [str(r.error) for r in results if r.error]
    with prepare() as setup:
        found = find_ptx(made, setup, store)
    return {
        variant.name: (artifact, texts)
        for (variant, artifact), texts in zip(made, found, strict=True)
        if isinstance(texts, Mapping)
    }


@pytest.mark.parametrize("name", NAMES)
def test_two_devices_get_their_numbers(name: str, compiled: Compiled) -> None:
    artifact, texts = compiled[name]
    (binding,) = artifact.plan.inputs
    source = np.random.default_rng(3)
    arrays = [
        source.integers(-50, 50, binding.shape).astype(numpy_dtype(binding.dtype)) for _ in range(2)
    ]
    run = PlanRun(artifact, Machine(Policy(seconds=3600)), texts)
    found = run.run([[array] for array in arrays])
    for (result,), right in zip(found, EXPECTED[name](*arrays), strict=True):
        np.testing.assert_array_equal(result, right)
