"""The description of a GPU that is not there."""

import os
import sys
from typing import Any

import pytest
from commands import output_of
from msgspec.structs import replace

from pallasc.compiler.lowering.jax_versions import target_config
from pallasc.specs.gpus import DEFAULT_MODELS, resolve_target


@pytest.mark.parametrize("arch", DEFAULT_MODELS)
def test_the_description_has_the_figures_of_the_model(arch: str) -> None:
    target = resolve_target(arch)
    lines = {line.strip() for line in target_config(target).splitlines()}
    assert f"core_count: {target.sm_count}" in lines
    assert f"shared_memory_per_block_optin: {target.smem_optin_bytes}" in lines
    assert f"shared_memory_per_core: {target.smem_per_sm_bytes}" in lines
    assert f'device_description_str: "{target.description}"' in lines
    extension = " feature_extension: ACCELERATED_FEATURES" if arch.endswith("a") else ""
    capability = f"major: {target.major} minor: {target.minor}{extension}"
    assert f"cuda_compute_capability {{ {capability} }}" in lines
    assert target_config(replace(target, name="mine")) == target_config(target)


@pytest.fixture(scope="module")
def devices(build: Any) -> Any:
    return build("devices", "h100-sxm,h100-pcie")


@pytest.mark.parametrize("model", ["h100-sxm", "h100-pcie"])
def test_a_kernel_that_asks_for_its_device_is_told_of_the_target(devices: Any, model: str) -> None:
    (launch,) = devices[f"blocks@{model}"].plan.launches
    assert launch.grid == (resolve_target(model).sm_count, 1, 1)


@pytest.mark.parametrize(("name", "count"), [("answers", 1), ("answers_of_four", 4)])
def test_jax_answers_as_where_the_kernel_runs(devices: Any, name: str, count: int) -> None:
    outputs = devices[f"{name}@h100-sxm"].plan.outputs
    assert {binding.path.removeprefix("out.") for binding in outputs} == {
        "backend: gpu",
        f"count: {count}",
        f"local: {count}",
        f"gpus: {count}",
        "platform: gpu",
        "capability: 9.0",
        "other platform: cpu",
    }


def test_a_process_without_the_plugin_is_told_what_to_do() -> None:
    program = (
        "import sys\n"
        "sys.modules.update({'jax_plugins.xla_cuda12': None, 'jax_plugins.xla_cuda13': None})\n"
        "from pallasc.compiler.lowering.jax_versions import devices_for\n"
        "from pallasc.specs.gpus import resolve_target\n"
        "from pallasc.errors import ToolError\n"
        "try:\n    devices_for(resolve_target('sm_90a'))\n"
        "except ToolError as error:\n    print(error)\n"
    )
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    said = output_of([sys.executable, "-W", "ignore", "-c", program], env=environment)
    assert "JAX cannot compile for a GPU in this process:" in said
    assert "Call pallasc.compile before JAX has looked for devices" in said
