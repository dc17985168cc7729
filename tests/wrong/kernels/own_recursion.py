"""A helper calls itself without end."""

from jax.experimental.pallas import mosaic_gpu as plgpu


def next_power(n):
    return next_power(n) if n & (n - 1) else n


def scale(x):
    def body(x_gmem, out_gmem):
        out_gmem[...] = 2.0 * x_gmem[...]

    return plgpu.kernel(body, out_type=x, grid=(next_power(x.size),), grid_names=("tile",))(x)
