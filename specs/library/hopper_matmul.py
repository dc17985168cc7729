"""Matrix multiplication for Hopper: wgmma fed by a warp-specialized TMA pipeline.

Three warpgroups share a block. Two of them compute, each half the rows of the block's tile;
the third only issues TMA copies, several steps ahead of the tensor cores.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

COMPUTE_WARPGROUPS = 2
# Registers of the copying warpgroup; accumulators get the rest. A multiple of 8.
MEMORY_REGISTERS = 40


def matmul(
    a: jax.Array,
    b: jax.Array,
    *,
    tile_m: int = 128,
    tile_n: int = 128,
    tile_k: int = 64,
    max_concurrent_steps: int = 4,
) -> jax.Array:
    """Return `a @ b`, accumulated in float32.

    Args:
        a: `[M, K]`, row-major; bf16 or f16.
        b: `[K, N]`, row-major, same dtype as `a`.
        tile_m: rows of the output per block, a multiple of 128: each of the two computing
            warpgroups takes half, and wgmma works on 64 rows at a time.
        tile_n: columns of the output per block, a multiple of 8 up to 256.
        tile_k: depth of one pipeline step; 64 fills the widest swizzle of 128 bytes.
        max_concurrent_steps: steps in flight, each holding
            `(tile_m + tile_n) * tile_k * 2` bytes of shared memory. They share it with the
            output tile of `tile_m * tile_n * 2` bytes: 227 KiB in all.

    Returns:
        `[M, N]`, same dtype as `a`.

    Raises:
        ValueError: The inputs do not fit together, or do not divide into tiles.
    """
    if a.dtype != b.dtype or a.dtype not in (jnp.bfloat16, jnp.float16):
        raise ValueError(f"a and b must both be bf16 or f16, but are {a.dtype} and {b.dtype}.")
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(
            f"a has shape {list(a.shape)} and b {list(b.shape)}: expected [M, K] and [K, N]."
        )
    (m, k), n = a.shape, b.shape[1]
    if tile_m % (64 * COMPUTE_WARPGROUPS):
        raise ValueError(f"{tile_m=} must be a multiple of {64 * COMPUTE_WARPGROUPS}.")
    for name, size, tile in (("m", m, tile_m), ("n", n, tile_n), ("k", k, tile_k)):
        if size % tile:
            raise ValueError(f"{name}={size} must be a multiple of tile_{name}={tile}.")
    warpgroup_rows = tile_m // COMPUTE_WARPGROUPS

    def matmul_body(a_gmem: jax.Ref, b_gmem: jax.Ref, out_gmem: jax.Ref, out_smem: jax.Ref) -> None:
        tile_row, tile_column = lax.axis_index("m"), lax.axis_index("n")
        warpgroup = lax.axis_index("warpgroup")
        # The half of the tile's rows that this warpgroup computes.
        rows = pl.ds(warpgroup * warpgroup_rows, warpgroup_rows)

        def multiply(_: object, a_smem: jax.Ref, b_smem: jax.Ref, acc: jax.Ref) -> jax.Ref:
            plgpu.wgmma(acc, a_smem.at[rows], b_smem)
            # wgmma is asynchronous: the step's buffers are refilled once we return.
            plgpu.wgmma_wait(0)
            return acc

        def compute(run_pipeline: Callable[[jax.Ref], jax.Ref]) -> None:
            @functools.partial(pl.run_scoped, acc=plgpu.ACC((warpgroup_rows, tile_n), jnp.float32))
            def accumulate_and_store(acc: jax.Ref) -> None:
                run_pipeline(acc)
                out_smem[rows] = acc[...].astype(out_smem.dtype)
                # Make the writes visible to the TMA unit before it reads them.
                plgpu.commit_smem()
                out_rows = pl.ds(tile_row * tile_m + warpgroup * warpgroup_rows, warpgroup_rows)
                out_columns = pl.ds(tile_column * tile_n, tile_n)
                plgpu.copy_smem_to_gmem(out_smem.at[rows], out_gmem.at[out_rows, out_columns])
                plgpu.wait_smem_to_gmem(0)

        plgpu.emit_pipeline_warp_specialized(
            multiply,
            grid=(k // tile_k,),
            in_specs=[
                plgpu.BlockSpec((tile_m, tile_k), lambda step: (tile_row, step)),
                plgpu.BlockSpec((tile_k, tile_n), lambda step: (step, tile_column)),
            ],
            max_concurrent_steps=max_concurrent_steps,
            wg_axis="warpgroup",
            num_compute_wgs=COMPUTE_WARPGROUPS,
            memory_registers=MEMORY_REGISTERS,
            compute_context=compute,
        )(a_gmem, b_gmem)

    kernel = plgpu.kernel(
        matmul_body,
        out_type=jax.ShapeDtypeStruct((m, n), a.dtype),
        scratch_types={"out_smem": plgpu.SMEM((tile_m, tile_n), a.dtype)},
        grid=(m // tile_m, n // tile_n),
        grid_names=("m", "n"),
        num_threads=COMPUTE_WARPGROUPS + 1,
        thread_name="warpgroup",
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )
    return kernel(a, b)


def matmul_reference(a: jax.Array, b: jax.Array, **_: int) -> jax.Array:
    """Return the result that `matmul` must give, multiplied in float32."""
    product = jnp.dot(a.astype(jnp.float32), b.astype(jnp.float32), precision="highest")
    return product.astype(a.dtype)
