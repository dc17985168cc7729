"""Root-mean-square normalization of rows with a learned weight, on any architecture.

One warpgroup holds a row in registers; the weight is read once per block and kept there too.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

THREADS_PER_WARPGROUP = 128


def rms_norm(
    x: jax.Array, weight: jax.Array, *, epsilon: float = 1e-6, rows_per_block: int = 4
) -> jax.Array:
    """Return `x / sqrt(mean(x ** 2) + epsilon) * weight` for every row, in float32.

    Args:
        x: `[M, N]`, row-major; f32, bf16 or f16. N must be a multiple of 128. Row and weight
            take N / 64 registers per thread: beyond N = 8192 the kernel spills.
        weight: `[N]`, any of these dtypes.
        epsilon: added to the mean square, so that a row of zeros stays finite.
        rows_per_block: rows that one block works through with the same weight.

    Returns:
        `[M, N]`, same dtype as `x`.

    Raises:
        ValueError: The shapes do not fit together, or do not divide as stated.
    """
    if x.ndim != 2:
        raise ValueError(f"x must be a matrix [M, N], but has shape {list(x.shape)}.")
    m, n = x.shape
    if weight.shape != (n,):
        raise ValueError(f"weight has shape {list(weight.shape)}, but x has {n} columns.")
    if m % rows_per_block:
        raise ValueError(f"{m=} rows must be a multiple of {rows_per_block=}.")
    if n % THREADS_PER_WARPGROUP:
        raise ValueError(f"{n=} columns must be a multiple of {THREADS_PER_WARPGROUP}.")

    def rms_norm_body(x_gmem: jax.Ref, weight_gmem: jax.Ref, out_gmem: jax.Ref) -> None:
        first_row = lax.axis_index("block") * rows_per_block
        scale = weight_gmem[...].astype(jnp.float32)

        def normalize(i: jax.Array, carry: None) -> None:
            row = x_gmem[first_row + i].astype(jnp.float32)
            mean_square = jnp.sum(row * row) * (1.0 / n)
            normalized = row * lax.rsqrt(mean_square + epsilon) * scale
            out_gmem[first_row + i] = normalized.astype(out_gmem.dtype)

        lax.fori_loop(0, rows_per_block, normalize, None)

    kernel = plgpu.kernel(
        rms_norm_body,
        out_type=jax.ShapeDtypeStruct((m, n), x.dtype),
        grid=(m // rows_per_block,),
        grid_names=("block",),
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )
    return kernel(x, weight)


def rms_norm_reference(
    x: jax.Array, weight: jax.Array, *, epsilon: float = 1e-6, rows_per_block: int = 4
) -> jax.Array:
    """Return the result that `rms_norm` must give, computed in float32."""
    del rows_per_block
    rows = x.astype(jnp.float32)
    mean_square = jnp.mean(rows * rows, axis=-1, keepdims=True)
    normalized = rows * lax.rsqrt(mean_square + epsilon) * weight.astype(jnp.float32)
    return normalized.astype(x.dtype)
