"""Adds registers in the layout of wgmma to those in the layout of tcgen05."""

import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu


def scale(x):
    def body(x_gmem, out_gmem):
        rows = plgpu.layout_cast(lax.broadcasted_iota(jnp.float32, x.shape, 0), plgpu.Layout.WGMMA)
        columns = lax.broadcasted_iota(jnp.float32, x.shape, 1)
        out_gmem[...] = rows + plgpu.layout_cast(columns, plgpu.Layout.TCGEN05)

    return plgpu.kernel(
        body,
        out_type=x,
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane),
    )(x)
