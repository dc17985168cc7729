"""Copies between global and shared memory, and all their keywords."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from architectures import BEFORE_HOPPER, SINCE_BLACKWELL, SINCE_HOPPER, TENSOR_MEMORY
from covering import compared, covers, kernel, plan, sass
from forms import array, like, load, maps, no_argument, plus_one, same, smem_bytes
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallasc


@covers(
    [
        "plgpu.copy_gmem_to_smem",
        "plgpu.copy_smem_to_gmem",
        "plgpu.wait_smem_to_gmem",
        "plgpu.commit_smem",
        "plgpu.Barrier",
        "plgpu.barrier_wait",
        "plgpu.SMEM",
    ],
    looks=[
        r"cp\.async\.bulk\.tensor\.2d\.shared::(cluster|cta)\.global",
        r"cp\.async\.bulk\.tensor\.2d\.global\.shared::cta\.bulk_group",
        r"cp\.async\.bulk\.wait_group\s+0",
        r"fence\.proxy\.async",
        r"mbarrier\.init",
        sass(r"UTMALDG\.2D"),
        plan("two tensor maps", lambda plan: len(maps(plan)) == 2),
    ],
    expected=plus_one,
)
@kernel(
    {"x": "f32[64, 256]"},
    SINCE_HOPPER,
    scratch=[
        plgpu.SMEM((64, 128), jnp.float32),
        plgpu.SMEM((64, 128), jnp.float32),
        plgpu.Barrier(),
    ],
    grid=(2,),
    grid_names=("n",),
)
def copies_of_tiles(x_gmem: Any, out_gmem: Any, x_smem: Any, out_smem: Any, loaded: Any) -> None:
    columns = pl.ds(lax.axis_index("n") * 128, 128)
    plgpu.copy_gmem_to_smem(x_gmem.at[:, columns], x_smem, loaded)
    plgpu.barrier_wait(loaded)
    out_smem[...] = x_smem[...] + 1
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(out_smem, out_gmem.at[:, columns])
    plgpu.wait_smem_to_gmem(0)


@covers(
    ["plgpu.copy_gmem_to_smem", "plgpu.GMEM", "plgpu.MemorySpace"],
    looks=[
        r"cp\.async\.bulk\.global\.shared::cta\.bulk_group",
        plan("64 KiB of shared memory", lambda plan: smem_bytes(plan) >= 2 * 64 * 128 * 4),
    ],
    expected=plus_one,
)
@kernel(
    {"x": "f32[64, 128]"},
    SINCE_HOPPER,
    scratch=[
        plgpu.MemorySpace.SMEM((64, 128), jnp.float32),
        plgpu.MemorySpace.SMEM((64, 128), jnp.float32),
        plgpu.Barrier(),
    ],
)
def copies_of_whole_arrays(
    x_gmem: Any, out_gmem: Any, x_smem: Any, out_smem: Any, loaded: Any
) -> None:
    assert jax.typeof(x_gmem).memory_space is plgpu.GMEM
    plgpu.copy_gmem_to_smem(x_gmem, x_smem, loaded)
    plgpu.barrier_wait(loaded)
    out_smem[...] = x_smem[...] + 1
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(out_smem, out_gmem)
    plgpu.wait_smem_to_gmem(0)


@covers(
    ["plgpu.copy_gmem_to_smem", "plgpu.wait_gmem_to_smem"],
    looks=[r"cp\.async\.c[ag]\.shared\.global", r"cp\.async\.wait_group\s+0"],
    gaps={"0.10": "copy_gmem_to_smem() missing 1 required positional argument: 'barrier'"},
    expected=same,
)
@kernel({"x": "f32[128, 128]"}, BEFORE_HOPPER, scratch=[plgpu.SMEM((128, 128), jnp.float32)])
def copies_before_hopper(x_gmem: Any, out_gmem: Any, x_smem: Any) -> None:
    mode = plgpu.OOBFillMode.PROMISE_IN_BOUNDS
    plgpu.copy_gmem_to_smem(x_gmem, x_smem, oob_mode=mode)
    plgpu.wait_gmem_to_smem(0)
    out_gmem[...] = x_smem[...]


@covers(
    "plgpu.commit_smem_to_gmem_group",
    looks=[r"(?s)(cp\.async\.bulk\.global.*){2}cp\.async\.bulk\.commit_group"],
    expected=same,
)
@kernel({"x": "f32[2, 128]"}, SINCE_HOPPER, scratch=[plgpu.SMEM((2, 128), jnp.float32)])
def copies_in_one_group(x_gmem: Any, out_gmem: Any, smem: Any) -> None:
    smem[0] = x_gmem[0]
    smem[1] = x_gmem[1]
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(smem.at[0], out_gmem.at[0], commit_group=False)
    plgpu.copy_smem_to_gmem(smem.at[1], out_gmem.at[1], commit_group=False)
    plgpu.commit_smem_to_gmem_group()
    plgpu.wait_smem_to_gmem(0)


@covers(
    "plgpu.copy_smem_to_gmem",
    looks=[r"cp\.reduce\.async\.bulk\S*\.add"],
    zeroed=True,
    expected=same,
)
@kernel({"x": "f32[64, 64]"}, SINCE_HOPPER, scratch=[plgpu.SMEM((64, 64), jnp.float32)])
def copy_that_adds(x_gmem: Any, out_gmem: Any, smem: Any) -> None:
    smem[...] = x_gmem[...]
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(smem, out_gmem, reduction_op="add")
    plgpu.wait_smem_to_gmem(0)


@covers(
    "plgpu.async_prefetch",
    looks=[r"cp\.async\.bulk\.prefetch\.tensor\.2d\.L2\.global"],
    expected=same,
)
@kernel({"x": "f32[128, 128]"}, SINCE_HOPPER)
def prefetch(x_gmem: Any, out_gmem: Any) -> None:
    plgpu.async_prefetch(x_gmem.at[:64, :64])
    out_gmem[...] = x_gmem[...]


@covers(
    ["plgpu.kernel(cluster)", "plgpu.kernel(cluster_names)", "plgpu.copy_gmem_to_smem"],
    looks=[
        r"cp\.async\.bulk\.tensor\.2d\.shared::cluster\.global.*multicast::cluster",
        plan("a cluster of 2", lambda plan: plan.launches[0].cluster == (2, 1, 1)),
    ],
    fetches=64 * 32 * 4 // 2,
    expected=lambda x: np.stack([x[:, :32]] * 2),
)
@kernel(
    {"x": "f32[64, 64]"},
    SINCE_HOPPER,
    out_type=array(2, 64, 32),
    scratch=[plgpu.SMEM((64, 32), jnp.float32), plgpu.Barrier()],
    cluster=(2,),
)
def multicast_copy(x_gmem: Any, out_gmem: Any, x_smem: Any, loaded: Any) -> None:
    plgpu.copy_gmem_to_smem(x_gmem.at[:, pl.ds(0, 32)], x_smem, loaded, collective_axes="c")
    plgpu.barrier_wait(loaded)
    plgpu.copy_smem_to_gmem(x_smem, out_gmem.at[lax.axis_index("c")])
    plgpu.wait_smem_to_gmem(0)


@covers(
    "plgpu.CopyPartition",
    looks=[
        r"cp\.async\.bulk\.tensor\.2d.*\.cta_group::2",
        plan("a cluster of 2", lambda plan: plan.launches[0].cluster == (2, 1, 1)),
    ],
    expected=same,
)
@kernel(
    {"x": "f16[256, 64]"},
    TENSOR_MEMORY,
    scratch=[
        plgpu.SMEM((128, 64), jnp.float16),
        plgpu.Barrier(),
        plgpu.ClusterBarrier(collective_axes=("c",)),
    ],
    cluster=(2,),
)
def partitioned_copy(x_gmem: Any, out_gmem: Any, x_smem: Any, loaded: Any, everywhere: Any) -> None:
    block = lax.axis_index("c")
    plgpu.copy_gmem_to_smem(
        x_gmem,
        x_smem,
        loaded,
        collective_axes="c",
        leader_tracked=plgpu.CopyPartition.PARTITIONED(0),
    )

    @pl.when(block == 0)
    def wait_for_both() -> None:
        plgpu.barrier_wait(loaded)

    plgpu.barrier_arrive(everywhere)
    plgpu.barrier_wait(everywhere)
    plgpu.copy_smem_to_gmem(x_smem, out_gmem.at[pl.ds(block * 128, 128)])
    plgpu.wait_smem_to_gmem(0)


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


@covers("plgpu.copy_smem_to_gmem", looks=[r"cp\.async\.bulk\.global\.shared::cta"], expected=same)
@pallasc.kernel(args={"x": "f32[2, 128]"}, targets=SINCE_HOPPER)
def copy_of_every_row(x: jax.Array) -> jax.Array:
    return stored(x, second_only=False)


def more_conditions(own: Any, other: Any) -> bool:
    return bool(own.ptx.count("setp.") > other.ptx.count("setp."))


# `predicate`.
@covers(
    "plgpu.copy_smem_to_gmem",
    looks=[compared("more `setp` in PTX than", more_conditions, to="copy_of_every_row")],
    zeroed=True,
    expected=lambda x: np.stack([np.zeros_like(x[0]), x[1]]),
)
@pallasc.kernel(args={"x": "f32[2, 128]"}, targets=SINCE_HOPPER)
def copy_of_one_row(x: jax.Array) -> jax.Array:
    return stored(x, second_only=True)


# `predicate`.
@covers(
    ["plgpu.copy_gmem_to_smem", "plgpu.barrier_arrive"],
    looks=[compared("more `setp` in PTX than", more_conditions, to="copies_of_whole_arrays")],
    gaps=no_argument("copy_gmem_to_smem", "predicate"),
    given={"x": np.abs},
    expected=same,
)
@kernel(
    {"x": "f32[64, 128]"},
    SINCE_HOPPER,
    scratch=[plgpu.SMEM((64, 128), jnp.float32), plgpu.Barrier()],
)
def loads_under_a_condition(x_gmem: Any, out_gmem: Any, smem: Any, loaded: Any) -> None:
    even = x_gmem[0, 0] > 0
    plgpu.copy_gmem_to_smem(x_gmem, smem, loaded, predicate=even)
    plgpu.barrier_arrive(loaded, predicate=jnp.logical_not(even))
    plgpu.barrier_wait(loaded)
    out_gmem[...] = smem[...]


# Rows that an array names.
@covers(
    ["plgpu.copy_gmem_to_smem", "plgpu.Layout"],
    looks=[
        r"cp\.async\.bulk\.tensor\.2d\.\S*tile::gather4",
        plan("a tensor map of single rows", lambda plan: maps(plan)[0].box[1] == 1),
    ],
    expected=lambda x, rows: x[rows],
)
@kernel(
    {"x": "f32[64, 128]", "rows": "u32[16]"},
    SINCE_BLACKWELL,
    out_type=array(16, 128),
    scratch=[plgpu.SMEM((16, 128), jnp.float32), plgpu.Barrier()],
)
def gathered_rows(x_gmem: Any, rows_gmem: Any, out_gmem: Any, smem: Any, loaded: Any) -> None:
    numbers = load(rows_gmem, layout=plgpu.Layout.TMA_INDICES, optimized=False)
    plgpu.copy_gmem_to_smem(x_gmem.at[numbers], smem, loaded)
    plgpu.barrier_wait(loaded)
    out_gmem[...] = smem[...]


# `predicate`.
@covers(
    "plgpu.async_prefetch",
    looks=[
        r"cp\.async\.bulk\.prefetch\.tensor\.2d\.L2\.global",
        compared("more `setp` in PTX than", more_conditions, to="prefetch"),
    ],
    gaps=no_argument("async_prefetch", "predicate"),
    expected=same,
)
@kernel({"x": "f32[128, 128]"}, SINCE_HOPPER)
def prefetch_under_a_condition(x_gmem: Any, out_gmem: Any) -> None:
    plgpu.async_prefetch(x_gmem.at[:64, :64], predicate=x_gmem[0, 0] > 0)
    out_gmem[...] = x_gmem[...]


def scattered(x: Any, rows: Any) -> Any:
    out = np.zeros((64, 128), np.float32)
    out[rows] = x
    return out


def different_rows(rows: Any) -> Any:
    return (np.arange(rows.size) * 5 % 64).astype(rows.dtype)


# Rows that an array names.
@covers(
    ["plgpu.copy_smem_to_gmem", "plgpu.Layout"],
    looks=[r"cp\.async\.bulk\.tensor\.2d\.\S*tile::scatter4"],
    gaps={
        arch: f"Feature '.tile::scatter4' not supported on .target '{arch}'"
        for arch in ("sm_120a", "sm_121a")
    },
    zeroed=True,
    given={"rows": different_rows},
    expected=scattered,
)
@kernel(
    {"x": "f32[16, 128]", "rows": "u32[16]"},
    SINCE_BLACKWELL,
    out_type=array(64, 128),
    scratch=[plgpu.SMEM((16, 128), jnp.float32)],
)
def scattered_rows(x_gmem: Any, rows_gmem: Any, out_gmem: Any, smem: Any) -> None:
    numbers = load(rows_gmem, layout=plgpu.Layout.TMA_INDICES, optimized=False)
    smem[...] = x_gmem[...]
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(smem, out_gmem.at[numbers])
    plgpu.wait_smem_to_gmem(0)


# `optimized`.
@covers(
    "plgpu.atomic_add",
    looks=[r"(red|atom)\.\S*add\.f32"],
    gaps=no_argument("atomic_add", "optimized"),
    zeroed=True,
    expected=same,
)
@kernel({"x": "f32[64, 64]"})
def unoptimized_atomic_add(x_gmem: Any, out_gmem: Any) -> None:
    value = load(x_gmem, layout=plgpu.Layout.WGMMA, optimized=False)
    plgpu.atomic_add(out_gmem, value, optimized=False)
