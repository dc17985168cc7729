"""A copy out of shared memory that a block leaves behind: the same at each level."""

from __future__ import annotations

import json
from typing import Any

import jax
import pytest

NEW = tuple(map(int, jax.__version__.split(".")[:2])) >= (0, 12)
KERNELS = """\
import jax
import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu

OLD = tuple(map(int, jax.__version__.split(".")[:2])) < (0, 11)
OUT, SCRATCH = ("out_shape", "scratch_shapes") if OLD else ("out_type", "scratch_types")


def copied(x, left, read_only):
    def body(x, o, smem):
        for half in range(2):
            smem[half] = x[half] + 3.0
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(smem.at[half], o.at[half])
        if left is not None:
            plgpu.wait_smem_to_gmem(left, wait_read_only=read_only)

    memory = [plgpu.SMEM((2, 128), jnp.float32)]
    shape = jax.ShapeDtypeStruct((2, 128), jnp.float32)
    return plgpu.kernel(body, **{OUT: shape, SCRATCH: memory}, grid=(1,), grid_names=("i",))(x)


def plus_three(x):
    return x + 3
"""
ENDS: dict[str, dict[str, Any]] = {
    "no_wait": {"left": None, "read_only": False},
    "one_left": {"left": 1, "read_only": False},
    "one_left_unread": {"left": 1, "read_only": True},
    "read": {"left": 0, "read_only": True},
    "complete": {"left": 0, "read_only": False},
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, checking: Any) -> dict[Any, Any]:
    folder = tmp_path_factory.mktemp("unfinished")
    (folder / "kernels.py").write_text(KERNELS)
    same = {
        "entry": "kernels.py:copied",
        "args": {"x": "f32[2, 128]"},
        "reference": "kernels.py:plus_three",
    }
    kernels = [{"name": name, **same, "static": static} for name, static in ENDS.items()]
    spec = {"schema": 1, "targets": ["h100-sxm"], "kernels": kernels}
    (folder / "spec.yaml").write_text(json.dumps(spec))
    ran = checking.check(folder, "spec.yaml", "--json", "--level", "all")
    return {
        (variant["name"], result["level"]): result
        for variant in ran.report["variants"]
        for result in variant["results"]
    }


LEVELS = ["interpreter", "artifact"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["no_wait", "one_left", "one_left_unread"])
def test_a_copy_that_may_still_read_is_an_error(name: str, level: str, results: Any) -> None:
    if level == "interpreter" and not NEW:
        pytest.skip("the interpreter of this JAX does not look for copies that are left")
    found = results[name, level]["findings"]
    assert {(each["rule"], each["severity"]) for each in found} == {("unfinished-copy", "error")}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["read", "complete"])
def test_a_copy_that_has_read_may_be_left(name: str, level: str, results: Any) -> None:
    result = results[name, level]
    assert (result["status"], result["findings"]) == ("passed", []), result
