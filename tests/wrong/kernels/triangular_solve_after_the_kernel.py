"""Leaves a triangular solve to cuBLAS."""

import jax
from jax.experimental.pallas import mosaic_gpu as plgpu


def double(x):
    def body(x_gmem, out_gmem):
        out_gmem[...] = 2.0 * x_gmem[...]

    return plgpu.kernel(body, out_type=x)(x)


def scale(x):
    return jax.scipy.linalg.solve_triangular(double(x), x)
