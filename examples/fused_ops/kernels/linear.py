"""`gelu(x @ weight + bias)` in one kernel per architecture; the product never leaves the chip."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from rows import WARPGROUP_SEMANTICS, gelu

TILE_K = 64


def _epilogue(product: jax.Array, bias_smem: jax.Ref, out_smem: jax.Ref) -> None:
    """Write an activated tile to shared memory."""
    bias = lax.broadcast_in_dim(bias_smem[...], product.shape, (1,))
    out_smem[...] = gelu(product + bias).astype(out_smem.dtype)
    # Make the writes visible to the TMA unit before it reads them.
    plgpu.commit_smem()


def linear_gelu_hopper(
    x: jax.Array, weight: jax.Array, bias: jax.Array, *, tile: int = 128, steps_in_flight: int = 4
) -> jax.Array:
    """Return `gelu(x @ weight + bias)` computed on Hopper's tensor cores, accumulated in float32.

    Args:
        x: `bf16[M, K]`, row-major; M is a multiple of `tile`, K of 64.
        weight: `bf16[K, N]`, row-major; N is a multiple of `tile`.
        bias: `f32[N]`.
        tile: rows and columns of the result per block.
        steps_in_flight: number of copies that run ahead of the tensor cores.
    """
    (m, k), n = x.shape, weight.shape[1]

    def linear_gelu_body(
        x_gmem: jax.Ref,
        weight_gmem: jax.Ref,
        bias_gmem: jax.Ref,
        out_gmem: jax.Ref,
        *,
        bias_smem: jax.Ref,
        bias_loaded: jax.Ref,
        out_smem: jax.Ref,
    ) -> None:
        row, column = lax.axis_index("m"), lax.axis_index("n")
        columns = pl.ds(column * tile, tile)
        plgpu.copy_gmem_to_smem(bias_gmem.at[columns], bias_smem, bias_loaded)

        def multiply_all(acc: jax.Ref) -> jax.Array:
            def multiply(_: object, x_smem: jax.Ref, weight_smem: jax.Ref) -> None:
                plgpu.wgmma(acc, x_smem, weight_smem)
                # Wait for all but the newest wgmma, so that two steps overlap.
                plgpu.wgmma_wait(1)

            plgpu.emit_pipeline(
                multiply,
                grid=(k // TILE_K,),
                # The newest wgmma still reads its tiles, so return buffers one step late.
                in_specs=[
                    plgpu.BlockSpec((tile, TILE_K), lambda step: (row, step), delay_release=1),
                    plgpu.BlockSpec((TILE_K, tile), lambda step: (step, column), delay_release=1),
                ],
                max_concurrent_steps=steps_in_flight,
            )(x_gmem, weight_gmem)
            return acc[...]

        product = pl.run_scoped(multiply_all, plgpu.ACC((tile, tile), jnp.float32))
        plgpu.barrier_wait(bias_loaded)
        _epilogue(product, bias_smem, out_smem)
        plgpu.copy_smem_to_gmem(out_smem, out_gmem.at[pl.ds(row * tile, tile), columns])
        plgpu.wait_smem_to_gmem(0)

    kernel = plgpu.kernel(
        linear_gelu_body,
        out_type=jax.ShapeDtypeStruct((m, n), x.dtype),
        scratch_types={
            "bias_smem": plgpu.SMEM((tile,), jnp.float32),
            "bias_loaded": plgpu.Barrier(),
            "out_smem": plgpu.SMEM((tile, tile), x.dtype),
        },
        grid=(m // tile, n // tile),
        grid_names=("m", "n"),
        compiler_params=WARPGROUP_SEMANTICS,
    )
    return kernel(x, weight, bias)


def linear_gelu_blackwell(
    x: jax.Array, weight: jax.Array, bias: jax.Array, *, tile: int = 128, steps_in_flight: int = 4
) -> jax.Array:
    """Return `gelu(x @ weight + bias)` computed on Blackwell's tensor cores, accumulated in TMEM.

    One warp of a block issues copies and another issues tensor core instructions; both run ahead
    and synchronize at barriers. Then the whole warpgroup reads the tile from tensor memory (TMEM).

    Args:
        x: as for Hopper.
        weight: as for Hopper.
        bias: as for Hopper.
        tile: rows and columns of the result per block; 128, the number of rows of tensor memory.
        steps_in_flight: number of copies that run ahead of the tensor cores.
    """
    (m, k), n = x.shape, weight.shape[1]
    steps = k // TILE_K

    def linear_gelu_body(
        x_gmem: jax.Ref,
        weight_gmem: jax.Ref,
        bias_gmem: jax.Ref,
        out_gmem: jax.Ref,
        *,
        bias_smem: jax.Ref,
        bias_loaded: jax.Ref,
        x_smem: jax.Ref,
        weight_smem: jax.Ref,
        out_smem: jax.Ref,
        acc_tmem: jax.Ref,
        loaded: jax.Ref,
        consumed: jax.Ref,
        finished: jax.Ref,
    ) -> None:
        rows = pl.ds(lax.axis_index("m") * tile, tile)
        columns = pl.ds(lax.axis_index("n") * tile, tile)
        plgpu.copy_gmem_to_smem(bias_gmem.at[columns], bias_smem, bias_loaded)

        def copy(step: jax.Array, carry: None) -> None:
            slot = lax.rem(step, steps_in_flight)

            # In the first round every slot is empty.
            @pl.when(step >= steps_in_flight)
            def wait_for_empty_slot() -> None:
                plgpu.barrier_wait(consumed.at[slot])

            depth = pl.ds(step * TILE_K, TILE_K)
            plgpu.copy_gmem_to_smem(x_gmem.at[rows, depth], x_smem.at[slot], loaded.at[slot])
            plgpu.copy_gmem_to_smem(
                weight_gmem.at[depth, columns], weight_smem.at[slot], loaded.at[slot]
            )

        def multiply(step: jax.Array, carry: None) -> None:
            slot = lax.rem(step, steps_in_flight)
            plgpu.barrier_wait(loaded.at[slot])
            # The tensor core itself arrives at `consumed` when it has read the slot.
            plgpu.tcgen05_mma(
                acc_tmem,
                x_smem.at[slot],
                weight_smem.at[slot],
                consumed.at[slot],
                accumulate=step > 0,
            )

        def drain(step: jax.Array, carry: None) -> None:
            plgpu.barrier_wait(consumed.at[lax.rem(step, steps_in_flight)])

        @plgpu.warp_map
        def run_pipeline(warp: jax.Array) -> None:
            @pl.when(warp == 0)
            def copy_all() -> None:
                lax.fori_loop(0, steps, copy, None)
                # Nothing has waited for the last round yet, and a kernel must wait for every
                # completed phase of a barrier.
                lax.fori_loop(max(0, steps - steps_in_flight), steps, drain, None)

            @pl.when(warp == 1)
            def multiply_all() -> None:
                lax.fori_loop(0, steps, multiply, None)
                plgpu.tcgen05_commit_arrive(finished)

        plgpu.barrier_wait(finished)
        plgpu.barrier_wait(bias_loaded)
        _epilogue(plgpu.async_load_tmem(acc_tmem), bias_smem, out_smem)
        plgpu.copy_smem_to_gmem(out_smem, out_gmem.at[rows, columns])
        plgpu.wait_smem_to_gmem(0)

    kernel = plgpu.kernel(
        linear_gelu_body,
        out_type=jax.ShapeDtypeStruct((m, n), x.dtype),
        scratch_types={
            "bias_smem": plgpu.SMEM((tile,), jnp.float32),
            "bias_loaded": plgpu.Barrier(),
            "x_smem": plgpu.SMEM((steps_in_flight, tile, TILE_K), x.dtype),
            "weight_smem": plgpu.SMEM((steps_in_flight, TILE_K, tile), x.dtype),
            "out_smem": plgpu.SMEM((tile, tile), x.dtype),
            "acc_tmem": plgpu.TMEM((tile, tile), jnp.float32),
            # A slot is loaded when the copies of both operands have arrived.
            "loaded": plgpu.Barrier(num_arrivals=2, num_barriers=steps_in_flight),
            "consumed": plgpu.Barrier(num_barriers=steps_in_flight, orders_tensor_core=True),
            "finished": plgpu.Barrier(orders_tensor_core=True),
        },
        grid=(m // tile, n // tile),
        grid_names=("m", "n"),
        compiler_params=WARPGROUP_SEMANTICS,
    )
    return kernel(x, weight, bias)


def linear_gelu_reference(x: jax.Array, weight: jax.Array, bias: jax.Array, **_: int) -> jax.Array:
    """Return the expected result of both kernels."""
    product = jnp.dot(x.astype(jnp.float32), weight.astype(jnp.float32), precision="highest")
    return gelu(product + bias).astype(x.dtype)
