"""Softmax over the last axis of a matrix, on any architecture.

One warpgroup holds a whole row in registers, so each element is read and written once.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

THREADS_PER_WARPGROUP = 128


def softmax(x: jax.Array, *, rows_per_block: int = 4) -> jax.Array:
    """Return the softmax of every row of `x`, computed in float32.

    Args:
        x: `[M, N]`, row-major; f32, bf16 or f16. N must be a multiple of 128. A row takes
            N / 128 registers per thread: beyond N = 16384 the kernel spills.
        rows_per_block: rows that one block works through, one after the other.

    Returns:
        `[M, N]`, same dtype as `x`.

    Raises:
        ValueError: The input is not a matrix, or does not divide as stated.
    """
    if x.ndim != 2:
        raise ValueError(f"x must be a matrix [M, N], but has shape {list(x.shape)}.")
    m, n = x.shape
    if m % rows_per_block:
        raise ValueError(f"{m=} rows must be a multiple of {rows_per_block=}.")
    if n % THREADS_PER_WARPGROUP:
        raise ValueError(f"{n=} columns must be a multiple of {THREADS_PER_WARPGROUP}.")

    def softmax_body(x_gmem: jax.Ref, out_gmem: jax.Ref) -> None:
        first_row = lax.axis_index("block") * rows_per_block

        def normalize(i: jax.Array, carry: None) -> None:
            row = x_gmem[first_row + i].astype(jnp.float32)
            # Subtracting the maximum keeps every exponent at or below zero: no overflow.
            weights = jnp.exp(row - jnp.max(row))
            out_gmem[first_row + i] = (weights / jnp.sum(weights)).astype(out_gmem.dtype)

        lax.fori_loop(0, rows_per_block, normalize, None)

    kernel = plgpu.kernel(
        softmax_body,
        out_type=jax.ShapeDtypeStruct((m, n), x.dtype),
        grid=(m // rows_per_block,),
        grid_names=("block",),
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )
    return kernel(x)


def softmax_reference(x: jax.Array, *, rows_per_block: int = 4) -> jax.Array:
    """Return the result that `softmax` must give, computed in float32."""
    del rows_per_block
    return jax.nn.softmax(x.astype(jnp.float32), axis=-1).astype(x.dtype)
