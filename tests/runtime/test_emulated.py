"""Every kernel of the library, from its spec to numbers: built, bundled, chosen, launched, run.

The stand-in driver gets what a GPU would, and executes the PTX of the cubin that it is given.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import emulated
import made
import numpy as np
import pytest
import references
import standin as control
from bundle_files import build_with_ptx

import pallasc
from pallasc.cache.store import Store
from pallasc.runtime.adapters.numpy_arrays import numpy_dtype
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml

HERE = Path(__file__).parent
VARIANTS = expand(load_yaml(HERE / "emulated.yaml"))
LIBRARY = sorted((HERE.parents[1] / "specs" / "library").glob("*.yaml"))

Arrays = list[Any]


def f32(array: Any) -> Any:
    return np.asarray(array).astype(np.float32)


def ragged_dot(lhs: Any, rhs: Any, group_sizes: Any) -> Any:
    ends = np.cumsum(group_sizes)
    groups = np.searchsorted(ends, np.arange(len(lhs)), side="right")
    return np.stack([f32(row) @ f32(rhs[group]) for row, group in zip(lhs, groups, strict=True)])


def grouped_attention(q: Any, k: Any, v: Any) -> Any:
    heads = q.shape[2] // k.shape[2]
    return references.attention(q, *(np.repeat(array, heads, axis=2) for array in (k, v)))


MATMULS = ("hopper_matmul", "blackwell_matmul", "jax_hopper_matmul", "jax_blackwell_matmul",
           "jax_hopper_mixed_type_matmul")  # fmt: skip
REFERENCES: dict[str, Callable[..., Any]] = {
    **{name: getattr(references, name) for name in ("add", "rms_norm", "softmax", "row_sum")},
    **dict.fromkeys(MATMULS, lambda a, b, *_: f32(a) @ f32(b)),
    "fused_matmul": references.matmul_bias_relu,
    "dequant_matmul": references.dequant_matmul,
    "jax_attention": grouped_attention,
    "jax_attention_with_pipeline_emitter": grouped_attention,
    "jax_ragged_dot": ragged_dot,
}
TOLERANCES = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}
IDS = [variant.id for variant in VARIANTS]


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory, warm_store: Store) -> Path:
    return build_with_ptx(tmp_path_factory.mktemp("emulated"), HERE / "emulated.yaml", warm_store)


@pytest.fixture
def gpu(runtime: control.Standin, framework: made.Framework) -> emulated.Gpu:
    """Give a GPU that executes."""
    runtime.configure(check_pointers=1)
    return emulated.install(runtime)


def arrays_of(artifact: Any) -> Arrays:
    """Return random arrays for a kernel; group sizes add up to the rows."""
    source = np.random.default_rng(5)
    found = []
    for binding in artifact.plan.inputs:
        dtype = numpy_dtype(binding.dtype)
        if binding.path == "group_sizes":
            found.append(np.array([96, 160], dtype))
        elif dtype.kind == "i":
            found.append(source.integers(-8, 8, binding.shape).astype(dtype))
        else:
            found.append(source.uniform(-1, 1, binding.shape).astype(dtype))
    return found


def check(found: Any, expected: Any) -> None:
    """Compare a result with its reference."""
    tolerance = TOLERANCES[str(found.dtype)]
    np.testing.assert_allclose(f32(found), f32(expected), rtol=tolerance, atol=tolerance)


def test_every_kernel_of_the_library_is_here() -> None:
    names = {spec.name for file in LIBRARY for spec in load_yaml(file)}
    assert {variant.name for variant in VARIANTS} == names == REFERENCES.keys()


@pytest.mark.parametrize("variant", VARIANTS, ids=IDS)
def test_a_call_of_a_bundled_kernel_gives_the_right_numbers(
    variant: Any, bundle: Path, gpu: emulated.Gpu, framework: made.Framework
) -> None:
    gpu.driver.devices(f"{variant.target.major}.{variant.target.minor}")
    kernel = pallasc.open_bundle(bundle)[variant.name]
    (artifact,) = (
        found.artifact for found in kernel.variants if found.params == dict(variant.params)
    )
    gpu.know(artifact)
    arrays = arrays_of(artifact)
    expected = REFERENCES[variant.name](*arrays)
    launches = len(artifact.plan.launches)
    named = {b.path: a for b, a in zip(artifact.plan.inputs, arrays, strict=True)}
    check(kernel(**named), expected)
    gpu.driver.check()
    assert gpu.launched == launches
    if variant.name not in ("add", "hopper_matmul"):
        return
    # Tensors lie elsewhere than the copies of numpy's arrays did.
    (result,) = artifact.plan.outputs
    out = framework.tensor(f"{result.dtype}{list(result.shape)}")
    tensors = {
        b.path: framework.tensor(f"{b.dtype}{list(b.shape)}", values=named[b.path])
        for b in artifact.plan.inputs
    }
    assert kernel.into(**tensors, out=out) is out
    gpu.driver.check()
    check(out.numpy(), expected)
    assert gpu.launched == 2 * launches
