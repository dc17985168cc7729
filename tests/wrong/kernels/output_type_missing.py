"""Forgets what the kernel returns."""

from jax.experimental.pallas import mosaic_gpu as plgpu


def scale(x):
    def body(x_gmem, out_gmem):
        out_gmem[...] = 2.0 * x_gmem[...]

    return plgpu.kernel(body)(x)
