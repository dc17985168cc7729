"""Kernels whose result depends on which block or warpgroup stores last; and some that agree."""

from __future__ import annotations

import json
from typing import Any

import pytest

KERNELS = """\
import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

OLD = tuple(map(int, jax.__version__.split(".")[:2])) < (0, 11)
OUT, SCRATCH = ("out_shape", "scratch_shapes") if OLD else ("out_type", "scratch_types")


def run(body, x, n=128, grid=4, memory=(), **options):
    shape = jax.ShapeDtypeStruct((n,), jnp.float32)
    options = {OUT: shape, SCRATCH: list(memory), **options}
    return plgpu.kernel(body, grid=(grid,), grid_names=("i",), **options)(x)


def three_more(x):
    return x + 3


def last_block(x):
    def body(x, o):
        o[...] = x[...] + lax.axis_index("i").astype(jnp.float32)  # each block its own

    return run(body, x)


def overlapping(x):
    def body(x, o):
        i = lax.axis_index("i")
        part = pl.ds(i * 128, 256)
        o[part] = x[part] * (i + 1).astype(jnp.float32)  # half of it is the next block's

    return run(body, x, n=640)


def warpgroups(x):
    def body(x, o):
        o[...] = x[...] + lax.axis_index("w").astype(jnp.float32)  # each warpgroup its own

    return run(body, x, grid=1, num_threads=2, thread_name="w")


def copied(x):
    def body(x, o, smem):
        smem[...] = x[...] + lax.axis_index("i").astype(jnp.float32)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(smem, o)  # each block its own
        plgpu.wait_smem_to_gmem(0)

    return run(body, x, memory=[plgpu.SMEM((128,), jnp.float32)])


def agreeing(x):
    def body(x, o):
        o[...] = x[...] + 3.0

    return run(body, x)


def agreeing_copies(x):
    def body(x, o, smem):
        smem[...] = x[...] + 3.0
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(smem, o)
        plgpu.wait_smem_to_gmem(0)

    return run(body, x, memory=[plgpu.SMEM((128,), jnp.float32)])


def counting(x):
    def body(x, o, smem):
        def step(k, _):
            smem[0] = x[k]  # the warps of the warpgroup may be in different iterations

        lax.fori_loop(0, 40, step, None)
        o[...] = x[...] + 3.0

    return run(body, x, grid=1, memory=[plgpu.SMEM((8,), jnp.float32)])
"""
RACING = {
    "last_block": "each block its own",
    "overlapping": "half of it is the next block's",
    "warpgroups": "each warpgroup its own",
    "copied": "each block its own",
}
AGREEING = ("agreeing", "agreeing_copies", "counting")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, checking: Any) -> Any:
    folder = tmp_path_factory.mktemp("order")
    (folder / "kernels.py").write_text(KERNELS)
    kernels = [{"name": name} for name in (*RACING, *AGREEING)]
    spec = json.loads(checking.spec_of(*kernels))
    for kernel in spec["kernels"]:
        kernel["reference"] = "kernels.py:three_more"
        if kernel["name"] == "overlapping":
            kernel["args"] = ["f32[640]"]
        if kernel["name"] in ("overlapping", "warpgroups"):
            del kernel["reference"]  # as in a bundle
    (folder / "spec.yaml").write_text(json.dumps(spec))
    return checking.check(folder, "spec.yaml", "--json", "--level", "artifact").results


@pytest.mark.parametrize("name", RACING)
def test_unordered_stores_of_different_values_are_a_race(name: str, results: Any) -> None:
    result = results[name]
    assert result["status"] == "found", result
    (race,) = [each for each in result["findings"] if each["rule"] == "race"]
    assert "writes other values to the same bytes" in race["message"]
    here = race["location"]["line"]
    lines = KERNELS.splitlines()
    begin = lines.index(f"def {name}(x):")
    assert RACING[name] in lines[here - 1]
    assert here > begin
    assert here in {each["location"]["line"] for each in race["places"]}


@pytest.mark.parametrize("name", AGREEING)
def test_unordered_stores_of_one_value_are_none(name: str, results: Any) -> None:
    assert (results[name]["status"], results[name]["reason"]) == ("passed", "")
