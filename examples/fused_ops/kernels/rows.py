"""Row-wise operations for any architecture: one warpgroup holds a row in registers."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

WARPGROUP_SEMANTICS = plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup)


def gelu(x: jax.Array) -> jax.Array:
    """Return the tanh approximation of GELU."""
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)
    return 0.5 * x * (1.0 + jnp.tanh(inner))


def bias_gelu(x: jax.Array, bias: jax.Array, *, rows_per_block: int = 4) -> jax.Array:
    """Return `gelu(x + bias)`, computed in float32.

    Args:
        x: `[M, N]`, row-major; N is a multiple of 128, M of `rows_per_block`.
        bias: `[N]`, added to every row.
        rows_per_block: number of rows that one block processes with the same bias.
    """
    m, n = x.shape

    def bias_gelu_body(x_gmem: jax.Ref, bias_gmem: jax.Ref, out_gmem: jax.Ref) -> None:
        first_row = lax.axis_index("block") * rows_per_block
        shift = bias_gmem[...].astype(jnp.float32)

        def apply(i: jax.Array, carry: None) -> None:
            row = x_gmem[first_row + i].astype(jnp.float32)
            out_gmem[first_row + i] = gelu(row + shift).astype(out_gmem.dtype)

        lax.fori_loop(0, rows_per_block, apply, None)

    kernel = plgpu.kernel(
        bias_gelu_body,
        out_type=jax.ShapeDtypeStruct((m, n), x.dtype),
        grid=(m // rows_per_block,),
        grid_names=("block",),
        compiler_params=WARPGROUP_SEMANTICS,
    )
    return kernel(x, bias)


def bias_gelu_reference(x: jax.Array, bias: jax.Array, **_: int) -> jax.Array:
    """Return the expected result of `bias_gelu`."""
    return gelu(x.astype(jnp.float32) + bias.astype(jnp.float32)).astype(x.dtype)


def add_rms_norm(
    x: jax.Array,
    residual: jax.Array,
    weight: jax.Array,
    *,
    epsilon: float = 1e-6,
    rows_per_block: int = 4,
) -> tuple[jax.Array, jax.Array]:
    """Return `x + residual`, and its normalized rows: the step between two transformer layers.

    Args:
        x: `[M, N]`, row-major; N is a multiple of 128, M of `rows_per_block`.
        residual: same shape as `x`.
        weight: `[N]`.
        epsilon: added to the mean square, so that a row of zeros stays finite.
        rows_per_block: number of rows that one block processes with the same weight.
    """
    m, n = x.shape

    def add_rms_norm_body(
        x_gmem: jax.Ref,
        residual_gmem: jax.Ref,
        weight_gmem: jax.Ref,
        sum_gmem: jax.Ref,
        out_gmem: jax.Ref,
    ) -> None:
        first_row = lax.axis_index("block") * rows_per_block
        scale = weight_gmem[...].astype(jnp.float32)

        def normalize(i: jax.Array, carry: None) -> None:
            row = x_gmem[first_row + i].astype(jnp.float32)
            row = row + residual_gmem[first_row + i].astype(jnp.float32)
            sum_gmem[first_row + i] = row.astype(sum_gmem.dtype)
            mean_square = jnp.sum(row * row) * (1.0 / n)
            normalized = row * lax.rsqrt(mean_square + epsilon) * scale
            out_gmem[first_row + i] = normalized.astype(out_gmem.dtype)

        lax.fori_loop(0, rows_per_block, normalize, None)

    shape = jax.ShapeDtypeStruct((m, n), x.dtype)
    kernel = plgpu.kernel(
        add_rms_norm_body,
        out_type=(shape, shape),
        grid=(m // rows_per_block,),
        grid_names=("block",),
        compiler_params=WARPGROUP_SEMANTICS,
    )
    total, normalized = kernel(x, residual, weight)
    return total, normalized


def add_rms_norm_reference(
    x: jax.Array, residual: jax.Array, weight: jax.Array, *, epsilon: float = 1e-6, **_: int
) -> tuple[jax.Array, jax.Array]:
    """Return the expected result of `add_rms_norm`."""
    rows = x.astype(jnp.float32) + residual.astype(jnp.float32)
    mean_square = jnp.mean(rows * rows, axis=-1, keepdims=True)
    normalized = rows * lax.rsqrt(mean_square + epsilon) * weight.astype(jnp.float32)
    return rows.astype(x.dtype), normalized.astype(x.dtype)
