"""Every kernel of the library, from its spec to numbers: built, bundled, chosen, launched, run.

The stand-in driver gets what a GPU would, and executes the PTX of the cubin that it is given.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import emulated
import made
import numpy as np
import pytest
import standin as control

import pallasc
from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import Options
from pallasc.runtime.adapters.numpy_arrays import numpy_dtype
from pallasc.specs.bundle.manifest import Item
from pallasc.specs.bundle.writer import build_bundle
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml

HERE = Path(__file__).parent
VARIANTS = expand(load_yaml(HERE / "emulated.yaml"))
LIBRARY = sorted((HERE.parents[1] / "specs" / "library").glob("*.yaml"))

Arrays = list[Any]


def f32(array: Any) -> Any:
    return np.asarray(array).astype(np.float32)


def product(a: Any, b: Any, *_: Any) -> Any:
    return f32(a) @ f32(b)


def softmax(x: Any) -> Any:
    powers = np.exp(f32(x) - f32(x).max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def rms_norm(x: Any, weight: Any) -> Any:
    return f32(x) / np.sqrt((f32(x) ** 2).mean(-1, keepdims=True) + 1e-6) * f32(weight)


def attention(q: Any, k: Any, v: Any) -> Any:
    heads = q.shape[2] // k.shape[2]
    k, v = (np.repeat(f32(array), heads, axis=2) for array in (k, v))
    return np.einsum("bhqk,bkhc->bqhc", softmax(np.einsum("bqhc,bkhc->bhqk", f32(q), k)), v)


def ragged_dot(lhs: Any, rhs: Any, group_sizes: Any) -> Any:
    ends = np.cumsum(group_sizes)
    groups = np.searchsorted(ends, np.arange(len(lhs)), side="right")
    return np.stack([f32(row) @ f32(rhs[group]) for row, group in zip(lhs, groups, strict=True)])


REFERENCES: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: f32(x) + f32(y),
    "rms_norm": rms_norm,
    "softmax": softmax,
    "row_sum": lambda x: f32(x).sum(-1),
    "hopper_matmul": product,
    "blackwell_matmul": product,
    "fused_matmul": lambda a, b, bias: np.maximum(product(a, b) + bias, 0),
    "dequant_matmul": lambda x, weights, scales: f32(x) @ (f32(weights) * scales),
    "jax_hopper_matmul": product,
    "jax_attention": attention,
    "jax_attention_with_pipeline_emitter": attention,
    "jax_ragged_dot": ragged_dot,
    "jax_hopper_mixed_type_matmul": product,
    "jax_blackwell_matmul": product,
}
TOLERANCES = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}
IDS = [variant.id for variant in VARIANTS]


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory, warm_store: Store) -> Path:
    """Build everything, and write it into a bundle that keeps the PTX."""
    folder = tmp_path_factory.mktemp("emulated")
    shutil.copytree(warm_store.root, folder / "store")
    report = build(VARIANTS, store=Store(folder / "store"), options=Options(jobs=1))
    assert report.exit_code == 0, [str(result.error) for result in report.results if result.error]
    items = [Item(r.variant.name, dict(r.variant.params), r.artifact) for r in report.results]
    path = folder / "library.pallasc"
    path.write_bytes(build_bundle(items, keep_ptx=True))
    return path


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
    np.testing.assert_allclose(f32(found), expected, rtol=tolerance, atol=tolerance)


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
