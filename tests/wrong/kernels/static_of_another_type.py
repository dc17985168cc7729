"""Gives text where the function computes with a number."""

from jax.experimental.pallas import mosaic_gpu as plgpu


def scale(x, factor):
    def body(x_gmem, out_gmem):
        out_gmem[...] = factor * x_gmem[...]

    return plgpu.kernel(body, out_type=x)(x)
