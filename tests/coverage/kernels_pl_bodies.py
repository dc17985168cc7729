"""The module `pl`: what stands in the body of a kernel."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from architectures import EVERYWHERE, SINCE_HOPPER
from covering import covers, fewer, no_ptx, plan, ptx, same_artifact
from forms import (
    NO_LAYOUTS,
    gone,
    like,
    load,
    plus_one,
    same,
    smem_bytes,
    vector,
)
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallasc


@covers("pl.load", gaps=gone("load"), note="indexing took its place, see `swapped`")
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE)
def old_load(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        out_gmem[...] = pl.load(x_gmem, (slice(None),))

    return plgpu.kernel(body, out_type=like(x))(x)


@covers("pl.store", gaps=gone("store"), note="indexing took its place, see `swapped`")
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE)
def old_store(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        pl.store(out_gmem, (slice(None),), x_gmem[...])

    return plgpu.kernel(body, out_type=like(x))(x)


@covers("pl.swap", gaps=gone("swap"), note="`jax.ref.swap` took its place, see `swapped`")
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE)
def old_swap(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        out_gmem[...] = pl.swap(x_gmem, (slice(None),), x_gmem[...])

    return plgpu.kernel(body, out_type=like(x))(x)


@covers(
    "pl.load",
    "pl.store",
    "pl.swap",
    looks=[ptx(r"ld\.shared"), ptx(r"st\.shared"), ptx(r"ld\.global"), ptx(r"st\.global")],
    note="by indexing and `jax.ref.swap`",
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, reference=plus_one)
def swapped(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, smem: Any) -> None:
        smem[...] = x_gmem[...] + 1
        out_gmem[...] = jax.ref.swap(smem, ..., x_gmem[...])

    return plgpu.kernel(body, out_type=like(x), scratch_types=[plgpu.SMEM((128,), jnp.float32)])(x)


@covers(
    "pl.broadcast_to",
    gaps=dict.fromkeys(
        ("0.10", "0.12"), "Unimplemented primitive in Pallas Mosaic GPU lowering: broadcast_to"
    ),
    note="`jnp.broadcast_to` takes its place, see `broadcast_rows`",
)
@pallasc.kernel(args={"x": "f32[64]"}, targets=EVERYWHERE)
def pallas_broadcast(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        out_gmem[...] = pl.broadcast_to(x_gmem[0], (128,))

    return plgpu.kernel(body, out_type=vector())(x)


def rows(x: Any) -> Any:
    return np.broadcast_to(x[:, None], (64, 64))


@covers(
    "pl.broadcast_to",
    looks=[ptx(r"(?s)(st\.global.*){16}", says="st.global"), no_ptx(r"ld\.global\.v")],
    uninterpreted=NO_LAYOUTS,
    note="by `jnp.broadcast_to` or `lax.broadcast_in_dim`",
)
@pallasc.kernel(args={"x": "f32[64]"}, targets=EVERYWHERE, reference=rows)
def broadcast_rows(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        column = load(x_gmem, layout=plgpu.Layout.WGMMA.reduce(1), optimized=False)
        out_gmem[...] = lax.broadcast_in_dim(column, (64, 64), (0,))

    return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct((64, 64), jnp.float32))(x)


def checked(x: jax.Array) -> jax.Array:
    """Return `x`, which is checked where checks are on."""

    def body(x_gmem: Any, out_gmem: Any) -> None:
        pl.debug_check(x_gmem[0] > 0, "the first value is not positive")
        out_gmem[...] = x_gmem[...]

    return plgpu.kernel(body, out_type=like(x))(x)


@covers(
    "pl.debug_check",
    looks=[ptx("__assertfail"), ptx("102, 105, 114, 115, 116", says="the message itself")],
    note="with `jax_pallas_enable_debug_checks`, which the kernel sets here",
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, reference=same)
def check(x: jax.Array) -> jax.Array:
    jax.config.update("jax_pallas_enable_debug_checks", True)
    return checked(x)


@covers(
    "pl.debug_check",
    looks=[no_ptx("__assertfail"), same_artifact("no_check")],
    note="without that setting, nothing is left of the check",
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, reference=same)
def check_left_out(x: jax.Array) -> jax.Array:
    return checked(x)


@covers("pl.debug_check", looks=[no_ptx("__assertfail")])
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, reference=same)
def no_check(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        out_gmem[...] = x_gmem[...]

    return plgpu.kernel(body, out_type=like(x))(x)


@covers(
    "pl.debug_print",
    looks=[
        ptx(r"call\.uni \(retval0\), vprintf", says="call vprintf"),
        ptx("102, 105, 114, 115, 116", says="the text itself"),
    ],
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, reference=same)
def prints(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        pl.debug_print("first: {}", x_gmem[0])
        out_gmem[...] = x_gmem[...]

    return plgpu.kernel(body, out_type=like(x))(x)


NO_DOT = {
    "0.10": "Unimplemented primitive in Pallas Mosaic GPU lowering: dot_general",
    "0.12": "pl.dot was deprecated in JAX v0.11.0, and removed in JAX v0.12.0.",
}


@covers("pl.dot", gaps=NO_DOT, note="`plgpu.wgmma`, `plgpu.mma` and `plgpu.tcgen05_mma` multiply")
@pallasc.kernel(args={"a": "f16[64, 64]", "b": "f16[64, 64]"}, targets=EVERYWHERE)
def pallas_dot(a: jax.Array, b: jax.Array) -> jax.Array:
    def body(a_gmem: Any, b_gmem: Any, out_gmem: Any) -> None:
        out_gmem[...] = pl.dot(a_gmem[...], b_gmem[...])

    return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct((64, 64), jnp.float32))(a, b)


def row_by_row(x: jax.Array, **options: Any) -> jax.Array:
    """Return `x + 1` row by row, by `pl.loop` with the given options."""

    def body(x_gmem: Any, out_gmem: Any) -> None:
        @pl.loop(0, x.shape[0], **options)
        def step(row: Any) -> None:
            out_gmem[row] = x_gmem[row] + 1

    return plgpu.kernel(body, out_type=like(x))(x)


@covers(
    "pl.loop",
    looks=[
        fewer(r"st\.global", than="unrolled_loop"),
        ptx(r"@!?%p\d+\s+bra", says="bra"),
    ],
    note="256 rows",
)
@pallasc.kernel(args={"x": "f32[256, 128]"}, targets=EVERYWHERE, reference=plus_one)
def loop(x: jax.Array) -> jax.Array:
    return row_by_row(x)


@covers(
    "pl.loop",
    looks=[
        ptx(r"(?s)(st\.global.*){8}", says="st.global eight times"),
        no_ptx(r"@!?%p\d+\s+bra", says="bra"),
    ],
    note="8 rows, with `unroll`",
)
@pallasc.kernel(args={"x": "f32[8, 128]"}, targets=EVERYWHERE, reference=plus_one)
def unrolled_loop(x: jax.Array) -> jax.Array:
    return row_by_row(x, unroll=True)


@covers(
    "pl.run_scoped",
    looks=[
        ptx(r"mbarrier\.init"),
        plan("room for one scope", lambda plan: 65536 <= smem_bytes(plan) < 2 * 65536),
    ],
    note="two scopes of 64 KiB, one after the other",
)
@pallasc.kernel(args={"x": "f32[128, 128]"}, targets=SINCE_HOPPER, reference=plus_one)
def scopes(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        def add(smem: Any, loaded: Any) -> None:
            plgpu.copy_gmem_to_smem(x_gmem, smem, loaded)
            plgpu.barrier_wait(loaded)
            out_gmem[...] = smem[...] + 1

        for _ in range(2):
            pl.run_scoped(add, plgpu.SMEM((128, 128), jnp.float32), plgpu.Barrier())

    return plgpu.kernel(body, out_type=like(x))(x)


def first_row(x: Any) -> Any:
    return x + np.array([[1], [0]], np.float32)


@covers("pl.when", looks=[ptx(r"@!?%p\d+\s+bra", says="bra"), ptx(r"%ctaid\.x")])
@pallasc.kernel(args={"x": "f32[2, 128]"}, targets=EVERYWHERE, reference=first_row)
def conditions(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        row = lax.axis_index("i")
        out_gmem[row] = x_gmem[row]

        @pl.when(row == 0)
        def add() -> None:
            out_gmem[row] = x_gmem[row] + 1

    return plgpu.kernel(body, out_type=like(x), grid=(2,), grid_names=("i",))(x)
