"""Multiplies by f32 numbers whose rows run along N, and `wgmma` needs K there."""

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu


def square(x):
    def body(x_gmem, out_gmem, a_smem, b_smem, loaded):
        plgpu.copy_gmem_to_smem(x_gmem, a_smem, loaded)
        plgpu.copy_gmem_to_smem(x_gmem, b_smem, loaded)
        plgpu.barrier_wait(loaded)

        def multiply(acc):
            plgpu.wgmma(acc, a_smem, b_smem)
            return acc[...]

        out_gmem[...] = pl.run_scoped(multiply, plgpu.ACC((64, 64), jnp.float32))

    tiled = (plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(128))
    memory = plgpu.SMEM(x.shape, x.dtype, transforms=tiled)
    loaded = plgpu.Barrier(num_arrivals=2)
    return plgpu.kernel(body, out_type=x, scratch_types=[memory, memory, loaded])(x)
