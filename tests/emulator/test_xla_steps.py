"""The kernels that XLA makes beside Mosaic's give right numbers when their PTX is executed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import steps_of_xla
from compiled_plans import Compiled, compiled
from steps_of_xla import ARGUMENTS

from pallasc.cache.store import Store
from pallasc.compiler.arrays import array_of, random_bytes
from pallasc.compiler.workers.pool import without_ptx
from pallasc.emulator.machine.machine import Machine
from pallasc.emulator.program import PlanRun
from pallasc.specs.arrays import ArraySpec
from pallasc.specs.loading.decorator import spec_of
from pallasc.specs.loading.matrix import expand


@pytest.fixture(scope="module")
def plans(store: Store) -> Compiled:
    specs = [
        spec_of(getattr(steps_of_xla, name), args=list(args), static={}, target="sm_90a")
        for name, args in ARGUMENTS.items()
    ]
    variants = expand(specs)
    found = compiled(variants, store)
    return {variant.name: found[variant.id] for variant in variants}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_numbers_are_those_of_jax(name: str, plans: Compiled) -> None:
    artifact, texts = plans[name]
    assert set(texts) == without_ptx(artifact).keys()
    inputs = [inputs_of(b) for b in artifact.plan.inputs]
    (results,) = PlanRun(artifact, Machine(), texts).run([inputs])
    with jax.enable_x64(any(b.dtype == "f64" for b in artifact.plan.inputs)):
        given = [jnp.asarray(each) for each in inputs]
        expected = jax.tree.leaves(getattr(steps_of_xla, name)(*given))
    for found, right in zip(results, expected, strict=True):
        assert found.dtype == right.dtype
        wide = np.complex128 if found.dtype.kind == "c" else np.float64
        near = {"rtol": 2e-3 if name == "product" else 3e-6, "atol": 1e-5}
        np.testing.assert_allclose(found.astype(wide), np.asarray(right).astype(wide), **near)


def inputs_of(binding: Any) -> Any:
    dtype, shape = binding.dtype, binding.shape
    size = ArraySpec(dtype, shape).nbytes
    data = random_bytes(dtype, size, seed=3, name=binding.path)
    return array_of(np.frombuffer(data, np.uint8), dtype, shape)
