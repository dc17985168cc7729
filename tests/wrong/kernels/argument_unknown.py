"""Gives an array under a name that the function does not have."""

from jax.experimental.pallas import mosaic_gpu as plgpu


def scale(values):
    def body(x_gmem, out_gmem):
        out_gmem[...] = 2.0 * x_gmem[...]

    return plgpu.kernel(body, out_type=values)(values)
