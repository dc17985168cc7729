"""The module `pl`: windows of references, and what is known of where they begin."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from architectures import EVERYWHERE, HOPPER, SINCE_HOPPER
from covering import compared, covers, faulty, plan, ptx, same_artifact
from forms import NEAR, gone, like, maps, product, warpgroup
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallasc
from pallasc.compiler.lowering.constructs import STRIDE


@covers("pl.max_contiguous", gaps=gone("max_contiguous"), note="it was for Triton alone")
@pallasc.kernel(args={"x": "f32[256]"}, targets=EVERYWHERE)
def contiguous(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        start = pl.max_contiguous(lax.axis_index("i") * 128, 128)
        out_gmem[pl.ds(start, 128)] = x_gmem[pl.ds(start, 128)]

    return plgpu.kernel(body, out_type=like(x), grid=(2,), grid_names=("i",))(x)


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
        out_type=jax.ShapeDtypeStruct((64, 64), jnp.float32),
        scratch_types=[
            plgpu.SMEM((128, 64), jnp.float16),
            plgpu.SMEM((64, 64), jnp.float16),
            plgpu.Barrier(num_arrivals=2),
        ],
        compiler_params=warpgroup(),
    )(start, a, b)


WINDOW = {"start": "i32[1]", "a": "f16[128, 64]", "b": "f16[64, 64]"}


def product_of_a_tile(start: Any, a: Any, b: Any) -> Any:
    return product(a[start[0] : start[0] + 64], b)


def second_tile(start: Any) -> Any:
    return np.full_like(start, 64)


@covers(
    "pl.multiple_of",
    looks=[ptx(r"wgmma\.mma_async")],
    given={"start": second_tile},
)
@pallasc.kernel(args=WINDOW, targets=HOPPER, reference=product_of_a_tile, tolerance=NEAR)
def window_of_whole_tiles(start: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
    return product_of_a_window(start, a, b, 64)


@covers(
    "pl.multiple_of",
    gaps=dict.fromkeys(
        ("0.10", "0.12"),
        "Failed to infer a possible set of layouts. This should only happen if user-provided "
        "layout casts are unsatisfiable.",
    ),
    note="without it",
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
        out_type=jax.ShapeDtypeStruct((64, 128), jnp.float32),
        scratch_types=[plgpu.SMEM((64, 128), jnp.float32), plgpu.Barrier()],
    )(x)


def second_half(x: Any) -> Any:
    return x[64:128]


@covers(
    "pl.dslice",
    looks=[
        plan("a box of 64 rows", lambda plan: {m.box for m in maps(plan)} == {(128, 64)}),
    ],
)
@pallasc.kernel(args={"x": "f32[128, 128]"}, targets=SINCE_HOPPER, reference=second_half)
def window_by_dslice(x: jax.Array) -> jax.Array:
    return window(x, pl.dslice(64, 64))


@covers("pl.Slice", looks=[same_artifact("window_by_dslice")])
@pallasc.kernel(args={"x": "f32[128, 128]"}, targets=SINCE_HOPPER, reference=second_half)
def window_by_slice(x: jax.Array) -> jax.Array:
    return window(x, pl.Slice(64, 64))


def first_half(x: Any) -> Any:
    return x[:64]


def is_another(own: Any, other: Any) -> bool:
    return bool(own.artifact.digest != other.artifact.digest)


@covers("pl.dslice", looks=[compared("another artifact than", is_another, to="window_by_dslice")])
@pallasc.kernel(args={"x": "f32[128, 128]"}, targets=SINCE_HOPPER, reference=first_half)
def window_without_a_stride(x: jax.Array) -> jax.Array:
    return window(x, pl.dslice(0, 64))


def every_second_row(x: Any) -> Any:
    return x[::2]


@covers(
    "pl.dslice",
    "pl.Slice",
    looks=[
        faulty(
            compared("another artifact than", is_another, to="window_without_a_stride"),
            does=STRIDE.does,
        )
    ],
    gaps={"0.10": "Strided slices not implemented"},
    emulated="result 0 differs by …",
    note="the interpreter takes every second row, as it should",
)
@pallasc.kernel(args={"x": "f32[128, 128]"}, targets=SINCE_HOPPER, reference=every_second_row)
def window_with_a_stride(x: jax.Array) -> jax.Array:
    return window(x, pl.dslice(0, 64, 2))
