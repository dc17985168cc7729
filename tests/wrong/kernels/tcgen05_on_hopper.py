"""Uses Blackwell's tensor core on an H100."""

import jax
import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu


def scale(x):
    def body(x_gmem, out_gmem, x_smem, acc_tmem, finished):
        x_smem[...] = x_gmem[...]
        plgpu.commit_smem()
        plgpu.tcgen05_mma(acc_tmem, x_smem, x_smem, finished, accumulate=False)
        plgpu.barrier_wait(finished)
        out_gmem[...] = plgpu.async_load_tmem(acc_tmem)

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct(x.shape, jnp.float32),
        scratch_types=[
            plgpu.SMEM(x.shape, x.dtype),
            plgpu.TMEM(x.shape, jnp.float32),
            plgpu.Barrier(orders_tensor_core=True),
        ],
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )(x)
