"""Keyword arguments of copies, barriers and semaphores that other files leave as they are."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from architectures import EVERYWHERE, SINCE_BLACKWELL, SINCE_HOPPER
from covering import compared, covers, no_ptx, plan, ptx
from forms import NO_LAYOUTS, NO_SEMAPHORES, like, load, maps, no_argument, same, unfenced
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallasc

NO_ROWS = NO_LAYOUTS | {"0.12": "Only scalar arrays can be converted to Python scalars"}
NO_CONDITIONS = "predicate not supported"


@covers(
    "plgpu.Barrier",
    looks=[ptx(r"(?s)(mbarrier\.init.*){2}", says="mbarrier.init twice")],
    note="`num_barriers`",
)
@pallasc.kernel(args={"x": "f32[2, 64, 32]"}, targets=SINCE_HOPPER, reference=same)
def two_barriers(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, smem: Any, loaded: Any) -> None:
        for number in range(2):
            plgpu.copy_gmem_to_smem(x_gmem.at[number], smem.at[number], loaded.at[number])
        for number in range(2):
            plgpu.barrier_wait(loaded.at[number])
            out_gmem[number] = smem[number]

    scratch = [plgpu.SMEM(x.shape, jnp.float32), plgpu.Barrier(num_barriers=2)]
    return plgpu.kernel(body, out_type=like(x), scratch_types=scratch)(x)


def stored(x: jax.Array, *, second_only: bool) -> jax.Array:
    """Return `x` by way of shared memory, or its second row alone."""

    def body(x_gmem: Any, out_gmem: Any, smem: Any) -> None:
        row = lax.axis_index("i")
        smem[...] = x_gmem[row]
        plgpu.commit_smem()
        condition = row == 1 if second_only else None
        plgpu.copy_smem_to_gmem(smem, out_gmem.at[row], predicate=condition)
        plgpu.wait_smem_to_gmem(0)

    scratch = [plgpu.SMEM((128,), jnp.float32)]
    return plgpu.kernel(
        body, out_type=like(x), scratch_types=scratch, grid=(2,), grid_names=("i",)
    )(x)


@covers("plgpu.copy_smem_to_gmem", looks=[ptx(r"cp\.async\.bulk\.global\.shared::cta")])
@pallasc.kernel(args={"x": "f32[2, 128]"}, targets=SINCE_HOPPER, reference=same)
def copy_of_every_row(x: jax.Array) -> jax.Array:
    return stored(x, second_only=False)


def more_conditions(own: Any, other: Any) -> bool:
    return bool(own.ptx.count("setp.") > other.ptx.count("setp."))


def second_row(x: Any) -> Any:
    return np.stack([np.zeros_like(x[0]), x[1]])


@covers(
    "plgpu.copy_smem_to_gmem",
    looks=[compared("more `setp` in PTX than", more_conditions, to="copy_of_every_row")],
    uninterpreted=NO_CONDITIONS,
    note="`predicate`",
    zeroed=True,
    gives=second_row,
)
@pallasc.kernel(args={"x": "f32[2, 128]"}, targets=SINCE_HOPPER)
def copy_of_one_row(x: jax.Array) -> jax.Array:
    return stored(x, second_only=True)


@covers(
    "plgpu.copy_gmem_to_smem",
    "plgpu.barrier_arrive",
    looks=[compared("more `setp` in PTX than", more_conditions, to="copies_of_whole_arrays")],
    gaps=no_argument("copy_gmem_to_smem", "predicate"),
    uninterpreted={"0.12": "Too many leaves for PyTreeDef; expected 0."},
    note="`predicate`",
    gives=same,
    given={"x": np.abs},
)
@pallasc.kernel(args={"x": "f32[64, 128]"}, targets=SINCE_HOPPER)
def loads_under_a_condition(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, smem: Any, loaded: Any) -> None:
        even = x_gmem[0, 0] > 0
        plgpu.copy_gmem_to_smem(x_gmem, smem, loaded, predicate=even)
        plgpu.barrier_arrive(loaded, predicate=jnp.logical_not(even))
        plgpu.barrier_wait(loaded)
        out_gmem[...] = smem[...]

    scratch = [plgpu.SMEM((64, 128), jnp.float32), plgpu.Barrier()]
    return plgpu.kernel(body, out_type=like(x), scratch_types=scratch)(x)


def chosen(x: Any, rows: Any) -> Any:
    return x[rows]


@covers(
    "plgpu.copy_gmem_to_smem",
    "plgpu.Layout",
    looks=[
        ptx(r"cp\.async\.bulk\.tensor\.2d\.\S*tile::gather4"),
        plan("a tensor map of single rows", lambda plan: maps(plan)[0].box[1] == 1),
    ],
    uninterpreted=NO_ROWS,
    note="rows that an array names",
)
@pallasc.kernel(
    args={"x": "f32[64, 128]", "rows": "u32[16]"}, targets=SINCE_BLACKWELL, reference=chosen
)
def gathered_rows(x: jax.Array, rows: jax.Array) -> jax.Array:
    def body(x_gmem: Any, rows_gmem: Any, out_gmem: Any, smem: Any, loaded: Any) -> None:
        numbers = load(rows_gmem, layout=plgpu.Layout.TMA_INDICES, optimized=False)
        plgpu.copy_gmem_to_smem(x_gmem.at[numbers], smem, loaded)
        plgpu.barrier_wait(loaded)
        out_gmem[...] = smem[...]

    out = jax.ShapeDtypeStruct((16, 128), jnp.float32)
    scratch = [plgpu.SMEM((16, 128), jnp.float32), plgpu.Barrier()]
    return plgpu.kernel(body, out_type=out, scratch_types=scratch)(x, rows)


def positive(x: Any) -> Any:
    return np.maximum(x, 0)


@covers(
    "plgpu.copy_smem_to_gmem",
    looks=[ptx(r"cp\.reduce\.async\.bulk\S*\.max", says="cp.reduce.async.bulk….max")],
    uninterpreted="reduction_op not supported",
    note="`reduction_op`",
    zeroed=True,
    gives=positive,
)
@pallasc.kernel(args={"x": "f16[64, 64]"}, targets=SINCE_HOPPER)
def copy_that_compares(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, smem: Any) -> None:
        smem[...] = x_gmem[...]
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(smem, out_gmem, reduction_op="max")
        plgpu.wait_smem_to_gmem(0)

    scratch = [plgpu.SMEM((64, 64), jnp.float16)]
    return plgpu.kernel(body, out_type=like(x), scratch_types=scratch)(x)


@covers(
    "plgpu.async_prefetch",
    looks=[
        ptx(r"cp\.async\.bulk\.prefetch\.tensor\.2d\.L2\.global"),
        compared("more `setp` in PTX than", more_conditions, to="prefetch"),
    ],
    gaps=no_argument("async_prefetch", "predicate"),
    note="`predicate`",
)
@pallasc.kernel(args={"x": "f32[128, 128]"}, targets=SINCE_HOPPER, reference=same)
def prefetch_under_a_condition(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        plgpu.async_prefetch(x_gmem.at[:64, :64], predicate=x_gmem[0, 0] > 0)
        out_gmem[...] = x_gmem[...]

    return plgpu.kernel(body, out_type=like(x))(x)


@covers(
    "plgpu.semaphore_wait",
    "pl.semaphore_wait",
    looks=[
        ptx(r"ld\.(relaxed|acquire)\.sys", says="ld.relaxed.sys/ld.acquire.sys"),
        no_ptx(r"atom\.\S*cas"),
    ],
    gaps=unfenced(),
    uninterpreted=NO_SEMAPHORES,
    note="`decrement`",
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, reference=same)
def semaphore_left_as_it_is(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, semaphore: Any) -> None:
        plgpu.semaphore_signal(semaphore, 2)
        plgpu.semaphore_wait(semaphore, 1, decrement=False)
        pl.semaphore_wait(semaphore, 2, decrement=False)
        out_gmem[...] = x_gmem[...]

    scratch = [plgpu.SemaphoreType.REGULAR(())]
    return plgpu.kernel(body, out_type=like(x), scratch_types=scratch)(x)


def scattered(x: Any, rows: Any) -> Any:
    out = np.zeros((64, 128), np.float32)
    out[rows] = x
    return out


def different_rows(rows: Any) -> Any:
    return (np.arange(rows.size) * 5 % 64).astype(rows.dtype)


@covers(
    "plgpu.copy_smem_to_gmem",
    "plgpu.Layout",
    looks=[ptx(r"cp\.async\.bulk\.tensor\.2d\.\S*tile::scatter4")],
    gaps={
        arch: f"Feature '.tile::scatter4' not supported on .target '{arch}'"
        for arch in ("sm_120a", "sm_121a")
    },
    uninterpreted=NO_ROWS,
    note="rows that an array names",
    zeroed=True,
    gives=scattered,
    given={"rows": different_rows},
)
@pallasc.kernel(args={"x": "f32[16, 128]", "rows": "u32[16]"}, targets=SINCE_BLACKWELL)
def scattered_rows(x: jax.Array, rows: jax.Array) -> jax.Array:
    def body(x_gmem: Any, rows_gmem: Any, out_gmem: Any, smem: Any) -> None:
        numbers = load(rows_gmem, layout=plgpu.Layout.TMA_INDICES, optimized=False)
        smem[...] = x_gmem[...]
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(smem, out_gmem.at[numbers])
        plgpu.wait_smem_to_gmem(0)

    out = jax.ShapeDtypeStruct((64, 128), jnp.float32)
    scratch = [plgpu.SMEM((16, 128), jnp.float32)]
    return plgpu.kernel(body, out_type=out, scratch_types=scratch)(x, rows)


@covers(
    "plgpu.atomic_add",
    looks=[ptx(r"(red|atom)\.\S*add\.f32", says="red….add.f32")],
    gaps=no_argument("atomic_add", "optimized"),
    uninterpreted="Invalid shape for `swap`.",
    note="`optimized`",
    zeroed=True,
    gives=same,
)
@pallasc.kernel(args={"x": "f32[64, 64]"}, targets=EVERYWHERE)
def unoptimized_atomic_add(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        value = load(x_gmem, layout=plgpu.Layout.WGMMA, optimized=False)
        plgpu.atomic_add(out_gmem, value, optimized=False)

    return plgpu.kernel(body, out_type=like(x))(x)
