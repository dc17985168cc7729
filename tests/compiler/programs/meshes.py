"""Kernels over several devices; `tests/emulator` executes JAX's own."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas.ops.gpu import all_gather_mgpu, reduce_scatter_mgpu


def all_gather(x: Any) -> Any:
    return all_gather_mgpu.all_gather(x, axis_name="x", num_blocks=8)


def reduce_scatter(x: Any) -> Any:
    return reduce_scatter_mgpu.reduce_scatter(x, axis_name="x", num_blocks=8)


def fetch(x: Any) -> Any:
    """Copy from the right neighbour by TMA, whose tensor map the host makes."""

    def body(x_ref: Any, o_ref: Any, memory: Any, barrier: Any) -> None:
        right = lax.rem(lax.axis_index("x") + 1, lax.axis_size("x"))
        plgpu.copy_gmem_to_smem(plgpu.remote_ref(x_ref, right), memory, barrier)
        plgpu.barrier_wait(barrier)
        plgpu.copy_smem_to_gmem(memory, o_ref)
        plgpu.wait_smem_to_gmem(0)

    scratch = [plgpu.SMEM(x.shape, x.dtype), plgpu.Barrier()]
    out_type = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return plgpu.kernel(body, out_type=out_type, scratch_types=scratch)(x)


def two_axes(x: Any) -> Any:
    def body(x_ref: Any, o_ref: Any, arrived: Any) -> None:
        pl.semaphore_signal(arrived, 1, device_id={"b": 1})
        o_ref[...] = x_ref[...]

    scratch = [plgpu.SemaphoreType.REGULAR]
    out_type = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return plgpu.kernel(body, out_type=out_type, scratch_types=scratch)(x)


_ONE = (("x", 4),)
CASES = {
    "all_gather": (all_gather, ["f16[256, 256]"], {}, _ONE),
    "reduce_scatter": (reduce_scatter, ["f16[1024, 256]"], {}, _ONE),
    "fetch": (fetch, ["f32[128]"], {}, _ONE),
    "two_axes": (two_axes, ["f32[128]"], {}, (("a", 2), ("b", 2))),
    "alone": (jnp.sin, ["f32[128]"], {}, _ONE),
    "alone_on_two": (jnp.sin, ["f32[128]"], {}, (("x", 2),)),
    "summed": (lambda x: lax.psum(x, "x"), ["f32[128]"], {}, _ONE),
    "without_a_mesh": (all_gather, ["f16[256, 256]"], {}),
}
