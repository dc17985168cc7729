"""Loads 128 booleans, which Mosaic reads as 16 bytes."""

import jax
import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu


def scale(x):
    def body(x_gmem, out_gmem):
        out_gmem[...] = jnp.where(x_gmem[...], 2.0, 1.0)

    return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct(x.shape, jnp.float32))(x)
