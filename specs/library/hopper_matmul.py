"""Matrix multiplications for Hopper: plain, with an epilogue, and with int8 weights.

* `matmul`: wgmma fed by a warp-specialized TMA pipeline. Three warpgroups share a block. Two of
  them compute, each half the rows of the block's tile; the third only issues TMA copies, several
  steps ahead of the tensor cores.
* `matmul_bias_activation`: the bias and the activation are applied in registers before the tile is
  written, so the product itself is never written to global memory. One warpgroup per block issues
  its own copies, which is the simplest form of a pipeline.
* `dequant_matmul`: the weights are copied to shared memory as bytes, half the traffic of 16-bit
  weights. Every pipeline step widens a tile of weights in registers and writes it to a second
  shared buffer, from which wgmma reads it. The scales multiply the float32 accumulator at the end:
  this takes one multiplication per output instead of one per weight, and avoids earlier rounding.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

COMPUTE_WARPGROUPS = 2
# Registers of the copying warpgroup; accumulators get the rest. A multiple of 8.
MEMORY_REGISTERS = 40


def _check_dtypes(a: jax.Array, b: jax.Array) -> None:
    if a.dtype != b.dtype or a.dtype not in (jnp.bfloat16, jnp.float16):
        raise ValueError(f"a and b must both be bf16 or f16, but are {a.dtype} and {b.dtype}.")


def _sizes(
    a: jax.Array, b: jax.Array, tiles: tuple[int, int, int], row_unit: int = 64
) -> tuple[int, int, int]:
    """Return M, N, and K of two operands, after checking that they fit together and divide."""
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        shapes = f"{list(a.shape)} and {list(b.shape)}"
        raise ValueError(f"The operands have shapes {shapes}: expected [M, K] and [K, N].")
    if tiles[0] % row_unit:
        raise ValueError(f"tile_m={tiles[0]} must be a multiple of {row_unit}.")
    sizes = a.shape[0], b.shape[1], a.shape[1]
    for name, size, tile in zip("mnk", sizes, tiles, strict=True):
        if size % tile:
            raise ValueError(f"{name}={size} must be a multiple of tile_{name}={tile}.")
    return sizes


def _check_channels(name: str, array: jax.Array, n: int) -> None:
    if array.shape != (n,) or array.dtype != jnp.float32:
        given = f"{array.dtype}{list(array.shape)}"
        raise ValueError(f"{name} must be float32[{n}], but got {given}.")


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
        max_concurrent_steps: steps in flight, each with
            `(tile_m + tile_n) * tile_k * 2` bytes of shared memory. Together with the output
            tile of `tile_m * tile_n * 2` bytes, they must fit into 227 KiB.

    Returns:
        `[M, N]`, same dtype as `a`.

    Raises:
        ValueError: The inputs do not fit together, or do not divide into tiles.
    """
    _check_dtypes(a, b)
    m, n, k = _sizes(a, b, (tile_m, tile_n, tile_k), 64 * COMPUTE_WARPGROUPS)
    warpgroup_rows = tile_m // COMPUTE_WARPGROUPS

    def matmul_body(a_gmem: jax.Ref, b_gmem: jax.Ref, out_gmem: jax.Ref, out_smem: jax.Ref) -> None:
        tile_row, tile_column = lax.axis_index("m"), lax.axis_index("n")
        warpgroup = lax.axis_index("warpgroup")
        # The half of the tile's rows that this warpgroup computes.
        rows = pl.ds(warpgroup * warpgroup_rows, warpgroup_rows)

        def multiply(_: object, a_smem: jax.Ref, b_smem: jax.Ref, acc: jax.Ref) -> jax.Ref:
            plgpu.wgmma(acc, a_smem.at[rows], b_smem)
            # wgmma is asynchronous; wait, because the step's buffers are refilled after the return.
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
    return _float32_product(a, b).astype(a.dtype)


def _float32_product(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.dot(a.astype(jnp.float32), b.astype(jnp.float32), precision="highest")


def _gelu(x: jax.Array) -> jax.Array:
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)
    return 0.5 * x * (1.0 + jnp.tanh(inner))


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "none": lambda x: x,
    "relu": lambda x: jnp.maximum(x, 0.0),
    "gelu": _gelu,
}


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
        max_concurrent_steps: steps in flight, each with
            `(tile_m + tile_n) * tile_k * 2` bytes of shared memory. Together with the output
            tile of `tile_m * tile_n * 2` bytes, they must fit into 227 KiB.

    Returns:
        `[M, N]`, same dtype as `a`.

    Raises:
        ValueError: The inputs do not fit together, do not divide into tiles, or the
            activation is unknown.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"{activation=} must be one of {', '.join(sorted(ACTIVATIONS))}.")
    _check_dtypes(a, b)
    m, n, k = _sizes(a, b, (tile_m, tile_n, tile_k))
    _check_channels("bias", bias, n)

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
        # The bias is needed only in the epilogue, so it is copied while the tensor cores work.
        plgpu.copy_gmem_to_smem(bias_gmem.at[columns], bias_smem, bias_loaded)

        def multiply_all(acc: jax.Ref) -> jax.Array:
            def multiply(_: object, a_smem: jax.Ref, b_smem: jax.Ref) -> None:
                plgpu.wgmma(acc, a_smem, b_smem)
                # Wait for all but the newest wgmma, so that two steps overlap.
                plgpu.wgmma_wait(1)

            plgpu.emit_pipeline(
                multiply,
                grid=(k // tile_k,),
                # The newest wgmma still reads its tiles, so release buffers one step late.
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
    return ACTIVATIONS[activation](_float32_product(a, b) + bias).astype(a.dtype)


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
        max_concurrent_steps: steps in flight, each with `(2 * tile_m + tile_n) * tile_k` bytes
            of shared memory. Together with the widened weights of one step (`2 * tile_k *
            tile_n` bytes) and the output tile (`2 * tile_m * tile_n`), they must fit into 227 KiB.

    Returns:
        `[M, N]`, same dtype as `x`.

    Raises:
        ValueError: The inputs do not fit together, or do not divide into tiles.
    """
    if x.dtype not in (jnp.bfloat16, jnp.float16):
        raise ValueError(f"x must be bf16 or f16, but is {x.dtype}.")
    if weights.dtype != jnp.int8:
        raise ValueError(f"weights must be int8, but are {weights.dtype}.")
    m, n, k = _sizes(x, weights, (tile_m, tile_n, tile_k))
    _check_channels("scales", scales, n)

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
        # The scales are needed only at the end, so they are copied while the tensor cores work.
        plgpu.copy_gmem_to_smem(scales_gmem.at[columns], scales_smem, scales_loaded)

        def multiply_all(acc: jax.Ref) -> jax.Array:
            def multiply(_: object, x_smem: jax.Ref, weights_smem: jax.Ref) -> None:
                wide_smem[...] = weights_smem[...].astype(wide_smem.dtype)
                # Make the writes visible to the tensor cores before they read them.
                plgpu.commit_smem()
                plgpu.wgmma(acc, x_smem, wide_smem)
                # The next step overwrites the widened weights, so wait for this step's wgmma.
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
    return _float32_product(x, weights.astype(jnp.float32) * scales).astype(x.dtype)
