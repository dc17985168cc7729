"""`examples/jax_tuning.yaml` has every kernel that JAX has for Mosaic GPU, forward and backward.

`test_digests` compiles some of them.
"""

import ast
from collections.abc import Iterator
from importlib import util
from pathlib import Path

from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml

ROOT = Path(__file__).parents[2]
PACKAGE = "jax.experimental.pallas.ops.gpu"
VARIANTS = expand(load_yaml(ROOT / "examples" / "jax_tuning.yaml"))

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
"""Public functions that take no arrays to a kernel, and why; no `main` is named."""


def _public() -> Iterator[str]:
    """Yield the functions of JAX's modules, and the rules of those with their own derivative."""
    found = util.find_spec("jax")
    assert found is not None
    assert found.origin is not None
    folder = Path(found.origin).parents[1].joinpath(*PACKAGE.split("."))
    for file in sorted(folder.glob("*_mgpu.py")):
        for node in ast.parse(file.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                if node.name != "main":
                    yield f"{file.stem}:{node.name}"
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                called = node.value.func
                if isinstance(called, ast.Attribute) and called.attr == "defvjp":
                    name = f"{file.stem}:{ast.unparse(called.value)}"
                    yield from (f"{name}.fwd", f"{name}.bwd")


def test_every_kernel_of_every_module_is_built_forward_and_backward() -> None:
    entries = {variant.entry.removeprefix(f"{PACKAGE}.") for variant in VARIANTS}
    found = set(_public())
    assert entries == found - set(NO_KERNELS)
    assert set(NO_KERNELS) < found
    assert {"attention_mgpu:attention.fwd", "attention_mgpu:attention.bwd"} < entries
