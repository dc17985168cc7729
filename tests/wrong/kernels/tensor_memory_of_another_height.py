"""Allocates 96 rows of tensor memory, which has 128."""

from jax.experimental.pallas import mosaic_gpu as plgpu


def scale(x):
    def body(x_gmem, out_gmem, x_tmem):
        out_gmem[...] = x_gmem[...]

    return plgpu.kernel(body, out_type=x, scratch_types=[plgpu.TMEM(x.shape, x.dtype)])(x)
