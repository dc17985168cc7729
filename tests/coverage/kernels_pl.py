"""The module `pl` in the body of a kernel, and windows of references."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from architectures import EVERYWHERE, HOPPER, SINCE_HOPPER
from covering import compared, covers, faulty, fewer, kernel, no_ptx, plan, same_artifact
from forms import (
    NEAR,
    array,
    gone,
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
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallasc
from pallasc.compiler.lowering.constructs import STRIDE


# Indexing took its place, see `swapped`.
@covers("pl.load", gaps=gone("load"))
@kernel({"x": "f32[128]"})
def old_load(x_gmem: Any, out_gmem: Any) -> None:
    out_gmem[...] = pl.load(x_gmem, (slice(None),))


# Indexing took its place, see `swapped`.
@covers("pl.store", gaps=gone("store"))
@kernel({"x": "f32[128]"})
def old_store(x_gmem: Any, out_gmem: Any) -> None:
    pl.store(out_gmem, (slice(None),), x_gmem[...])


# `jax.ref.swap` took its place, see `swapped`.
@covers("pl.swap", gaps=gone("swap"))
@kernel({"x": "f32[128]"})
def old_swap(x_gmem: Any, out_gmem: Any) -> None:
    out_gmem[...] = pl.swap(x_gmem, (slice(None),), x_gmem[...])


# By indexing and `jax.ref.swap`.
@covers(
    ["pl.load", "pl.store", "pl.swap"],
    looks=[r"ld\.shared", r"st\.shared", r"ld\.global", r"st\.global"],
    expected=plus_one,
)
@kernel({"x": "f32[128]"}, scratch=[plgpu.SMEM((128,), jnp.float32)])
def swapped(x_gmem: Any, out_gmem: Any, smem: Any) -> None:
    smem[...] = x_gmem[...] + 1
    out_gmem[...] = jax.ref.swap(smem, ..., x_gmem[...])


# `jnp.broadcast_to` takes its place, see `broadcast_rows`.
@covers(
    "pl.broadcast_to",
    gaps=dict.fromkeys(
        ("0.10", "0.12"), "Unimplemented primitive in Pallas Mosaic GPU lowering: broadcast_to"
    ),
)
@kernel({"x": "f32[64]"}, out_type=array(128))
def pallas_broadcast(x_gmem: Any, out_gmem: Any) -> None:
    out_gmem[...] = pl.broadcast_to(x_gmem[0], (128,))


# By `jnp.broadcast_to` or `lax.broadcast_in_dim`.
@covers(
    "pl.broadcast_to",
    looks=[r"(?s)(st\.global.*){16}", no_ptx(r"ld\.global\.v")],
    expected=lambda x: np.broadcast_to(x[:, None], (64, 64)),
)
@kernel({"x": "f32[64]"}, out_type=array(64, 64))
def broadcast_rows(x_gmem: Any, out_gmem: Any) -> None:
    column = load(x_gmem, layout=plgpu.Layout.WGMMA.reduce(1), optimized=False)
    out_gmem[...] = lax.broadcast_in_dim(column, (64, 64), (0,))


def checked(x: jax.Array) -> jax.Array:
    """Return `x`, which is checked where checks are on."""

    def body(x_gmem: Any, out_gmem: Any) -> None:
        pl.debug_check(x_gmem[0] > 0, "the first value is not positive")
        out_gmem[...] = x_gmem[...]

    return plgpu.kernel(body, out_type=like(x))(x)


# With `jax_pallas_enable_debug_checks`, which the kernel sets here.
@covers("pl.debug_check", looks=["__assertfail", "102, 105, 114, 115, 116"], expected=same)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE)
def check(x: jax.Array) -> jax.Array:
    jax.config.update("jax_pallas_enable_debug_checks", True)
    return checked(x)


# Without that setting, nothing is left of the check.
@covers("pl.debug_check", looks=[no_ptx("__assertfail")], expected=same)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE)
def check_left_out(x: jax.Array) -> jax.Array:
    return checked(x)


@covers(
    "pl.debug_print",
    looks=[r"call\.uni \(retval0\), vprintf", "102, 105, 114, 115, 116"],
    expected=same,
)
@kernel({"x": "f32[128]"})
def prints(x_gmem: Any, out_gmem: Any) -> None:
    pl.debug_print("first: {}", x_gmem[0])
    out_gmem[...] = x_gmem[...]


NO_DOT = {
    "0.10": "Unimplemented primitive in Pallas Mosaic GPU lowering: dot_general",
    "0.12": "pl.dot was deprecated in JAX v0.11.0, and removed in JAX v0.12.0.",
}


# `plgpu.wgmma`, `plgpu.mma` and `plgpu.tcgen05_mma` multiply.
@covers("pl.dot", gaps=NO_DOT)
@kernel({"a": "f16[64, 64]", "b": "f16[64, 64]"}, out_type=array(64, 64))
def pallas_dot(a_gmem: Any, b_gmem: Any, out_gmem: Any) -> None:
    out_gmem[...] = pl.dot(a_gmem[...], b_gmem[...])


def row_by_row(x: jax.Array, **options: Any) -> jax.Array:
    """Return `x + 1` row by row, by `pl.loop` with the given options."""

    def body(x_gmem: Any, out_gmem: Any) -> None:
        @pl.loop(0, x.shape[0], **options)
        def step(row: Any) -> None:
            out_gmem[row] = x_gmem[row] + 1

    return plgpu.kernel(body, out_type=like(x))(x)


# 256 rows.
@covers(
    "pl.loop",
    looks=[fewer(r"st\.global", than="unrolled_loop"), r"@!?%p\d+\s+bra"],
    expected=plus_one,
)
@pallasc.kernel(args={"x": "f32[256, 128]"}, targets=EVERYWHERE)
def loop(x: jax.Array) -> jax.Array:
    return row_by_row(x)


# 8 rows, with `unroll`.
@covers("pl.loop", looks=[r"(?s)(st\.global.*){8}", no_ptx(r"@!?%p\d+\s+bra")], expected=plus_one)
@pallasc.kernel(args={"x": "f32[8, 128]"}, targets=EVERYWHERE)
def unrolled_loop(x: jax.Array) -> jax.Array:
    return row_by_row(x, unroll=True)


# Two scopes of 64 KiB, one after the other.
@covers(
    "pl.run_scoped",
    looks=[
        r"mbarrier\.init",
        plan("room for one scope", lambda plan: 65536 <= smem_bytes(plan) < 2 * 65536),
    ],
    expected=plus_one,
)
@kernel({"x": "f32[128, 128]"}, SINCE_HOPPER)
def scopes(x_gmem: Any, out_gmem: Any) -> None:
    def add(smem: Any, loaded: Any) -> None:
        plgpu.copy_gmem_to_smem(x_gmem, smem, loaded)
        plgpu.barrier_wait(loaded)
        out_gmem[...] = smem[...] + 1

    for _ in range(2):
        pl.run_scoped(add, plgpu.SMEM((128, 128), jnp.float32), plgpu.Barrier())


@covers(
    "pl.when",
    looks=[r"@!?%p\d+\s+bra", r"%ctaid\.x"],
    expected=lambda x: x + np.array([[1], [0]], np.float32),
)
@kernel({"x": "f32[2, 128]"}, grid=(2,))
def conditions(x_gmem: Any, out_gmem: Any) -> None:
    row = lax.axis_index("i")
    out_gmem[row] = x_gmem[row]

    @pl.when(row == 0)
    def add() -> None:
        out_gmem[row] = x_gmem[row] + 1


# It was for Triton alone.
@covers("pl.max_contiguous", gaps=gone("max_contiguous"))
@kernel({"x": "f32[256]"}, grid=(2,))
def contiguous(x_gmem: Any, out_gmem: Any) -> None:
    start = pl.max_contiguous(lax.axis_index("i") * 128, 128)
    out_gmem[pl.ds(start, 128)] = x_gmem[pl.ds(start, 128)]


def product_of_a_window(start: jax.Array, a: jax.Array, b: jax.Array, multiple: int) -> jax.Array:
    """Return 64 rows of `a`, from those whose number is in `start`, times `b`."""

    def body(start_gmem: Any, a_gmem: Any, b_gmem: Any, out_gmem: Any, *scratch: Any) -> None:
        a_smem, b_smem, loaded = scratch
        plgpu.copy_gmem_to_smem(a_gmem, a_smem, loaded)
        plgpu.copy_gmem_to_smem(b_gmem, b_smem, loaded)
        plgpu.barrier_wait(loaded)
        first = start_gmem[0]
        if multiple > 1:
            first = pl.multiple_of(first, multiple)

        def multiply(acc: Any) -> Any:
            plgpu.wgmma(acc, a_smem.at[pl.ds(first, 64)], b_smem)
            return acc[...]

        out_gmem[...] = pl.run_scoped(multiply, plgpu.ACC((64, 64)))

    return plgpu.kernel(
        body,
        out_type=array(64, 64),
        scratch_types=[
            plgpu.SMEM((128, 64), jnp.float16),
            plgpu.SMEM((64, 64), jnp.float16),
            plgpu.Barrier(num_arrivals=2),
        ],
        compiler_params=warpgroup(),
    )(start, a, b)


WINDOW = {"start": "i32[1]", "a": "f16[128, 64]", "b": "f16[64, 64]"}


def second_tile(start: Any) -> Any:
    return np.full_like(start, 64)


@covers(
    "pl.multiple_of",
    looks=[r"wgmma\.mma_async"],
    given={"start": second_tile},
    expected=lambda start, a, b: product(a[start[0] : start[0] + 64], b),
)
@pallasc.kernel(args=WINDOW, targets=HOPPER, tolerance=NEAR)
def window_of_whole_tiles(start: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
    return product_of_a_window(start, a, b, 64)


# Without it.
@covers(
    "pl.multiple_of",
    gaps=dict.fromkeys(
        ("0.10", "0.12"),
        "Failed to infer a possible set of layouts. This should only happen if user-provided "
        "layout casts are unsatisfiable.",
    ),
)
@pallasc.kernel(args=WINDOW, targets=HOPPER)
def window_that_starts_anywhere(start: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
    return product_of_a_window(start, a, b, 1)


def window(x: jax.Array, index: Any) -> jax.Array:
    """Return 64 rows of `x` by way of shared memory."""

    def body(x_gmem: Any, out_gmem: Any, smem: Any, loaded: Any) -> None:
        plgpu.copy_gmem_to_smem(x_gmem.at[index], smem, loaded)
        plgpu.barrier_wait(loaded)
        out_gmem[...] = smem[...]

    return plgpu.kernel(
        body,
        out_type=array(64, 128),
        scratch_types=[plgpu.SMEM((64, 128), jnp.float32), plgpu.Barrier()],
    )(x)


def second_half(x: Any) -> Any:
    return x[64:128]


@covers(
    "pl.dslice",
    looks=[plan("a box of 64 rows", lambda plan: {m.box for m in maps(plan)} == {(128, 64)})],
    expected=second_half,
)
@pallasc.kernel(args={"x": "f32[128, 128]"}, targets=SINCE_HOPPER)
def window_by_dslice(x: jax.Array) -> jax.Array:
    return window(x, pl.dslice(64, 64))


@covers("pl.Slice", looks=[same_artifact("window_by_dslice")], expected=second_half)
@pallasc.kernel(args={"x": "f32[128, 128]"}, targets=SINCE_HOPPER)
def window_by_slice(x: jax.Array) -> jax.Array:
    return window(x, pl.Slice(64, 64))


def is_another(own: Any, other: Any) -> bool:
    return bool(own.artifact.digest != other.artifact.digest)


@covers(
    "pl.dslice",
    looks=[compared("another artifact than", is_another, to="window_by_dslice")],
    expected=lambda x: x[:64],
)
@pallasc.kernel(args={"x": "f32[128, 128]"}, targets=SINCE_HOPPER)
def window_without_a_stride(x: jax.Array) -> jax.Array:
    return window(x, pl.dslice(0, 64))


# The interpreter takes every second row, as it should.
@covers(
    ["pl.dslice", "pl.Slice"],
    looks=[
        faulty(
            compared("another artifact than", is_another, to="window_without_a_stride"),
            does=STRIDE.does,
        )
    ],
    gaps={"0.10": "Strided slices not implemented"},
    emulated="result 0 differs by …",
    expected=lambda x: x[::2],
)
@pallasc.kernel(args={"x": "f32[128, 128]"}, targets=SINCE_HOPPER)
def window_with_a_stride(x: jax.Array) -> jax.Array:
    return window(x, pl.dslice(0, 64, 2))
