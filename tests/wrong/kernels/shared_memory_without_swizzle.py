"""Reads rows of shared memory into the layout of wgmma, where lanes meet in one bank."""

from jax.experimental.pallas import mosaic_gpu as plgpu


def double(x):
    def body(x_gmem, out_gmem, x_smem, barrier):
        plgpu.copy_gmem_to_smem(x_gmem, x_smem, barrier)
        plgpu.barrier_wait(barrier)
        value = plgpu.load(x_smem, layout=plgpu.Layout.WGMMA)
        out_gmem[...] = value + value

    return plgpu.kernel(
        body,
        out_type=x,
        scratch_types=[plgpu.SMEM(x.shape, x.dtype), plgpu.Barrier()],
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane),
    )(x)
