"""Slices a reference at a position that only the block knows."""

from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu


def scale(x):
    def body(x_gmem, out_gmem):
        start = lax.axis_index("i") * 128
        out_gmem[start : start + 128] = 2.0 * x_gmem[start : start + 128]

    return plgpu.kernel(body, out_type=x, grid=(2,), grid_names=("i",))(x)
