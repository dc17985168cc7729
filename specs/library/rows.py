"""Softmax, root-mean-square normalization, and sums of the rows of a matrix, on any architecture.

`softmax` and `rms_norm` hold a whole row in the registers of one warpgroup; a block of `rms_norm`
reads the weight once and keeps it in registers, too. `row_sum` adds a row in chunks.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

THREADS_PER_WARPGROUP = 128


def softmax(x: jax.Array, *, rows_per_block: int = 4) -> jax.Array:
    """Return the softmax of every row of `x`, computed in float32.

    Args:
        x: `[M, N]`, row-major; f32, bf16 or f16. N must be a multiple of 128. A row takes
            N / 128 registers per thread; beyond N = 16384, the kernel spills.
        rows_per_block: rows that one block works through, one after the other.

    Returns:
        `[M, N]`, same dtype as `x`.

    Raises:
        ValueError: The input is not a matrix, or its sizes are not the stated multiples.
    """
    m, n = _sizes(x, rows_per_block)

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


def softmax_reference(x: jax.Array, **_: int) -> jax.Array:
    """Return the result that `softmax` must give, computed in float32."""
    return jax.nn.softmax(x.astype(jnp.float32), axis=-1).astype(x.dtype)


def rms_norm(
    x: jax.Array, weight: jax.Array, *, epsilon: float = 1e-6, rows_per_block: int = 4
) -> jax.Array:
    """Return `x / sqrt(mean(x ** 2) + epsilon) * weight` for every row, in float32.

    Args:
        x: `[M, N]`, row-major; f32, bf16 or f16. N must be a multiple of 128. Row and weight
            take N / 64 registers per thread; beyond N = 8192, the kernel spills.
        weight: `[N]`, any of these dtypes.
        epsilon: added to the mean square, so that a row of zeros stays finite.
        rows_per_block: rows that one block works through with the same weight.

    Returns:
        `[M, N]`, same dtype as `x`.

    Raises:
        ValueError: The shapes do not fit together, or are not the stated multiples.
    """
    m, n = _sizes(x, rows_per_block)
    if weight.shape != (n,):
        raise ValueError(f"weight has shape {list(weight.shape)}, but x has {n} columns.")

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
    x: jax.Array, weight: jax.Array, *, epsilon: float = 1e-6, **_: int
) -> jax.Array:
    """Return the result that `rms_norm` must give, computed in float32."""
    rows = x.astype(jnp.float32)
    mean_square = jnp.mean(rows * rows, axis=-1, keepdims=True)
    normalized = rows * lax.rsqrt(mean_square + epsilon) * weight.astype(jnp.float32)
    return normalized.astype(x.dtype)


def row_sum(x: jax.Array, *, chunk_size: int = 1024) -> jax.Array:
    """Return the sum of every row of `x`, accumulated in float32.

    Args:
        x: `[M, N]`, row-major; f32, bf16 or f16. N is not limited by the registers.
        chunk_size: elements of a row that are added at a time, a multiple of 128 that
            divides N. Each thread keeps `chunk_size / 128` partial sums.

    Returns:
        `f32[M]`.

    Raises:
        ValueError: The input is not a matrix, or its sizes are not the stated multiples.
    """
    m, n = _sizes(x)
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


def row_sum_reference(x: jax.Array, **_: int) -> jax.Array:
    """Return the result that `row_sum` must give, computed in float32."""
    return jnp.sum(x.astype(jnp.float32), axis=-1)


def _sizes(x: jax.Array, rows_per_block: int = 0) -> tuple[int, int]:
    """Return the sizes of a matrix, after checking that blocks of whole rows divide it."""
    if x.ndim != 2:
        raise ValueError(f"x must be a matrix [M, N], but has shape {list(x.shape)}.")
    m, n = x.shape
    if rows_per_block and m % rows_per_block:
        raise ValueError(f"{m=} rows must be a multiple of {rows_per_block=}.")
    if rows_per_block and n % THREADS_PER_WARPGROUP:
        raise ValueError(f"{n=} columns must be a multiple of {THREADS_PER_WARPGROUP}.")
    return m, n
