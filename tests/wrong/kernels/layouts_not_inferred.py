"""Adds a row in one layout to what has to have another."""

import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu


def scale(x):
    def body(x_gmem, out_gmem):
        rows = plgpu.layout_cast(x_gmem[...], plgpu.Layout.WGMMA)
        strided = plgpu.Layout.WG_STRIDED((128,), vec_size=1)
        total = plgpu.layout_cast(jnp.sum(rows, axis=1), strided)
        out_gmem[...] = total[:, None] + rows

    return plgpu.kernel(
        body,
        out_type=x,
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )(x)
