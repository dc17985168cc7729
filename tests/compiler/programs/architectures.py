"""Kernels that only some architectures can run; `# HERE name` marks the line to be shown."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu

kernel = functools.partial(plgpu.kernel, out_type=jax.ShapeDtypeStruct((128, 128), jnp.float32))


def registers(x: Any) -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        plgpu.set_max_registers(40, action="decrease")  # HERE registers
        o_ref[...] = x_ref[...]

    return kernel(body)(x)


def cluster(x: Any) -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * jax.lax.axis_index("c").astype(jnp.float32)

    return kernel(body, cluster=(2,), cluster_names=("c",))(x)  # HERE cluster


def tma(x: Any) -> Any:
    def body(x_ref: Any, o_ref: Any, tile: Any, barrier: Any) -> None:
        plgpu.copy_gmem_to_smem(x_ref, tile, barrier)  # HERE tma
        plgpu.barrier_wait(barrier)
        o_ref[...] = tile[...]

    scratch = [plgpu.SMEM((128, 128), jnp.float32), plgpu.Barrier()]
    return kernel(body, scratch_types=scratch)(x)


CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    function.__name__: (function, {"x": "f32[128, 128]"}, {})
    for function in (registers, cluster, tma)
}
