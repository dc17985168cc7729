"""Multiply 16-bit activations by int8 weights, dequantized in the kernel, for Hopper.

The weights are copied to shared memory as bytes, half the traffic of 16-bit weights.
Every pipeline step widens its tile through registers into a second shared buffer, from which
wgmma reads it. The scale of each output channel multiplies the float32 accumulator at the end:
one multiplication per output instead of one per weight, and nothing is rounded on the way.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu


def dequant_matmul(
    x: jax.Array,
    weights: jax.Array,
    scales: jax.Array,
    *,
    tile_m: int = 128,
    tile_n: int = 128,
    tile_k: int = 64,
    max_concurrent_steps: int = 4,
) -> jax.Array:
    """Return `x @ (weights * scales)`, accumulated in float32.

    Args:
        x: `[M, K]`, row-major; bf16 or f16.
        weights: `i8[K, N]`, row-major, one column per output channel.
        scales: `f32[N]`, one per output channel.
        tile_m: rows of the output per block, a multiple of 64.
        tile_n: columns of the output per block, a multiple of 16 up to 256.
        tile_k: depth of one pipeline step; 64 fills the widest swizzle of 128 bytes.
        max_concurrent_steps: steps in flight, each holding `(2 * tile_m + tile_n) * tile_k`
            bytes of shared memory. They share it with the widened weights of one step,
            `2 * tile_k * tile_n`, and the output tile, `2 * tile_m * tile_n`: 227 KiB in all.

    Returns:
        `[M, N]`, same dtype as `x`.

    Raises:
        ValueError: The inputs do not fit together, or do not divide into tiles.
    """
    if x.dtype not in (jnp.bfloat16, jnp.float16):
        raise ValueError(f"x must be bf16 or f16, but is {x.dtype}.")
    if weights.dtype != jnp.int8:
        raise ValueError(f"weights must be int8, but are {weights.dtype}.")
    if x.ndim != 2 or weights.ndim != 2 or x.shape[1] != weights.shape[0]:
        raise ValueError(
            f"x has shape {list(x.shape)} and weights {list(weights.shape)}: "
            "expected [M, K] and [K, N]."
        )
    (m, k), n = x.shape, weights.shape[1]
    if scales.shape != (n,) or scales.dtype != jnp.float32:
        raise ValueError(
            f"scales are {scales.dtype}{list(scales.shape)}, but must be float32[{n}]."
        )
    if tile_m % 64:
        raise ValueError(f"{tile_m=} must be a multiple of 64.")
    for name, size, tile in (("m", m, tile_m), ("n", n, tile_n), ("k", k, tile_k)):
        if size % tile:
            raise ValueError(f"{name}={size} must be a multiple of tile_{name}={tile}.")

    def dequant_matmul_body(
        x_gmem: jax.Ref,
        weights_gmem: jax.Ref,
        scales_gmem: jax.Ref,
        out_gmem: jax.Ref,
        *,
        scales_smem: jax.Ref,
        scales_loaded: jax.Ref,
        wide_smem: jax.Ref,
        out_smem: jax.Ref,
    ) -> None:
        tile_row, tile_column = lax.axis_index("m"), lax.axis_index("n")
        columns = pl.ds(tile_column * tile_n, tile_n)
        # The scales are needed only at the end: they arrive while the tensor cores work.
        plgpu.copy_gmem_to_smem(scales_gmem.at[columns], scales_smem, scales_loaded)

        def multiply_all(acc: jax.Ref) -> jax.Array:
            def multiply(_: object, x_smem: jax.Ref, weights_smem: jax.Ref) -> None:
                wide_smem[...] = weights_smem[...].astype(wide_smem.dtype)
                # Make the writes visible to the tensor cores before they read them.
                plgpu.commit_smem()
                plgpu.wgmma(acc, x_smem, wide_smem)
                # The next step overwrites the widened weights: let this one finish.
                plgpu.wgmma_wait(0)

            plgpu.emit_pipeline(
                multiply,
                grid=(k // tile_k,),
                in_specs=[
                    plgpu.BlockSpec((tile_m, tile_k), lambda step: (tile_row, step)),
                    plgpu.BlockSpec((tile_k, tile_n), lambda step: (step, tile_column)),
                ],
                max_concurrent_steps=max_concurrent_steps,
            )(x_gmem, weights_gmem)
            return acc[...]

        product = pl.run_scoped(multiply_all, plgpu.ACC((tile_m, tile_n), jnp.float32))
        plgpu.barrier_wait(scales_loaded)
        scale = lax.broadcast_in_dim(scales_smem[...], (tile_m, tile_n), (1,))
        out_smem[...] = (product * scale).astype(out_smem.dtype)
        # Make the writes visible to the TMA unit before it reads them.
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(out_smem, out_gmem.at[pl.ds(tile_row * tile_m, tile_m), columns])
        plgpu.wait_smem_to_gmem(0)

    kernel = plgpu.kernel(
        dequant_matmul_body,
        out_type=jax.ShapeDtypeStruct((m, n), x.dtype),
        scratch_types={
            "scales_smem": plgpu.SMEM((tile_n,), jnp.float32),
            "scales_loaded": plgpu.Barrier(),
            "wide_smem": plgpu.SMEM((tile_k, tile_n), x.dtype),
            "out_smem": plgpu.SMEM((tile_m, tile_n), x.dtype),
        },
        grid=(m // tile_m, n // tile_n),
        grid_names=("m", "n"),
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )
    return kernel(x, weights, scales)


def dequant_matmul_reference(
    x: jax.Array, weights: jax.Array, scales: jax.Array, **_: int
) -> jax.Array:
    """Return the result that `dequant_matmul` must give, computed in float32."""
    dequantised = weights.astype(jnp.float32) * scales
    product = jnp.dot(x.astype(jnp.float32), dequantised, precision="highest")
    return product.astype(x.dtype)
