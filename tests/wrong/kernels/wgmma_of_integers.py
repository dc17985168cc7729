"""A product of 32-bit integers, which `wgmma` has not."""

import jax
import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu


def square(x):
    def body(x_gmem, out_gmem, x_smem, accumulator, loaded):
        plgpu.copy_gmem_to_smem(x_gmem, x_smem, loaded)
        plgpu.barrier_wait(loaded)
        plgpu.wgmma(accumulator, x_smem, x_smem)
        out_gmem[...] = accumulator[...]

    memory = plgpu.SMEM(x.shape, x.dtype)
    accumulator = plgpu.ACC(x.shape, jnp.int32)
    out_type = jax.ShapeDtypeStruct(x.shape, jnp.int32)
    return plgpu.kernel(
        body, out_type=out_type, scratch_types=[memory, accumulator, plgpu.Barrier()]
    )(x)
