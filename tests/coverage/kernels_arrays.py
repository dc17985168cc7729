"""Arrays in registers, and views of references."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from architectures import EVERYWHERE, HOPPER, SINCE_HOPPER
from covering import (
    compared,
    covers,
    faulty,
    kernel,
    no_ptx,
    plan,
    ptx,
    same_artifact,
    sass,
    table_row,
)
from forms import (
    NEAR,
    absent,
    array,
    lane,
    like,
    load,
    maps,
    plus_one,
    product,
    same,
    smem_bytes,
    warpgroup,
)
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallasc
from pallasc.compiler.lowering.constructs import BOOLEANS


@covers(["plgpu.load", "plgpu.Layout"], looks=[r"ld\.global"], expected=same)
@kernel({"x": "f32[64, 64]"})
def load_in_a_layout(x_gmem: Any, out_gmem: Any) -> None:
    out_gmem[...] = load(x_gmem, layout=plgpu.Layout.WGMMA, optimized=False)


@covers("plgpu.store", looks=[r"st\.global"], gaps=absent("store"), expected=same)
@kernel({"x": "f32[128]"})
def store_unoptimized(x_gmem: Any, out_gmem: Any) -> None:
    plgpu.store(out_gmem, x_gmem[...], optimized=False)


@covers("plgpu.load", looks=[r"ld\.global"], expected=same)
@kernel({"x": "f32[64, 64]"})
def plain_copy(x_gmem: Any, out_gmem: Any) -> None:
    out_gmem[...] = x_gmem[...]


# A thread has eight booleans, which are eight bytes.
@covers(
    "pl.load",
    looks=[faulty(no_ptx(r"ld\.global\S*\.[bu]8"), does=BOOLEANS.does)],
    gaps={"0.10": "memref<1024xi1> must have a number of elements that is a multiple of 128"},
    emulated="result 0 differs by …",
    expected=lambda x: np.where(x, 1.0, 2.0).astype(np.float32),
)
@kernel({"x": "bool[1024]"}, out_type=array(1024))
def booleans(x_gmem: Any, out_gmem: Any) -> None:
    out_gmem[...] = jnp.where(x_gmem[...], 1.0, 2.0)


@covers(
    ["plgpu.layout_cast", "plgpu.Layout"],
    looks=[
        no_ptx(r"ld\.global\.v2"),
        compared("other code than", lambda own, other: own.ptx != other.ptx, to="plain_copy"),
    ],
    expected=same,
)
@kernel({"x": "f32[64, 64]"})
def cast_of_a_layout(x_gmem: Any, out_gmem: Any) -> None:
    out_gmem[...] = plgpu.layout_cast(x_gmem[...], plgpu.Layout.WG_STRIDED((64, 64), 1))


# `Layout.TILED` from their own parts.
@covers(
    ["plgpu.Replicated", "plgpu.Tiling", "plgpu.Layout"],
    looks=[same_artifact("rows_of_a_known_layout")],
    expected=same,
)
@pallasc.kernel(args={"x": "f32[64]"}, targets=EVERYWHERE)
def rows_of_a_tiled_layout(x: jax.Array) -> jax.Array:
    tiled = plgpu.Layout.TILED(
        plgpu.Tiling(((64,), (16,), (8,), (1,))),
        warp_dims=(-4,),
        lane_dims=(-2, plgpu.Replicated(4)),
        vector_dim=-1,
    )
    return rows(x, tiled)


@covers("plgpu.Layout", looks=[r"ld\.global"], expected=same)
@pallasc.kernel(args={"x": "f32[64]"}, targets=EVERYWHERE)
def rows_of_a_known_layout(x: jax.Array) -> jax.Array:
    return rows(x, plgpu.Layout.WGMMA.reduce(1))


def rows(x: jax.Array, layout: Any) -> jax.Array:
    """Return `x` by way of registers in a layout."""

    def body(x_gmem: Any, out_gmem: Any) -> None:
        out_gmem[...] = load(x_gmem, layout=layout, optimized=False)

    return plgpu.kernel(body, out_type=like(x), compiler_params=warpgroup())(x)


# Prints while the kernel is lowered, and leaves nothing in it.
@covers("plgpu.print_layout", looks=[same_artifact("plain_copy")], expected=same)
@kernel({"x": "f32[64, 64]"})
def printed_layout(x_gmem: Any, out_gmem: Any) -> None:
    value = x_gmem[...]
    plgpu.print_layout("x: {}", value)
    out_gmem[...] = value


@covers(
    "plgpu.broadcasted_iota",
    looks=[r"tid\.x"],
    expected=lambda x: np.broadcast_to(np.arange(64, dtype=np.int32)[:, None], x.shape),
)
@kernel({"x": "i32[64, 64]"})
def iota(x_gmem: Any, out_gmem: Any) -> None:
    rows = plgpu.broadcasted_iota(jnp.int32, (64, 64), 0, layout=plgpu.Layout.WGMMA)
    out_gmem[...] = rows


def reduced(operation: str) -> Any:
    """Return a function that broadcasts the reduction of a vector."""

    def body(x_gmem: Any, out_gmem: Any) -> None:
        out_gmem[...] = lax.broadcast(getattr(plgpu, operation)(x_gmem[...]), (128,))

    return lambda x: plgpu.kernel(body, out_type=like(x))(x)


REDUCTIONS = [
    ("sum_of_a_vector", "sum", r"shfl\.sync"),
    ("max_of_a_vector", "max", r"max\.(NaN\.)?f32"),
    ("min_of_a_vector", "min", r"min\.(NaN\.)?f32"),
    ("product_of_a_vector", "prod", r"mul\.(rn\.)?f32"),
]
for row, name, look in REDUCTIONS:
    table_row(
        globals(),
        row,
        reduced(name),
        entries=f"plgpu.{name}",
        looks=[look],
        gaps=absent(name),
        expected=lambda x, name=name: np.full((128,), getattr(np, name)(x), np.float32),
    )


@covers(
    "plgpu.atomic_add", looks=[r"(red|atom)\.\S*add\.f32"], zeroed=True, expected=lambda x: 4 * x
)
@kernel({"x": "f32[128]"}, grid=(4,))
def atomic_add(x_gmem: Any, out_gmem: Any) -> None:
    plgpu.atomic_add(out_gmem, x_gmem[...])


@covers(
    [
        "plgpu.atomic_max",
        "plgpu.atomic_min",
        "plgpu.atomic_and",
        "plgpu.atomic_or",
        "plgpu.atomic_xor",
    ],
    looks=[ptx(rf"(red|atom)\.\S*{what}\.") for what in ("max", "min", "and", "or", "xor")],
    zeroed=True,
    expected=lambda x: ((np.minimum(x[:, 0], x[:, 1]) ^ x[:, 2]) & x[:, 3]) | x[:, 4],
)
@kernel({"x": "i32[4, 5, 128]"}, out_type=array(4, 128, dtype=jnp.int32), grid=(4,))
def other_atomics(x_gmem: Any, out_gmem: Any) -> None:
    block = lax.axis_index("i")
    plgpu.atomic_max(out_gmem.at[block], x_gmem[block, 0])
    plgpu.atomic_min(out_gmem.at[block], x_gmem[block, 1])
    plgpu.atomic_xor(out_gmem.at[block], x_gmem[block, 2])
    plgpu.atomic_and(out_gmem.at[block], x_gmem[block, 3])
    plgpu.atomic_or(out_gmem.at[block], x_gmem[block, 4])


@covers(
    ["plgpu.inline_mgpu", "plgpu.RefType", "plgpu.ShapeDtypeStruct"],
    looks=[r"neg\.f32|sub\.(rn\.)?f32"],
    expected=lambda x: -x,
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE)
def code_of_mosaic(x: jax.Array) -> jax.Array:
    layout = plgpu.Layout.WG_STRIDED((128,), vec_size=1)
    result = plgpu.ShapeDtypeStruct((128,), jnp.float32, layout=layout)

    def body(x_gmem: Any, out_gmem: Any) -> None:
        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(),), return_type=result)
        def negative(_: Any, ref: Any) -> Any:
            return -mgpu.FragmentedArray.load_strided(ref, vec_size=1)

        out_gmem[...] = negative(x_gmem)

    return plgpu.kernel(body, out_type=like(x), compiler_params=lane())(x)


@covers(
    "plgpu.mma",
    looks=[r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.bf16", sass(r"HMMA\.16816\.F32")],
    gaps={"0.10": "AttributeError: MMA_ACC"},
    expected=lambda a, b: product(a, b.T),
)
@pallasc.kernel(args={"a": "bf16[64, 16]", "b": "bf16[8, 16]"}, targets=EVERYWHERE, tolerance=NEAR)
def mma_of_ampere(a: jax.Array, b: jax.Array) -> jax.Array:
    layout = plgpu.Layout

    def body(a_gmem: Any, b_gmem: Any, out_gmem: Any) -> None:
        zeros = jnp.zeros((64, 8), jnp.float32)
        acc = plgpu.layout_cast(zeros, layout.MMA_ACC(a.dtype))
        left = plgpu.load(a_gmem, layout=layout.MMA_LHS(a.dtype), optimized=False)
        right = plgpu.load(b_gmem.T, layout=layout.MMA_RHS(a.dtype), optimized=False)
        out_gmem[...] = plgpu.mma(acc, left, right)

    out = array(64, 8)
    return plgpu.kernel(body, out_type=out)(a, b)


# Where accumulators lie.
@covers(
    ["plgpu.REGS", "plgpu.MemorySpace"],
    looks=[plan("no shared memory for it", lambda plan: smem_bytes(plan) < 64 * 64 * 4)],
    expected=same,
)
@kernel({"x": "f32[64, 64]"}, HOPPER, scratch=[plgpu.ACC((64, 64))])
def memory_space_of_an_accumulator(x_gmem: Any, out_gmem: Any, acc: Any) -> None:
    assert jax.typeof(acc).memory_space is plgpu.REGS
    out_gmem[...] = acc[...] + load(x_gmem, layout=plgpu.Layout.WGMMA, optimized=False)


def turned(x: Any) -> Any:
    return x.transpose(1, 0, 2)


@covers(
    ["plgpu.TilingTransform", "plgpu.SwizzleTransform", "plgpu.Transform"],
    looks=[
        plan("a swizzle of 128 bytes", lambda plan: maps(plan)[0].swizzle == 128),
        plan("a tiled tensor map", lambda plan: len(maps(plan)[0].dims) == 4),
    ],
    expected=plus_one,
)
@pallasc.kernel(args={"x": "f16[64, 128]"}, targets=SINCE_HOPPER)
def tiled_and_swizzled(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, x_smem: Any, loaded: Any) -> None:
        plgpu.copy_gmem_to_smem(x_gmem, x_smem, loaded)
        plgpu.barrier_wait(loaded)
        x_smem[...] = x_smem[...] + 1
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(x_smem, out_gmem)
        plgpu.wait_smem_to_gmem(0)

    transforms = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
    assert all(plgpu.Transform in type(transform).__mro__ for transform in transforms)
    scratch = [plgpu.SMEM((64, 128), jnp.float16, transforms=transforms), plgpu.Barrier()]
    return plgpu.kernel(body, out_type=like(x), scratch_types=scratch, compiler_params=lane())(x)


@covers(
    ["plgpu.find_swizzle", "plgpu.TilingTransform"],
    looks=[plan("a swizzle of 64 bytes", lambda plan: maps(plan)[0].swizzle == 64)],
    expected=same,
)
@kernel(
    {"x": "f16[64, 32]"},
    SINCE_HOPPER,
    scratch=[
        plgpu.SMEM(
            (64, 32),
            jnp.float16,
            transforms=(
                plgpu.TilingTransform((8, plgpu.find_swizzle(32 * 16) // 2)),
                plgpu.SwizzleTransform(plgpu.find_swizzle(32 * 16)),
            ),
        ),
        plgpu.Barrier(),
    ],
    compiler_params=lane(),
)
def found_swizzle(x_gmem: Any, out_gmem: Any, x_smem: Any, loaded: Any) -> None:
    plgpu.copy_gmem_to_smem(x_gmem, x_smem, loaded)
    plgpu.barrier_wait(loaded)
    plgpu.copy_smem_to_gmem(x_smem, out_gmem)
    plgpu.wait_smem_to_gmem(0)


# `Ref.transpose` took its place, see `transposed_reference`.
@covers(
    "plgpu.TransposeTransform",
    gaps=dict.fromkeys(
        ("0.10", "0.12"),
        "module 'jax.experimental.pallas.mosaic_gpu' has no attribute 'TransposeTransform'",
    ),
)
@pallasc.kernel(args={"x": "f16[64, 128]"}, targets=EVERYWHERE)
def transpose_transform(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        out_gmem[...] = x_gmem[...]

    spec = plgpu.BlockSpec(transforms=[plgpu.TransposeTransform((1, 0))])
    return pl.pallas_call(body, out_shape=like(x), in_specs=[spec])(x)


@covers(
    "plgpu.TransposeTransform",
    looks=[r"cp\.async\.bulk\.tensor\.3d\.shared::(cluster|cta)\.global"],
    expected=turned,
)
@pallasc.kernel(args={"x": "f32[2, 2, 64]"}, targets=SINCE_HOPPER)
def transposed_reference(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, x_smem: Any, loaded: Any) -> None:
        order = (1, 0, 2)
        view = plgpu.transpose_ref(x_smem, order) if old else x_smem.transpose(order)
        plgpu.copy_gmem_to_smem(x_gmem, view, loaded)
        plgpu.barrier_wait(loaded)
        plgpu.copy_smem_to_gmem(x_smem, out_gmem)
        plgpu.wait_smem_to_gmem(0)

    old = jax.__version_info__ < (0, 12)
    scratch = [plgpu.SMEM(x.shape, jnp.float32), plgpu.Barrier()]
    return plgpu.kernel(body, out_type=like(x), scratch_types=scratch)(x)


# Deprecated in 0.12; `Ref.transpose` takes its place, see `transposed_reference`.
@covers(
    "plgpu.transpose_ref",
    looks=[same_artifact("transposed_reference")],
    gaps={"0.12": "The 'memory_space' attribute is not available on traced array"},
    expected=turned,
)
@kernel(
    {"x": "f32[2, 2, 64]"},
    SINCE_HOPPER,
    scratch=[plgpu.SMEM((2, 2, 64), jnp.float32), plgpu.Barrier()],
)
def transposed_by_a_function(x_gmem: Any, out_gmem: Any, x_smem: Any, loaded: Any) -> None:
    plgpu.copy_gmem_to_smem(x_gmem, plgpu.transpose_ref(x_smem, (1, 0, 2)), loaded)
    plgpu.barrier_wait(loaded)
    plgpu.copy_smem_to_gmem(x_smem, out_gmem)
    plgpu.wait_smem_to_gmem(0)


@covers(
    "plgpu.OOBFillMode",
    looks=[
        r"cp\.async\.bulk\.tensor\.1d",
        plan("a map that ends with the array", lambda plan: maps(plan)[0].dims == (208,)),
    ],
    expected=lambda start, x: np.concatenate([x, np.zeros((128,), x.dtype)])[start : start + 128],
)
@kernel(
    {"start": "i32[]", "x": "i8[208]"},
    SINCE_HOPPER,
    out_type=array(128, dtype=jnp.int8),
    scratch=[plgpu.SMEM((128,), jnp.int8), plgpu.Barrier()],
)
def copy_out_of_bounds(
    start_gmem: Any, x_gmem: Any, out_gmem: Any, x_smem: Any, loaded: Any
) -> None:
    window = x_gmem.at[pl.ds(start_gmem[...], 128)]
    mode = plgpu.OOBFillMode.ZEROS
    plgpu.copy_gmem_to_smem(window, x_smem, loaded, oob_mode=mode)
    plgpu.barrier_wait(loaded)
    out_gmem[...] = x_smem[...]


def first_of_windows(x: Any) -> Any:
    """Return the value at the upper left of each window of 3 x 3."""
    return np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))[0, :8, :8].reshape(64, 64)


@covers(
    "plgpu.im2col_ref",
    looks=[
        r"cp\.async\.bulk\.tensor\.4d\.shared::(cluster|cta)\.global\.im2col",
        plan("an im2col tensor map", lambda plan: maps(plan)[0].im2col is not None),
    ],
    gaps=absent("im2col_ref"),
    expected=first_of_windows,
)
@kernel(
    {"x": "f16[1, 8, 8, 64]"},
    SINCE_HOPPER,
    out_type=array(64, 64, dtype=jnp.float16),
    scratch=[plgpu.SMEM((64, 64), jnp.float16), plgpu.Barrier()],
    compiler_params=lane(),
)
def im2col(x_gmem: Any, out_gmem: Any, x_smem: Any, loaded: Any) -> None:
    view = plgpu.im2col_ref(x_gmem, window_shape=(3, 3), padding=((1, 1), (1, 1)))
    plgpu.copy_gmem_to_smem(view.at[pl.ds(0, 64), 0, 0, :], x_smem, loaded)
    plgpu.barrier_wait(loaded)
    plgpu.copy_smem_to_gmem(x_smem, out_gmem)
    plgpu.wait_smem_to_gmem(0)


@covers(
    "plgpu.RefUnion",
    looks=[plan("one buffer for both", lambda plan: smem_bytes(plan) < 2 * 32768)],
    expected=same,
)
@pallasc.kernel(args={"x": "f32[64, 128]"}, targets=SINCE_HOPPER)
def two_references_to_one_place(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, union: Any) -> None:
        first, second = union
        first[...] = x_gmem[...]
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(first, out_gmem)
        plgpu.wait_smem_to_gmem(0)
        second[...] = jnp.zeros((64, 128), jnp.int32)

    one, other = (plgpu.SMEM((64, 128), dtype) for dtype in (jnp.float32, jnp.int32))
    return plgpu.kernel(body, out_type=like(x), scratch_types=[plgpu.RefUnion(one, other)])(x)
