"""Adds up over the devices of a mesh that is not there."""

from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu


def double(x):
    def body(x_gmem, out_gmem):
        out_gmem[...] = 2.0 * x_gmem[...]

    return plgpu.kernel(body, out_type=x)(x)


def scale(x):
    return lax.psum(double(x), "device")
