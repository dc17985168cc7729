"""JAX's collective kernels give right numbers on two and on four emulated devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pallasc.cache.store import Store
from pallasc.compiler.again.find_ptx import find_ptx
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import Options
from pallasc.compiler.toolchain.setup import prepare
from pallasc.emulator.arrays import numpy_dtype
from pallasc.emulator.machine.machine import Machine, Policy
from pallasc.emulator.races.observer import Races
from pallasc.emulator.run_plan import PlanRun
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml
from pallasc.specs.spec import Variant

VARIANTS = expand(load_yaml(Path(__file__).parent / "collectives.yaml"))


def _case(variant: Variant) -> Any:
    """Return the parameter for a variant; of some types, one Python and its JAX are enough."""
    dtype = dict(variant.params).get("dtype")
    marks = pytest.mark.once if dtype in ("bf16", "i32") else ()
    return pytest.param(variant, id=variant.id, marks=marks)


Compiled = Mapping[str, tuple[Artifact, Mapping[str, str]]]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Compiled:
    """Return the artifact of each variant that a test runs, with the PTX of XLA's kernels."""
    own = [item for item in request.session.items if item.path == request.path]
    variants = [item.callspec.params["variant"] for item in own]  # type: ignore[attr-defined]
    store = Store(tmp_path_factory.mktemp("store"))
    results = build(variants, store=store, options=Options(jobs=1)).results
    made = [(r.variant, r.artifact) for r in results if r.artifact is not None]
    assert len(made) == len(variants), [str(r.error) for r in results if r.error]
    with prepare() as setup:
        found = find_ptx(made, setup, store)
    assert all(isinstance(texts, Mapping) for texts in found), found
    return {
        variant.id: (artifact, texts)
        for (variant, artifact), texts in zip(made, found, strict=True)
        if isinstance(texts, Mapping)
    }


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


@pytest.mark.parametrize("variant", [_case(variant) for variant in VARIANTS])
def test_every_device_gets_its_numbers(variant: Variant, compiled: Compiled) -> None:
    artifact, texts = compiled[variant.id]
    plan = artifact.plan
    source = np.random.default_rng(11)
    given = [
        [source.integers(-4, 5, b.shape).astype(numpy_dtype(b.dtype)) for b in plan.inputs]
        for _ in range(plan.device_count)
    ]
    # All-gather matmul counts signals, and a block that is ahead counts for one that is late: on
    # more than two devices JAX's kernel races, although the numbers are right here.
    is_raced = variant.name == "all_gather_matmul" and plan.device_count > 2
    races = Races()
    machine = Machine(Policy(seconds=600), observer=None if is_raced else races)
    found = PlanRun(artifact, machine, texts).run(given)
    expected = EXPECTED[variant.name](dict(variant.params), given)
    assert len(found) == len(expected) == dict(variant.params)["devices"]
    for (own,), right in zip(found, expected, strict=True):
        assert own.shape == right.shape
        np.testing.assert_array_equal(own.astype(np.float32), right.astype(np.float32))
    assert [str(each) for each in races.findings if not each.is_warning] == []
