"""Leaves a convolution to cuDNN."""

import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu


def double(x):
    def body(x_gmem, out_gmem):
        out_gmem[...] = 2.0 * x_gmem[...]

    return plgpu.kernel(body, out_type=x)(x)


def scale(x):
    return lax.conv(double(x), jnp.ones((8, 8, 3, 3)), (1, 1), "SAME")
