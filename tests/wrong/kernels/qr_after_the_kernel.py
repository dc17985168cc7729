"""Decomposes the kernel's result by cuSOLVER."""

import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu


def double(x):
    def body(x_gmem, out_gmem):
        out_gmem[...] = 2.0 * x_gmem[...]

    return plgpu.kernel(body, out_type=x)(x)


def scale(x):
    return jnp.linalg.qr(double(x))
