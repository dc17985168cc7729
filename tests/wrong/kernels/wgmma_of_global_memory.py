"""Multiplies from global memory, without a copy to shared memory."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu


def square(x):
    def body(x_gmem, out_gmem):
        def multiply(acc):
            plgpu.wgmma(acc, x_gmem, x_gmem)
            return acc[...]

        out_gmem[...] = pl.run_scoped(multiply, plgpu.ACC((128, 128), jnp.float32))

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct(x.shape, jnp.float32),
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )(x)
