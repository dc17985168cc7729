"""Multiplies from shared memory without tiles and swizzle."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu


def square(x):
    def body(x_gmem, out_gmem, x_smem, loaded):
        plgpu.copy_gmem_to_smem(x_gmem, x_smem, loaded)
        plgpu.barrier_wait(loaded)

        def multiply(acc):
            plgpu.wgmma(acc, x_smem, x_smem)
            return acc[...]

        out_gmem[...] = pl.run_scoped(multiply, plgpu.ACC((64, 64), jnp.float32))

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct(x.shape, jnp.float32),
        scratch_types=[plgpu.SMEM(x.shape, x.dtype), plgpu.Barrier()],
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane),
    )(x)
