"""Hopper's tensor cores: wgmma from shared memory and registers, and its accumulators."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from architectures import HOPPER
from covering import covers, ptx, sass
from forms import NEAR, NO_LAYOUTS, fetch, load, product, warpgroup
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallasc

OUT = jax.ShapeDtypeStruct((64, 64), jnp.float32)


@covers(
    "plgpu.wgmma",
    "plgpu.wgmma_wait",
    "plgpu.ACC",
    "plgpu.WGMMAAccumulatorRef",
    looks=[
        ptx(r"wgmma\.mma_async\.sync\.aligned\.m64n64k16\.f32\.f16\.f16"),
        ptx(r"wgmma\.wait_group\.sync\.aligned\s+1"),
        ptx(r"wgmma\.wait_group\.sync\.aligned\s+0"),
        sass(r"HGMMA\.64x64x16\.F32"),
    ],
)
@pallasc.kernel(
    args={"a": "f16[64, 64]", "b": "f16[64, 64]"},
    targets=HOPPER,
    reference=product,
    tolerance=NEAR,
)
def wgmma(a: jax.Array, b: jax.Array) -> jax.Array:
    def body(a_gmem: Any, b_gmem: Any, out_gmem: Any, a_smem: Any, b_smem: Any, ready: Any) -> None:
        fetch(ready, (a_gmem, a_smem), (b_gmem, b_smem))

        def multiply(acc: Any) -> Any:
            plgpu.wgmma(acc, a_smem, b_smem)
            plgpu.wgmma_wait(1)
            return acc[...]

        out_gmem[...] = pl.run_scoped(multiply, plgpu.ACC((64, 64), jnp.float32))

    assert plgpu.ACC is plgpu.WGMMAAccumulatorRef
    return plgpu.kernel(
        body,
        out_type=OUT,
        scratch_types=[
            plgpu.SMEM((64, 64), jnp.float16),
            plgpu.SMEM((64, 64), jnp.float16),
            plgpu.Barrier(num_arrivals=2),
        ],
        compiler_params=warpgroup(),
    )(a, b)


@covers(
    "plgpu.wgmma",
    "plgpu.Layout",
    looks=[
        ptx(
            r"wgmma\.mma_async\.sync\.aligned\.m64n64k16\.f32\.bf16\.bf16\s*\{[^}]*\},\s*\{",
            says="wgmma….bf16 {…}, {…}: both in registers",
        )
    ],
    uninterpreted=NO_LAYOUTS | {"0.12": "Expected shape (6,) but got (64, 64)"},
)
@pallasc.kernel(
    args={"a": "bf16[64, 64]", "b": "bf16[64, 64]"},
    targets=HOPPER,
    reference=product,
    tolerance=NEAR,
)
def wgmma_from_registers(a: jax.Array, b: jax.Array) -> jax.Array:
    def body(a_gmem: Any, b_gmem: Any, out_gmem: Any, b_smem: Any, ready: Any) -> None:
        fetch(ready, (b_gmem, b_smem))
        left = load(a_gmem, layout=plgpu.Layout.WGMMA, optimized=False)

        def multiply(acc: Any) -> Any:
            plgpu.wgmma(acc, left, b_smem)
            return acc[...]

        out_gmem[...] = pl.run_scoped(multiply, plgpu.ACC((64, 64), jnp.float32))

    return plgpu.kernel(
        body,
        out_type=OUT,
        scratch_types=[plgpu.SMEM((64, 64), jnp.bfloat16), plgpu.Barrier()],
        compiler_params=warpgroup(),
    )(a, b)


def product_of_rows(a: Any, b: Any) -> Any:
    return product(a, b.T)


@covers(
    "plgpu.wgmma",
    looks=[ptx(r"wgmma\.mma_async\.sync\.aligned\.m64n64k32\.f32\.e4m3\.e4m3")],
    uninterpreted={"0.10": "'TransposeTransform' object has no attribute 'indices'"},
)
@pallasc.kernel(
    args={"a": "f8e4m3fn[64, 64]", "b": "f8e4m3fn[64, 64]"},
    targets=HOPPER,
    reference=product_of_rows,
    tolerance=NEAR,
)
def wgmma_of_fp8(a: jax.Array, b: jax.Array) -> jax.Array:
    def body(a_gmem: Any, b_gmem: Any, out_gmem: Any, a_smem: Any, b_smem: Any, ready: Any) -> None:
        fetch(ready, (a_gmem, a_smem), (b_gmem, b_smem))
        columns = b_smem.T if hasattr(b_smem, "T") else plgpu.transpose_ref(b_smem, (1, 0))

        def multiply(acc: Any) -> Any:
            plgpu.wgmma(acc, a_smem, columns)
            return acc[...]

        out_gmem[...] = pl.run_scoped(multiply, plgpu.ACC((64, 64), jnp.float32))

    return plgpu.kernel(
        body,
        out_type=OUT,
        scratch_types=[
            plgpu.SMEM((64, 64), jnp.float8_e4m3fn),
            plgpu.SMEM((64, 64), jnp.float8_e4m3fn),
            plgpu.Barrier(num_arrivals=2),
        ],
        compiler_params=warpgroup(),
    )(a, b)


def product_and_sum(a: Any, b: Any, c: Any) -> Any:
    return product(a, b) + c


@covers(
    "plgpu.wgmma_accumulator_load",
    "plgpu.ACC",
    looks=[ptx(r"wgmma\.mma_async"), ptx(r"wgmma\.wait_group\.sync\.aligned\s+0")],
    uninterpreted=NO_LAYOUTS | {"0.12": "MLIR translation rule for primitive 'wgmma' not found"},
    note="an accumulator that begins with a value",
)
@pallasc.kernel(
    args={"a": "f16[64, 64]", "b": "f16[64, 64]", "c": "f32[64, 64]"},
    targets=HOPPER,
    reference=product_and_sum,
    tolerance=NEAR,
)
def wgmma_onto_a_value(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    def body(
        a_gmem: Any, b_gmem: Any, c_gmem: Any, out_gmem: Any, a_smem: Any, b_smem: Any, ready: Any
    ) -> None:
        fetch(ready, (a_gmem, a_smem), (b_gmem, b_smem))
        first = load(c_gmem, layout=plgpu.Layout.WGMMA, optimized=False)

        def multiply(acc: Any) -> None:
            plgpu.wgmma(acc, a_smem, b_smem)
            out_gmem[...] = plgpu.wgmma_accumulator_load(acc, wait_n=0)

        pl.run_state(multiply)(plgpu.ACC.init(first))

    return plgpu.kernel(
        body,
        out_type=OUT,
        scratch_types=[
            plgpu.SMEM((64, 64), jnp.float16),
            plgpu.SMEM((64, 64), jnp.float16),
            plgpu.Barrier(num_arrivals=2),
        ],
        compiler_params=warpgroup(),
    )(a, b, c)
