"""A kernel that closes over an array, which it has to be given."""

import numpy as np
from jax.experimental.pallas import mosaic_gpu as plgpu

TABLE = np.arange(128, dtype=np.float32)


def add_table(x):
    def body(x_gmem, out_gmem):
        out_gmem[...] = x_gmem[...] + TABLE

    return plgpu.kernel(body, out_type=x)(x)
