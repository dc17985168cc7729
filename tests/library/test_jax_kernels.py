"""Every kernel that JAX has for Mosaic GPU, forward and backward, over its tunings.

`examples/jax_tuning.yaml` is held against the modules of the JAX that is installed. Some of its
variants are compiled here, all of them where `PALLASC_ALL_KERNELS` is set; `bench/jax_tuning.py`
has compiled all of them with each JAX version, and wrote down what came out.
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Callable, Iterator
from importlib import metadata, util
from pathlib import Path
from typing import Any

import pytest

from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import Options
from pallasc.specs.artifacts.plan import LaunchPlan
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml
from pallasc.specs.spec import Variant

ROOT = Path(__file__).parents[2]
PACKAGE = "jax.experimental.pallas.ops.gpu"
RESULTS = json.loads((ROOT / "bench" / "results" / "jax_tuning.json").read_text())["jax"]
VARIANTS = expand(load_yaml(ROOT / "examples" / "jax_tuning.yaml"))

MODULES = {
    "all_gather_mgpu", "attention_mgpu", "blackwell_matmul_mgpu", "blackwell_ragged_dot_mgpu",
    "collective_matmul_mgpu", "hopper_matmul_mgpu", "hopper_mixed_type_matmul_mgpu",
    "ragged_dot_mgpu", "reduce_scatter_mgpu", "transposed_ragged_dot_mgpu",
}  # fmt: skip
"""Those of JAX 0.10.2 and of 0.12 alike."""

NO_KERNELS = {
    "attention_mgpu:attention_reference": "plain JAX",
    "blackwell_ragged_dot_mgpu:do_matmul": "a part of the body of ragged_dot_kernel",
    "blackwell_ragged_dot_mgpu:ragged_dot_reference": "plain JAX",
    "blackwell_ragged_dot_mgpu:sample_group_sizes": "random numbers",
    "collective_matmul_mgpu:is_nvshmem_used": "reads the environment",
    "hopper_matmul_mgpu:get_num_sms": "a figure of the device",
    "hopper_matmul_mgpu:kernel": "the body of matmul",
    "hopper_mixed_type_matmul_mgpu:reference": "plain JAX",
    "transposed_ragged_dot_mgpu:ref_transposed_ragged_dot": "plain JAX",
}
"""What is public in the modules, takes no arrays to a kernel, and why; no `main` is named."""


def _modules() -> dict[str, ast.Module]:
    """Return what stands in each module of the installed JAX, which is not imported."""
    found = util.find_spec("jax")
    assert found is not None
    assert found.origin is not None
    files = Path(found.origin).parents[1].joinpath(*PACKAGE.split(".")).glob("*_mgpu.py")
    return {file.stem: ast.parse(file.read_text("utf-8")) for file in sorted(files)}


def _public(name: str, module: ast.Module) -> Iterator[str]:
    """Yield the functions of a module, and the rules of those that it differentiates itself."""
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            if node.name != "main":
                yield f"{name}:{node.name}"
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            called = node.value.func
            if isinstance(called, ast.Attribute) and called.attr == "defvjp":
                assert isinstance(called.value, ast.Name)
                yield f"{name}:{called.value.id}.fwd"
                yield f"{name}:{called.value.id}.bwd"


def _entries() -> set[str]:
    return {variant.entry.removeprefix(f"{PACKAGE}.") for variant in VARIANTS}


def test_the_modules_are_those_that_are_known() -> None:
    assert set(_modules()) == MODULES


def test_every_kernel_of_every_module_is_built_forward_and_backward() -> None:
    found = {entry for name, module in _modules().items() for entry in _public(name, module)}
    assert _entries() == found - set(NO_KERNELS)
    assert set(NO_KERNELS) < found
    assert {"attention_mgpu:attention.fwd", "attention_mgpu:attention.bwd"} < _entries()


@pytest.mark.parametrize("version", sorted(RESULTS))
def test_all_of_them_were_built(version: str) -> None:
    rows = RESULTS[version]["variants"]
    assert [row["id"] for row in rows] == [variant.id for variant in VARIANTS]
    assert all(row["launches"] and row["cubin_bytes"] for row in rows)


def test_they_were_built_with_the_jax_that_is_installed() -> None:
    minor = metadata.version("jax").split(".")[:2]
    # Nothing is recorded of 0.11, which lies between the two.
    assert minor == ["0", "11"] or minor in [version.split(".")[:2] for version in RESULTS]


FORWARD = "attention_forward[head=64,block_kv=64]@h100-sxm"
BACKWARD = "attention_backward[head=64,kv_heads=4,wgs=1,block=64]@h100-sxm"
RAGGED = "ragged_dot_backward_rhs[block_m=64,block_n=64,block_k=64]@h100-sxm"
BLACKWELL = "blackwell_ragged_dot[steps=4,width=8]@b200"
FEW = {FORWARD, BACKWARD, RAGGED}
"""The cheapest that show most."""

if os.environ.get("PALLASC_ALL_KERNELS") or metadata.version("jax") >= "0.12":
    FEW |= {BLACKWELL}  # several times as dear with JAX 0.10


def _chosen() -> list[Variant]:
    if os.environ.get("PALLASC_ALL_KERNELS"):
        return VARIANTS
    return [variant for variant in VARIANTS if variant.id in FEW]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Compile some variants, or all; return the results by id."""
    store = Store(tmp_path_factory.mktemp("store"))
    report = build(_chosen(), store=store, options=Options(jobs=1))
    return {result.variant.id: result for result in report.results}


def test_they_compile(built: dict[str, Any]) -> None:
    assert set(built) >= FEW
    wrong = {name: str(result.error) for name, result in built.items() if result.error}
    assert wrong == {}


def test_artifacts_are_those_that_are_recorded(
    built: dict[str, Any], check_digests: Callable[[Any], None]
) -> None:
    check_digests(built.values())


def _plan(built: dict[str, Any], name: str) -> LaunchPlan:
    plan: LaunchPlan = built[name].artifact.plan
    return plan


def _ptx(built: dict[str, Any], name: str) -> str:
    artifact = built[name].artifact
    names = [kernel.name for kernel in artifact.kernels if kernel.ptx]
    return "".join(artifact.ptx(kernel) for kernel in names)


def test_attention_backward_launches_a_kernel_for_each_gradient(built: dict[str, Any]) -> None:
    plan = _plan(built, BACKWARD)
    own = [launch for launch in plan.launches if launch.origin == "mosaic"]
    assert len(own) == 2
    assert [binding.path for binding in plan.inputs] == [
        "res.0", "res.1", "res.2", "res.3", "res.4", "do",
    ]  # fmt: skip
    assert [binding.shape for binding in plan.outputs] == [
        (1, 4096, 16, 64), (1, 4096, 4, 64), (1, 4096, 4, 64),
    ]  # fmt: skip


def test_a_kernel_that_asks_for_the_device_gets_the_models_blocks(built: dict[str, Any]) -> None:
    for name, count in ((RAGGED, 132), (BLACKWELL, 148)):
        if name not in FEW:
            continue
        plan = _plan(built, name)
        (launch,) = [launch for launch in plan.launches if launch.origin == "mosaic"]
        assert launch.grid[0] * launch.grid[1] * launch.grid[2] == count


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pair
        for pair in (
            (BACKWARD, "wgmma.mma_async"),
            (RAGGED, "wgmma.mma_async"),
            (BLACKWELL, "tcgen05.mma.cta_group::2"),
        )
        if pair[0] in FEW
    ],
)
def test_the_code_has_what_the_kernel_is_for(built: dict[str, Any], name: str, words: str) -> None:
    assert words in _ptx(built, name)
