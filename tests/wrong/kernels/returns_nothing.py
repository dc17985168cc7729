"""A function that forgets to return what its kernel gives."""

from jax.experimental.pallas import mosaic_gpu as plgpu


def copy(x):
    def body(x_gmem, out_gmem):
        out_gmem[...] = x_gmem[...]

    plgpu.kernel(body, out_type=x)(x)
