"""Loads 16-bit rows straight into the layout of wgmma."""

from jax.experimental.pallas import mosaic_gpu as plgpu


def scale(x):
    def body(x_gmem, out_gmem):
        out_gmem[...] = plgpu.layout_cast(x_gmem[...], plgpu.Layout.WGMMA)

    return plgpu.kernel(
        body,
        out_type=x,
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )(x)
