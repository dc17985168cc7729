"""Copies a window of 3 values, 12 bytes, by TMA, which takes multiples of 16."""

from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu


def scale(x):
    def body(x_gmem, out_gmem, x_smem, loaded):
        plgpu.copy_gmem_to_smem(x_gmem.at[:, pl.ds(0, 3)], x_smem, loaded)
        plgpu.barrier_wait(loaded)
        out_gmem[...] = x_gmem[...]

    return plgpu.kernel(
        body, out_type=x, scratch_types=[plgpu.SMEM((128, 3), x.dtype), plgpu.Barrier()]
    )(x)
