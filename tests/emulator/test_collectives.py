"""JAX's collective kernels on two to four emulated devices: their numbers, and their races."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled_plans import Compiled, compiled

from pallasc.cache.store import Store
from pallasc.emulator.machine.machine import Machine
from pallasc.emulator.program import PlanRun, numpy_dtype
from pallasc.emulator.races.observer import Races
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml
from pallasc.specs.spec import Variant

VARIANTS = expand(load_yaml(Path(__file__).parent / "collectives.yaml"))


@pytest.fixture(scope="module")
def plans(store: Store) -> Compiled:
    return compiled(VARIANTS, store)


def gathered(params: Mapping[str, Any], given: list[list[Any]]) -> list[Any]:
    return [np.concatenate([x for (x,) in given], params["dimension"])] * len(given)


def reduced(params: Mapping[str, Any], given: list[list[Any]]) -> list[Any]:
    reduce = {"add": np.sum, "max": np.max}[params["reduction"]]
    total = reduce(np.stack([x for (x,) in given]), axis=0)
    return np.split(total, len(given), params["dimension"])


def summed(params: Mapping[str, Any], given: list[list[Any]]) -> list[Any]:
    return [np.sum([x for (x,) in given], axis=0)] * len(given)


def multiplied(params: Mapping[str, Any], given: list[list[Any]]) -> list[Any]:
    whole = np.concatenate([lhs for lhs, _ in given]).astype(np.float32)
    return [whole @ rhs.astype(np.float32) for _, rhs in given]


EXPECTED: dict[str, Callable[[Mapping[str, Any], list[list[Any]]], list[Any]]] = {
    "all_gather": gathered,
    "reduce_scatter": reduced,
    "all_reduce": summed,
    "all_gather_matmul": multiplied,
}


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.id)
def test_every_device_gets_its_numbers(variant: Variant, plans: Compiled) -> None:
    artifact, texts = plans[variant.id]
    given = inputs(artifact)
    races = Races()
    machine = Machine(observer=races)
    found = PlanRun(artifact, machine, texts).run(given)
    expected = EXPECTED[variant.name](dict(variant.params), given)
    assert len(found) == len(expected) == artifact.plan.device_count
    for (own,), right in zip(found, expected, strict=True):
        assert own.shape == right.shape
        np.testing.assert_array_equal(own.astype(np.float32), right.astype(np.float32))
    errors = races.findings
    if variant.name == "all_gather_matmul" and artifact.plan.device_count > 2:
        assert {each.rule for each in errors} == {
            "async-write-not-awaited",
            "overwritten-in-flight",
        }
    else:
        assert [str(each) for each in errors] == []


def inputs(artifact: Artifact) -> list[list[Any]]:
    """Return small whole numbers for each device, of which every sum is exact."""
    source, plan = np.random.default_rng(11), artifact.plan
    return [
        [source.integers(-4, 5, b.shape).astype(numpy_dtype(b.dtype)) for b in plan.inputs]
        for _ in range(plan.device_count)
    ]


# On three devices and more JAX's all-gather matmul races. Each block of a device signals once a
# step to the device before it, which goes on when it has counted as many signals as there are
# blocks, of all steps together: a block that is ahead, and has signalled twice, counts for one that
# is late, and has not sent its part yet. On two devices each block signals once only.
