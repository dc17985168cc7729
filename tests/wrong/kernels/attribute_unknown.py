"""Misspells a function of Pallas."""

from jax.experimental.pallas import mosaic_gpu as plgpu


def scale(x):
    def body(x_gmem, out_gmem):
        plgpu.copy_gmem_to_shared(x_gmem, out_gmem)

    return plgpu.kernel(body, out_type=x)(x)
