"""Launch the kernels of an installed library on the stand-in, where there is no JAX.

Usage: launch.py PACKAGE. Each kernel is launched with 128 rows of numbers through the library's own
function, and numpy is the device. Standard output gets a JSON object: kernel -> what was launched,
and whether it got the arrays that it was to get and gave what the device wrote.
"""

import importlib
import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import standin
from emulate import emulate

from pallasc.runtime.adapters.numpy_arrays import numpy_dtype


def _gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def _rms(rows: Any, weight: Any) -> Any:
    return rows / np.sqrt(np.mean(rows * rows, axis=-1, keepdims=True) + 1e-5) * weight


REFERENCES = {
    "bias_gelu": lambda x, bias: [_gelu(x + bias)],
    "add_rms_norm": lambda x, residual, weight: [x + residual, _rms(x + residual, weight)],
    "linear_gelu": lambda x, weight, bias: [_gelu(x @ weight + bias)],
    "rms_norm": lambda x, weight: [_rms(x, weight)],
}


def _inputs(variant: Any) -> list[Any]:
    generator = np.random.default_rng(7)
    return [
        generator.integers(-4, 5, binding.shape).astype(numpy_dtype(binding.dtype))
        for binding in variant.artifact.plan.inputs
    ]


def _leaves(result: Any) -> Sequence[Any]:
    return result if isinstance(result, list | tuple) else [result]


def launch(library: Any, variant: Any, driver: Any) -> dict[str, Any]:
    """Launch a variant through the library; tell what became of it."""
    inputs = _inputs(variant)
    exact = [array.astype(np.float32) for array in inputs]
    outputs = variant.artifact.plan.outputs
    wanted = [
        array.astype(numpy_dtype(binding.dtype))
        for array, binding in zip(REFERENCES[variant.name](*exact), outputs, strict=True)
    ]
    arrived = []

    def device(*arrays: Any) -> list[Any]:
        pairs = zip(arrays, inputs, strict=True)
        arrived.append(all(np.array_equal(a, b) for a, b in pairs))
        return wanted

    driver.clear_log()
    driver.kernel("*")(emulate(variant.artifact, device))
    got = _leaves(getattr(library, variant.name)(*inputs))
    driver.check()
    right = all(np.array_equal(a, b) for a, b in zip(got, wanted, strict=True))
    launches = len(driver.launches)
    return {"id": variant.id, "arrived": arrived, "right": right, "launches": launches}


def main(package: str) -> None:
    try:
        import jax  # noqa: F401
    except ModuleNotFoundError:
        pass
    else:
        raise SystemExit("JAX can be imported here")
    driver = standin.load()
    library = importlib.import_module(package)
    arch = sys.argv[2]
    found = {}
    for name, kernel in library.kernels().items():
        (variant,) = (
            variant
            for variant in kernel.variants
            if variant.arch == arch and variant.params["rows"] == 128
        )
        found[name] = launch(library, variant, driver)
    print(json.dumps(found))


main(sys.argv[1])
