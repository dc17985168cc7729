"""The kernels that XLA makes beside Mosaic's give right numbers when their PTX is executed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import steps_of_xla
from steps_of_xla import ARGUMENTS

from pallasc.cache.store import Store
from pallasc.compiler.arrays import array_of, random_bytes
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import Options
from pallasc.compiler.toolchain.setup import prepare
from pallasc.compiler.workers.pool import find_ptx, without_ptx
from pallasc.emulator.machine.machine import Machine
from pallasc.emulator.program import PlanRun
from pallasc.specs.arrays import ArraySpec
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.loading.decorator import spec_of
from pallasc.specs.loading.matrix import expand


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Artifact, Mapping[str, str]]]:
    """Return what each function is compiled to, with the PTX of XLA's kernels."""
    specs = [
        spec_of(getattr(steps_of_xla, name), args=list(args), static={}, target="sm_90a")
        for name, args in ARGUMENTS.items()
    ]
    store = Store(tmp_path_factory.mktemp("store"))
    results = build(expand(specs), store=store, options=Options(jobs=1)).results
    compiled = [(r.variant, r.artifact) for r in results if r.artifact is not None]
    assert len(compiled) == len(ARGUMENTS), [str(r.error) for r in results if r.error]
    with prepare() as setup:
        found = find_ptx(compiled, setup, store)
    return {
        variant.name: (artifact, texts)
        for (variant, artifact), texts in zip(compiled, found, strict=True)
        if isinstance(texts, Mapping)
    }


@pytest.mark.parametrize("name", ARGUMENTS)
def test_numbers_are_those_of_jax(name: str, made: Any) -> None:
    import jax
    import jax.numpy as jnp

    artifact, texts = made[name]
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
