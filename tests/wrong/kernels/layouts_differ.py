"""Adds registers in the layout of wgmma to strided ones."""

from jax.experimental.pallas import mosaic_gpu as plgpu


def scale(x):
    def body(x_gmem, out_gmem):
        one = plgpu.load(x_gmem, (), layout=plgpu.Layout.WGMMA, optimized=False)
        other = plgpu.load(x_gmem, (), layout=plgpu.Layout.WG_STRIDED(x.shape, 2))
        out_gmem[...] = one + other

    return plgpu.kernel(
        body,
        out_type=x,
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane),
    )(x)
