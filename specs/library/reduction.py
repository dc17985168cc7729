"""Sum the rows of a matrix, on any architecture.

A warpgroup goes through a row in chunks and adds them in registers; only at the end of the
row do its 128 threads combine their sums.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

THREADS_PER_WARPGROUP = 128


def row_sum(x: jax.Array, *, chunk_size: int = 1024) -> jax.Array:
    """Return the sum of every row of `x`, accumulated in float32.

    Args:
        x: `[M, N]`, row-major; f32, bf16 or f16. N is not limited by the registers.
        chunk_size: elements of a row that are added at a time, a multiple of 128 that
            divides N. Each thread keeps `chunk_size / 128` partial sums.

    Returns:
        `f32[M]`.

    Raises:
        ValueError: The input is not a matrix, or does not divide as stated.
    """
    if x.ndim != 2:
        raise ValueError(f"x must be a matrix [M, N], but has shape {list(x.shape)}.")
    m, n = x.shape
    if chunk_size % THREADS_PER_WARPGROUP:
        raise ValueError(f"{chunk_size=} must be a multiple of {THREADS_PER_WARPGROUP}.")
    if n == 0 or n % chunk_size:
        raise ValueError(f"{n=} columns must be a positive multiple of {chunk_size=}.")

    def row_sum_body(x_gmem: jax.Ref, out_gmem: jax.Ref) -> None:
        row = lax.axis_index("row")

        def load(i: jax.Array | int) -> jax.Array:
            return x_gmem[row, pl.ds(i * chunk_size, chunk_size)].astype(jnp.float32)

        partial_sums = lax.fori_loop(1, n // chunk_size, lambda i, acc: acc + load(i), load(0))
        out_gmem[row] = jnp.sum(partial_sums)

    kernel = plgpu.kernel(
        row_sum_body,
        out_type=jax.ShapeDtypeStruct((m,), jnp.float32),
        grid=(m,),
        grid_names=("row",),
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )
    return kernel(x)


def row_sum_reference(x: jax.Array, *, chunk_size: int = 1024) -> jax.Array:
    """Return the result that `row_sum` must give, computed in float32."""
    del chunk_size
    return jnp.sum(x.astype(jnp.float32), axis=-1)
