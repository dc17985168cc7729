"""Reads rows 4 to 12 of memory tiled by 8 rows."""

from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu


def scale(x):
    def body(x_gmem, out_gmem, x_smem, loaded):
        plgpu.copy_gmem_to_smem(x_gmem, x_smem, loaded)
        plgpu.barrier_wait(loaded)
        plgpu.copy_smem_to_gmem(x_smem.at[pl.ds(4, 8)], out_gmem.at[pl.ds(4, 8)])
        plgpu.wait_smem_to_gmem(0)

    swizzled = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
    memory = plgpu.SMEM(x.shape, x.dtype, transforms=swizzled)
    return plgpu.kernel(
        body,
        out_type=x,
        scratch_types=[memory, plgpu.Barrier()],
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane),
    )(x)
