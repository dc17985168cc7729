"""Sums columns, for which warps need shared memory."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu


def sums(x):
    def body(x_gmem, out_gmem):
        rows = plgpu.layout_cast(lax.broadcasted_iota(x.dtype, x.shape, 0), plgpu.Layout.WGMMA)
        out_gmem[...] = jnp.sum(rows, axis=0)

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct(x.shape[1:], x.dtype),
        compiler_params=plgpu.CompilerParams(
            lowering_semantics=plgpu.LoweringSemantics.Warpgroup, reduction_scratch_bytes=256
        ),
    )(x)
