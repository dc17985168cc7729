"""Call the kernels of an installed library on a GPU that executes their PTX, without JAX.

Usage: execute.py PACKAGE KERNEL.... Each kernel gets random numbers from numpy through the runtime;
the stand-in driver executes the PTX that the wheel brings. Standard output gets a JSON object:
kernel -> the variants that ran, how many launches each took, and the largest error of each beside
the same computed by numpy.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import emulated
import numpy as np
import standin

from pallasc.runtime.adapters.numpy_arrays import numpy_dtype


def f32(array: Any) -> Any:
    return np.asarray(array).astype(np.float32)


def softmax(x: Any) -> Any:
    powers = np.exp(f32(x) - f32(x).max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


REFERENCES = {
    "add": lambda x, y: f32(x) + f32(y),
    "softmax": softmax,
    "row_sum": lambda x: f32(x).sum(-1),
    "hopper_matmul": lambda a, b: f32(a) @ f32(b),
    "blackwell_matmul": lambda a, b: f32(a) @ f32(b),
}


def call(kernel: Any, variant: Any, gpu: emulated.Gpu) -> dict[str, Any]:
    """Call a kernel with arrays that a variant takes; tell what became of it."""
    source = np.random.default_rng(3)
    inputs = variant.artifact.plan.inputs
    arrays = {b.path: source.uniform(-1, 1, b.shape).astype(numpy_dtype(b.dtype)) for b in inputs}
    gpu.know(variant.artifact)
    before = gpu.launched
    found = kernel(**arrays)
    gpu.driver.check()
    expected = REFERENCES[variant.name](*arrays.values())
    error = float(np.abs(f32(found) - expected).max())
    return {"id": variant.id, "launches": gpu.launched - before, "error": error}


def main(package: str, names: list[str]) -> None:
    try:
        import jax  # noqa: F401
    except ModuleNotFoundError:
        pass
    else:
        raise SystemExit("JAX can be imported here")
    gpu = emulated.install(standin.load())
    kernels = importlib.import_module(package).kernels()
    found = {name: [call(kernels[name], v, gpu) for v in kernels[name].variants] for name in names}
    print(json.dumps(found))


main(sys.argv[1], sys.argv[2:])
