"""Matrix multiplication with bias and activation in its epilogue, for Hopper.

The sum, the bias and the activation happen in registers before the tile is written: the
product itself is never written to global memory. One warpgroup per block issues its own copies,
the simplest form of a pipeline.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu


def _identity(x: jax.Array) -> jax.Array:
    return x


def _relu(x: jax.Array) -> jax.Array:
    return jnp.maximum(x, 0.0)


def _gelu(x: jax.Array) -> jax.Array:
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)
    return 0.5 * x * (1.0 + jnp.tanh(inner))


ACTIVATIONS = {"none": _identity, "relu": _relu, "gelu": _gelu}


def matmul_bias_activation(
    a: jax.Array,
    b: jax.Array,
    bias: jax.Array,
    *,
    activation: str = "gelu",
    tile_m: int = 128,
    tile_n: int = 128,
    tile_k: int = 64,
    max_concurrent_steps: int = 4,
) -> jax.Array:
    """Return `activation(a @ b + bias)`, in float32 until the result is rounded.

    Args:
        a: `[M, K]`, row-major; bf16 or f16.
        b: `[K, N]`, row-major, same dtype as `a`.
        bias: `f32[N]`, added to every row.
        activation: `none`, `relu` or `gelu` (the tanh approximation).
        tile_m: rows of the output per block, a multiple of 64.
        tile_n: columns of the output per block, a multiple of 8 up to 256.
        tile_k: depth of one pipeline step; 64 fills the widest swizzle of 128 bytes.
        max_concurrent_steps: steps in flight, each holding
            `(tile_m + tile_n) * tile_k * 2` bytes of shared memory. They share it with the
            output tile of `tile_m * tile_n * 2` bytes: 227 KiB in all.

    Returns:
        `[M, N]`, same dtype as `a`.

    Raises:
        ValueError: The inputs do not fit together, do not divide into tiles, or the
            activation is unknown.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"{activation=} must be one of {', '.join(sorted(ACTIVATIONS))}.")
    if a.dtype != b.dtype or a.dtype not in (jnp.bfloat16, jnp.float16):
        raise ValueError(f"a and b must both be bf16 or f16, but are {a.dtype} and {b.dtype}.")
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(
            f"a has shape {list(a.shape)} and b {list(b.shape)}: expected [M, K] and [K, N]."
        )
    (m, k), n = a.shape, b.shape[1]
    if bias.shape != (n,) or bias.dtype != jnp.float32:
        raise ValueError(f"bias is {bias.dtype}{list(bias.shape)}, but must be float32[{n}].")
    if tile_m % 64:
        raise ValueError(f"{tile_m=} must be a multiple of 64.")
    for name, size, tile in (("m", m, tile_m), ("n", n, tile_n), ("k", k, tile_k)):
        if size % tile:
            raise ValueError(f"{name}={size} must be a multiple of tile_{name}={tile}.")

    def matmul_bias_activation_body(
        a_gmem: jax.Ref,
        b_gmem: jax.Ref,
        bias_gmem: jax.Ref,
        out_gmem: jax.Ref,
        *,
        bias_smem: jax.Ref,
        bias_loaded: jax.Ref,
        out_smem: jax.Ref,
    ) -> None:
        tile_row, tile_column = lax.axis_index("m"), lax.axis_index("n")
        columns = pl.ds(tile_column * tile_n, tile_n)
        # The bias is needed only in the epilogue: it arrives while the tensor cores work.
        plgpu.copy_gmem_to_smem(bias_gmem.at[columns], bias_smem, bias_loaded)

        def multiply_all(acc: jax.Ref) -> jax.Array:
            def multiply(_: object, a_smem: jax.Ref, b_smem: jax.Ref) -> None:
                plgpu.wgmma(acc, a_smem, b_smem)
                # Wait for all but the newest wgmma, so that two steps overlap.
                plgpu.wgmma_wait(1)

            plgpu.emit_pipeline(
                multiply,
                grid=(k // tile_k,),
                # The newest wgmma still reads its tiles: hand buffers back one step late.
                in_specs=[
                    plgpu.BlockSpec(
                        (tile_m, tile_k), lambda step: (tile_row, step), delay_release=1
                    ),
                    plgpu.BlockSpec(
                        (tile_k, tile_n), lambda step: (step, tile_column), delay_release=1
                    ),
                ],
                max_concurrent_steps=max_concurrent_steps,
            )(a_gmem, b_gmem)
            return acc[...]

        product = pl.run_scoped(multiply_all, plgpu.ACC((tile_m, tile_n), jnp.float32))
        plgpu.barrier_wait(bias_loaded)
        bias = lax.broadcast_in_dim(bias_smem[...], (tile_m, tile_n), (1,))
        out_smem[...] = ACTIVATIONS[activation](product + bias).astype(out_smem.dtype)
        # Make the writes visible to the TMA unit before it reads them.
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(out_smem, out_gmem.at[pl.ds(tile_row * tile_m, tile_m), columns])
        plgpu.wait_smem_to_gmem(0)

    kernel = plgpu.kernel(
        matmul_bias_activation_body,
        out_type=jax.ShapeDtypeStruct((m, n), a.dtype),
        scratch_types={
            "bias_smem": plgpu.SMEM((tile_n,), jnp.float32),
            "bias_loaded": plgpu.Barrier(),
            "out_smem": plgpu.SMEM((tile_m, tile_n), a.dtype),
        },
        grid=(m // tile_m, n // tile_n),
        grid_names=("m", "n"),
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )
    return kernel(a, b, bias)


def matmul_bias_activation_reference(
    a: jax.Array, b: jax.Array, bias: jax.Array, *, activation: str = "gelu", **_: int
) -> jax.Array:
    """Return the result that `matmul_bias_activation` must give, in float32."""
    product = jnp.dot(a.astype(jnp.float32), b.astype(jnp.float32), precision="highest")
    return ACTIVATIONS[activation](product + bias).astype(a.dtype)
