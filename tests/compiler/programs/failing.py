"""Kernels that do not compile; `# HERE name` marks the line to be shown."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallasc.specs.library.elementwise import add

kernel = functools.partial(plgpu.kernel, out_type=jax.ShapeDtypeStruct((128, 128), jnp.float32))


def library_call(x: Any) -> Any:
    return add(x, x, block_size=100)  # HERE library_call


def jax_kernel_call(x: Any) -> Any:
    from jax.experimental.pallas.ops.gpu import hopper_matmul_mgpu as matmul

    config = matmul.TuningConfig(tile_m=128, tile_n=128, tile_k=64, max_concurrent_steps=2)
    return matmul.matmul(x, jnp.zeros((3, 4), x.dtype), None, config)  # HERE jax_kernel_call


def fine(x: Any) -> Any:
    """Compile after all that failed."""

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + 1

    return kernel(body)(x)


_X = "f32[128, 128]"
CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    function.__name__: (function, {"x": _X}, {})
    for function in (library_call, jax_kernel_call, fine)
}
CASES["library_alone"] = (add, {"x": _X, "y": _X}, {"block_size": 100})
