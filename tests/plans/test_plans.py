"""Plans of whole functions give the numbers of plain JAX when they are executed."""

from typing import Any

import compiled_plans
import numpy as np
import pytest
import whole_functions
from compiled_plans import Compiled
from whole_functions import CASES

from pallasc.cache.store import Store
from pallasc.compiler.arrays import array_of, random_bytes
from pallasc.emulator.machine.machine import Machine
from pallasc.emulator.program import PlanRun
from pallasc.specs.arrays import ArraySpec
from pallasc.specs.loading.decorator import spec_of
from pallasc.specs.loading.matrix import expand

NAMES = [function.__name__ for function in CASES]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """Return the artifact of each function, and the PTX of XLA's kernels."""
    specs = [
        spec_of(function, args=args, static={}, target="h100-sxm")
        for function, args in CASES.items()
    ]
    made = compiled_plans.compiled(expand(specs), Store(tmp_path_factory.mktemp("store")))
    return {name.partition("@")[0]: plan for name, plan in made.items()}


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_gives_the_numbers_of_plain_jax(name: str, compiled: Compiled) -> None:
    import jax
    import jax.numpy as jnp

    artifact, ptx = compiled[name]
    inputs = [_random(binding) for binding in artifact.plan.inputs]
    (results,) = PlanRun(artifact, Machine(), ptx).run([inputs])
    function = getattr(whole_functions, name)
    numbered = iter(map(jnp.asarray, inputs))
    given = jax.tree.map(
        lambda text: None if text is None else next(numbered), CASES[function],
        is_leaf=lambda leaf: leaf is None,
    )  # fmt: skip
    with whole_functions.plain():
        expected = jax.tree.leaves(function(*given))
    assert len(results) == len(expected)
    for found, right in zip(results, expected, strict=True):
        assert (found.dtype, found.shape) == (right.dtype, right.shape)
        near = 3e-2 if name == "product" else 1e-5  # XLA multiplies in TF32
        wanted = np.asarray(right).astype(float)
        np.testing.assert_allclose(found.astype(float), wanted, rtol=near, atol=near)


def _random(binding: Any) -> Any:
    size = ArraySpec(binding.dtype, binding.shape).nbytes
    data = random_bytes(binding.dtype, size, seed=3, name=binding.path)
    return array_of(np.frombuffer(data, np.uint8), binding.dtype, binding.shape)


def test_a_counted_loop_is_its_body_once_for_each_round(compiled: Compiled) -> None:
    for name, rounds in (("counted", 5), ("scanned", 8), ("nested_loops", 12)):
        origins = [launch.origin for launch in compiled[name][0].plan.launches]
        assert origins.count("mosaic") == rounds


def test_results_that_take_the_place_of_an_argument_are_copied_first(compiled: Compiled) -> None:
    plan = compiled["added"][0].plan
    copy, *launches = plan.steps
    assert type(copy).__name__ == "Copy"
    assert len(launches) == 2
    assert len(plan.buffers) == 4


def test_the_functions_have_buffers_and_kernels_of_each_kind(compiled: Compiled) -> None:
    plans = [artifact.plan for artifact, _ in compiled.values()]
    roles = {buffer.role for plan in plans for buffer in plan.buffers}
    assert roles == {"input", "output", "constant", "temporary"}
    assert {launch.origin for plan in plans for launch in plan.launches} == {"mosaic", "xla"}
