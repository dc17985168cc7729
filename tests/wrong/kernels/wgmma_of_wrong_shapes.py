"""Accumulates 64 by 64 into 64 by 128."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu


def scale(x):
    def body(x_gmem, out_gmem, x_smem):
        x_smem[...] = x_gmem[...]
        plgpu.commit_smem()

        def multiply(acc):
            plgpu.wgmma(acc, x_smem, x_smem)
            return acc[...]

        out_gmem[...] = pl.run_scoped(multiply, plgpu.ACC((64, 128)))

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct(x.shape, jnp.float32),
        scratch_types=[plgpu.SMEM(x.shape, x.dtype)],
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )(x)
