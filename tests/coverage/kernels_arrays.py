"""Loads, stores, layouts, reductions, atomics and code of Mosaic's own, on arrays in registers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from architectures import EVERYWHERE, HOPPER
from covering import compared, covers, faulty, no_ptx, plan, ptx, same_artifact, sass
from forms import (
    NEAR,
    NO_LAYOUTS,
    absent,
    lane,
    like,
    load,
    product,
    same,
    smem_bytes,
    vector,
    warpgroup,
)
from jax import lax
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallasc
from pallasc.compiler.lowering.constructs import BOOLEANS


@covers("plgpu.load", "plgpu.Layout", looks=[ptx(r"ld\.global")], uninterpreted=NO_LAYOUTS)
@pallasc.kernel(args={"x": "f32[64, 64]"}, targets=EVERYWHERE, reference=same)
def load_in_a_layout(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        out_gmem[...] = load(x_gmem, layout=plgpu.Layout.WGMMA, optimized=False)

    return plgpu.kernel(body, out_type=like(x))(x)


@covers("plgpu.store", looks=[ptx(r"st\.global")], gaps=absent("store"))
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, reference=same)
def store_unoptimized(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        plgpu.store(out_gmem, x_gmem[...], optimized=False)

    return plgpu.kernel(body, out_type=like(x))(x)


@covers("plgpu.load", looks=[ptx(r"ld\.global")])
@pallasc.kernel(args={"x": "f32[64, 64]"}, targets=EVERYWHERE, reference=same)
def plain_copy(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        out_gmem[...] = x_gmem[...]

    return plgpu.kernel(body, out_type=like(x))(x)


def one_or_two(x: Any) -> Any:
    return np.where(x, 1.0, 2.0).astype(np.float32)


@covers(
    "pl.load",
    looks=[faulty(no_ptx(r"ld\.global\S*\.[bu]8"), does=BOOLEANS.does)],
    gaps={"0.10": "memref<1024xi1> must have a number of elements that is a multiple of 128"},
    emulated="result 0 differs by …",
    note="a thread has eight booleans, which are eight bytes",
)
@pallasc.kernel(args={"x": "bool[1024]"}, targets=EVERYWHERE, reference=one_or_two)
def booleans(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        out_gmem[...] = jnp.where(x_gmem[...], 1.0, 2.0)

    return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct(x.shape, jnp.float32))(x)


@covers(
    "plgpu.layout_cast",
    "plgpu.Layout",
    looks=[
        no_ptx(r"ld\.global\.v2"),
        compared("other code than", lambda own, other: own.ptx != other.ptx, to="plain_copy"),
    ],
    uninterpreted={"0.10": "MLIR translation rule for primitive 'layout_cast' not found"},
)
@pallasc.kernel(args={"x": "f32[64, 64]"}, targets=EVERYWHERE, reference=same)
def cast_of_a_layout(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        out_gmem[...] = plgpu.layout_cast(x_gmem[...], plgpu.Layout.WG_STRIDED((64, 64), 1))

    return plgpu.kernel(body, out_type=like(x))(x)


@covers(
    "plgpu.Replicated",
    "plgpu.Tiling",
    "plgpu.Layout",
    looks=[same_artifact("rows_of_a_known_layout")],
    uninterpreted=NO_LAYOUTS,
    note="`Layout.TILED` from their own parts",
)
@pallasc.kernel(args={"x": "f32[64]"}, targets=EVERYWHERE, reference=same)
def rows_of_a_tiled_layout(x: jax.Array) -> jax.Array:
    tiled = plgpu.Layout.TILED(
        plgpu.Tiling(((64,), (16,), (8,), (1,))),
        warp_dims=(-4,),
        lane_dims=(-2, plgpu.Replicated(4)),
        vector_dim=-1,
    )
    return rows(x, tiled)


@covers("plgpu.Layout", looks=[ptx(r"ld\.global")], uninterpreted=NO_LAYOUTS)
@pallasc.kernel(args={"x": "f32[64]"}, targets=EVERYWHERE, reference=same)
def rows_of_a_known_layout(x: jax.Array) -> jax.Array:
    return rows(x, plgpu.Layout.WGMMA.reduce(1))


def rows(x: jax.Array, layout: Any) -> jax.Array:
    """Return `x` by way of registers in a layout."""

    def body(x_gmem: Any, out_gmem: Any) -> None:
        out_gmem[...] = load(x_gmem, layout=layout, optimized=False)

    return plgpu.kernel(body, out_type=like(x), compiler_params=warpgroup())(x)


@covers(
    "plgpu.print_layout",
    looks=[same_artifact("plain_copy")],
    uninterpreted="MLIR translation rule for primitive 'print_layout' not found",
    note="prints while the kernel is lowered, and leaves nothing in it",
)
@pallasc.kernel(args={"x": "f32[64, 64]"}, targets=EVERYWHERE, reference=same)
def printed_layout(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        value = x_gmem[...]
        plgpu.print_layout("x: {}", value)
        out_gmem[...] = value

    return plgpu.kernel(body, out_type=like(x))(x)


def numbers_of_rows(x: Any) -> Any:
    return np.broadcast_to(np.arange(64, dtype=np.int32)[:, None], x.shape)


@covers(
    "plgpu.broadcasted_iota",
    looks=[ptx(r"tid\.x")],
    uninterpreted={"0.10": "MLIR translation rule for primitive 'layout_cast' not found"},
)
@pallasc.kernel(args={"x": "i32[64, 64]"}, targets=EVERYWHERE, reference=numbers_of_rows)
def iota(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        rows = plgpu.broadcasted_iota(jnp.int32, (64, 64), 0, layout=plgpu.Layout.WGMMA)
        out_gmem[...] = rows

    return plgpu.kernel(body, out_type=like(x))(x)


def of_all(operation: Any, x: Any) -> Any:
    """Return a vector of what an operation makes of all values."""
    return np.full((128,), operation(x), np.float32)


def sum_of_all(x: Any) -> Any:
    return of_all(np.sum, x)


@covers(
    "plgpu.sum",
    looks=[ptx(r"shfl\.sync")],
    gaps=absent("sum"),
    uninterpreted={"0.12": "MLIR translation rule for primitive 'mosaic_gpu_reduce_sum' not found"},
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, reference=sum_of_all)
def sum_of_a_vector(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        out_gmem[...] = lax.broadcast(plgpu.sum(x_gmem[...]), (128,))

    return plgpu.kernel(body, out_type=vector())(x)


def most_of_all(x: Any) -> Any:
    return of_all(np.max, x)


@covers(
    "plgpu.max",
    looks=[ptx(r"max\.(NaN\.)?f32", says="max.f32")],
    gaps=absent("max"),
    uninterpreted={"0.12": "MLIR translation rule for primitive 'mosaic_gpu_reduce_max' not found"},
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, reference=most_of_all)
def max_of_a_vector(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        out_gmem[...] = lax.broadcast(plgpu.max(x_gmem[...]), (128,))

    return plgpu.kernel(body, out_type=vector())(x)


def least_of_all(x: Any) -> Any:
    return of_all(np.min, x)


@covers(
    "plgpu.min",
    looks=[ptx(r"min\.(NaN\.)?f32", says="min.f32")],
    gaps=absent("min"),
    uninterpreted={"0.12": "MLIR translation rule for primitive 'mosaic_gpu_reduce_min' not found"},
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, reference=least_of_all)
def min_of_a_vector(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        out_gmem[...] = lax.broadcast(plgpu.min(x_gmem[...]), (128,))

    return plgpu.kernel(body, out_type=vector())(x)


def product_of_all(x: Any) -> Any:
    return of_all(np.prod, x)


@covers(
    "plgpu.prod",
    looks=[ptx(r"mul\.(rn\.)?f32", says="mul.f32")],
    gaps=absent("prod"),
    uninterpreted={
        "0.12": "MLIR translation rule for primitive 'mosaic_gpu_reduce_prod' not found"
    },
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, reference=product_of_all)
def product_of_a_vector(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        out_gmem[...] = lax.broadcast(plgpu.prod(x_gmem[...]), (128,))

    return plgpu.kernel(body, out_type=vector())(x)


def four_times(x: Any) -> Any:
    return 4 * x


@covers(
    "plgpu.atomic_add",
    looks=[ptx(r"(red|atom)\.\S*add\.f32", says="red….add.f32")],
    uninterpreted="Invalid shape for `swap`.",
    zeroed=True,
    gives=four_times,
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE)
def atomic_add(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        plgpu.atomic_add(out_gmem, x_gmem[...])

    return plgpu.kernel(body, out_type=like(x), grid=(4,), grid_names=("i",))(x)


def one_after_another(x: Any) -> Any:
    return ((np.minimum(x[:, 0], x[:, 1]) ^ x[:, 2]) & x[:, 3]) | x[:, 4]


@covers(
    "plgpu.atomic_max",
    "plgpu.atomic_min",
    "plgpu.atomic_and",
    "plgpu.atomic_or",
    "plgpu.atomic_xor",
    looks=[
        ptx(rf"(red|atom)\.\S*{what}\.", says=f"red….{what}")
        for what in ("max", "min", "and", "or", "xor")
    ],
    uninterpreted="`JaxprInputEffect` … does not have a corresponding jaxpr input.",
    zeroed=True,
    gives=one_after_another,
)
@pallasc.kernel(args={"x": "i32[4, 5, 128]"}, targets=EVERYWHERE)
def other_atomics(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        block = lax.axis_index("i")
        plgpu.atomic_max(out_gmem.at[block], x_gmem[block, 0])
        plgpu.atomic_min(out_gmem.at[block], x_gmem[block, 1])
        plgpu.atomic_xor(out_gmem.at[block], x_gmem[block, 2])
        plgpu.atomic_and(out_gmem.at[block], x_gmem[block, 3])
        plgpu.atomic_or(out_gmem.at[block], x_gmem[block, 4])

    out = jax.ShapeDtypeStruct((4, 128), x.dtype)
    return plgpu.kernel(body, out_type=out, grid=(4,), grid_names=("i",))(x)


def negated(x: Any) -> Any:
    return -x


@covers(
    "plgpu.inline_mgpu",
    "plgpu.RefType",
    "plgpu.ShapeDtypeStruct",
    looks=[ptx(r"neg\.f32|sub\.(rn\.)?f32", says="neg.f32/sub.f32")],
    uninterpreted={
        "0.10": "MLIR translation rule for primitive 'inline_mgpu_p' not found",
        "0.12": "GPU interpret mode does not support `inline_mgpu`.",
    },
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, reference=negated)
def code_of_mosaic(x: jax.Array) -> jax.Array:
    layout = plgpu.Layout.WG_STRIDED((128,), vec_size=1)
    result = plgpu.ShapeDtypeStruct((128,), jnp.float32, layout=layout)

    def body(x_gmem: Any, out_gmem: Any) -> None:
        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(),), return_type=result)
        def negative(_: Any, ref: Any) -> Any:
            return -mgpu.FragmentedArray.load_strided(ref, vec_size=1)

        out_gmem[...] = negative(x_gmem)

    return plgpu.kernel(body, out_type=like(x), compiler_params=lane())(x)


def product_of_rows(a: Any, b: Any) -> Any:
    return product(a, b.T)


@covers(
    "plgpu.mma",
    looks=[ptx(r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.bf16"), sass(r"HMMA\.16816\.F32")],
    gaps={"0.10": "AttributeError: MMA_ACC"},
    uninterpreted={"0.12": "MLIR translation rule for primitive 'mma' not found"},
)
@pallasc.kernel(
    args={"a": "bf16[64, 16]", "b": "bf16[8, 16]"},
    targets=EVERYWHERE,
    reference=product_of_rows,
    tolerance=NEAR,
)
def mma_of_ampere(a: jax.Array, b: jax.Array) -> jax.Array:
    layout = plgpu.Layout

    def body(a_gmem: Any, b_gmem: Any, out_gmem: Any) -> None:
        zeros = jnp.zeros((64, 8), jnp.float32)
        acc = plgpu.layout_cast(zeros, layout.MMA_ACC(a.dtype))
        left = plgpu.load(a_gmem, layout=layout.MMA_LHS(a.dtype), optimized=False)
        right = plgpu.load(b_gmem.T, layout=layout.MMA_RHS(a.dtype), optimized=False)
        out_gmem[...] = plgpu.mma(acc, left, right)

    out = jax.ShapeDtypeStruct((64, 8), jnp.float32)
    return plgpu.kernel(body, out_type=out)(a, b)


@covers(
    "plgpu.REGS",
    "plgpu.MemorySpace",
    looks=[plan("no shared memory for it", lambda plan: smem_bytes(plan) < 64 * 64 * 4)],
    uninterpreted=NO_LAYOUTS,
    note="where accumulators lie",
)
@pallasc.kernel(args={"x": "f32[64, 64]"}, targets=HOPPER, reference=same)
def memory_space_of_an_accumulator(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, acc: Any) -> None:
        assert jax.typeof(acc).memory_space is plgpu.REGS
        out_gmem[...] = acc[...] + load(x_gmem, layout=plgpu.Layout.WGMMA, optimized=False)

    return plgpu.kernel(body, out_type=like(x), scratch_types=[plgpu.ACC((64, 64))])(x)
