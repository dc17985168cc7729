"""Kernels that JAX compiles wrongly, and their neighbors, which it compiles rightly."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu


def copied(x, *, stride):
    def body(x_gmem, out_gmem, smem, loaded):
        plgpu.copy_gmem_to_smem(x_gmem.at[pl.ds(0, 64, stride)], smem, loaded)  # HERE copied
        plgpu.barrier_wait(loaded)
        out_gmem[...] = smem[...]

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((64, 128), x.dtype),
        scratch_types=[plgpu.SMEM((64, 128), x.dtype), plgpu.Barrier()],
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )(x)


def prefetched(x, *, semantics):
    def body(x_gmem, out_gmem):
        plgpu.async_prefetch(x_gmem, collective_axes="c")  # HERE prefetched
        out_gmem[lax.axis_index("c")] = x_gmem[...]

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((2, *x.shape), x.dtype),
        cluster=(2,),
        cluster_names=("c",),
        compiler_params=plgpu.CompilerParams(
            lowering_semantics=getattr(plgpu.LoweringSemantics, semantics)
        ),
    )(x)


def selected(x):
    def body(x_gmem, out_gmem):
        out_gmem[...] = jnp.where(x_gmem[...], 1.0, 2.0)  # HERE selected

    return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct(x.shape, jnp.float32))(x)


def moved(x):
    def body(x_gmem, out_gmem):
        out_gmem[...] = x_gmem[...]  # HERE moved

    return plgpu.kernel(body, out_type=x)(x)


def first_selected(x):
    def body(x_gmem, out_gmem):
        out_gmem[...] = jnp.where(x_gmem[0], 1.0, 2.0) * jnp.ones(128)

    return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct((128,), jnp.float32))(x)


def summed(x):
    def body(x_gmem, out_gmem):
        out_gmem[...] = jnp.cumsum(jnp.where(x_gmem[...], 1.0, 2.0))

    return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct(x.shape, jnp.float32))(x)
