"""Matrix multiplication for Blackwell: tcgen05 with its accumulator in tensor memory.

Two warps of a block's warpgroup run independently: one issues TMA copies, the other issues
tensor-core instructions. Only barriers synchronize them. When the last instruction has
finished, the whole warpgroup moves the accumulator from tensor memory to the output.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

COPY_WARP = 0
MULTIPLY_WARP = 1


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
        tile_m: rows of the output per block: 128, the rows of tensor memory.
        tile_n: columns of the output per block: 32, 64, 128, or 256, as tensor memory is
            allocated in powers of two.
        tile_k: depth of one pipeline step; 64 fills the widest swizzle of 128 bytes.
        max_concurrent_steps: steps in flight, each with
            `(tile_m + tile_n) * tile_k * 2` bytes of shared memory. Together with the output
            tile of `tile_m * tile_n * 2` bytes, they must fit into 227 KiB.

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
    if tile_m != 128:
        raise ValueError(f"{tile_m=} must be 128.")
    if tile_n not in (32, 64, 128, 256):
        raise ValueError(f"{tile_n=} must be 32, 64, 128 or 256.")
    for name, size, tile in (("m", m, tile_m), ("n", n, tile_n), ("k", k, tile_k)):
        if size % tile:
            raise ValueError(f"{name}={size} must be a multiple of tile_{name}={tile}.")
    steps = k // tile_k

    def matmul_body(
        a_gmem: jax.Ref,
        b_gmem: jax.Ref,
        out_gmem: jax.Ref,
        *,
        a_smem: jax.Ref,
        b_smem: jax.Ref,
        out_smem: jax.Ref,
        acc_tmem: jax.Ref,
        loaded: jax.Ref,
        consumed: jax.Ref,
        finished: jax.Ref,
    ) -> None:
        rows = pl.ds(lax.axis_index("m") * tile_m, tile_m)
        columns = pl.ds(lax.axis_index("n") * tile_n, tile_n)

        def copy(step: jax.Array, carry: None) -> None:
            slot = lax.rem(step, max_concurrent_steps)

            # In the first round, every slot is empty.
            @pl.when(step >= max_concurrent_steps)
            def wait_for_empty_slot() -> None:
                plgpu.barrier_wait(consumed.at[slot])

            depth = pl.ds(step * tile_k, tile_k)
            plgpu.copy_gmem_to_smem(a_gmem.at[rows, depth], a_smem.at[slot], loaded.at[slot])
            plgpu.copy_gmem_to_smem(b_gmem.at[depth, columns], b_smem.at[slot], loaded.at[slot])

        def multiply(step: jax.Array, carry: None) -> None:
            slot = lax.rem(step, max_concurrent_steps)
            plgpu.barrier_wait(loaded.at[slot])
            # The tensor core itself arrives at `consumed` when it has read the slot.
            plgpu.tcgen05_mma(
                acc_tmem,
                a_smem.at[slot],
                b_smem.at[slot],
                consumed.at[slot],
                accumulate=step > 0,
            )

        def drain(step: jax.Array, carry: None) -> None:
            plgpu.barrier_wait(consumed.at[lax.rem(step, max_concurrent_steps)])

        @plgpu.warp_map
        def run_pipeline(warp: jax.Array) -> None:
            @pl.when(warp == COPY_WARP)
            def copy_all() -> None:
                lax.fori_loop(0, steps, copy, None)
                # Wait for the last round, too: every completed barrier phase needs a wait.
                lax.fori_loop(max(0, steps - max_concurrent_steps), steps, drain, None)

            @pl.when(warp == MULTIPLY_WARP)
            def multiply_all() -> None:
                lax.fori_loop(0, steps, multiply, None)
                plgpu.tcgen05_commit_arrive(finished)

        plgpu.barrier_wait(finished)
        out_smem[...] = plgpu.async_load_tmem(acc_tmem).astype(out_smem.dtype)
        # Make the writes visible to the TMA unit before it reads them.
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(out_smem, out_gmem.at[rows, columns])
        plgpu.wait_smem_to_gmem(0)

    kernel = plgpu.kernel(
        matmul_body,
        out_type=jax.ShapeDtypeStruct((m, n), a.dtype),
        scratch_types={
            "a_smem": plgpu.SMEM((max_concurrent_steps, tile_m, tile_k), a.dtype),
            "b_smem": plgpu.SMEM((max_concurrent_steps, tile_k, tile_n), b.dtype),
            "out_smem": plgpu.SMEM((tile_m, tile_n), a.dtype),
            "acc_tmem": plgpu.TMEM((tile_m, tile_n), jnp.float32),
            # A slot is loaded when the copies of both operands have arrived.
            "loaded": plgpu.Barrier(num_arrivals=2, num_barriers=max_concurrent_steps),
            "consumed": plgpu.Barrier(num_barriers=max_concurrent_steps, orders_tensor_core=True),
            "finished": plgpu.Barrier(orders_tensor_core=True),
        },
        grid=(m // tile_m, n // tile_n),
        grid_names=("m", "n"),
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )
    return kernel(a, b)


def matmul_reference(a: jax.Array, b: jax.Array, **_: int) -> jax.Array:
    """Return the result that `matmul` must give, multiplied in float32."""
    product = jnp.dot(a.astype(jnp.float32), b.astype(jnp.float32), precision="highest")
    return product.astype(a.dtype)
