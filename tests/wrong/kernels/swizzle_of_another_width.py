"""Asks for a swizzle of 128 bytes on rows of 64."""

from jax.experimental.pallas import mosaic_gpu as plgpu


def scale(x):
    def body(x_gmem, out_gmem, x_smem, loaded):
        plgpu.copy_gmem_to_smem(x_gmem, x_smem, loaded)
        plgpu.barrier_wait(loaded)
        out_gmem[...] = x_smem[...]

    swizzled = (plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(128))
    memory = plgpu.SMEM(x.shape, x.dtype, transforms=swizzled)
    return plgpu.kernel(
        body,
        out_type=x,
        scratch_types=[memory, plgpu.Barrier()],
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane),
    )(x)
