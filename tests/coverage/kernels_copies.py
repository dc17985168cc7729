"""Copies between global and shared memory, what they may be asked, and views of references."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from architectures import BEFORE_HOPPER, SINCE_HOPPER, TENSOR_MEMORY
from covering import covers, plan, ptx, sass
from forms import like, maps, plus_one, same, smem_bytes
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallasc


@covers(
    "plgpu.copy_gmem_to_smem",
    "plgpu.copy_smem_to_gmem",
    "plgpu.wait_smem_to_gmem",
    "plgpu.commit_smem",
    "plgpu.Barrier",
    "plgpu.barrier_wait",
    "plgpu.SMEM",
    looks=[
        ptx(
            r"cp\.async\.bulk\.tensor\.2d\.shared::(cluster|cta)\.global",
            says="cp.async.bulk.tensor.2d.shared….global",
        ),
        ptx(r"cp\.async\.bulk\.tensor\.2d\.global\.shared::cta\.bulk_group"),
        ptx(r"cp\.async\.bulk\.wait_group\s+0"),
        ptx(r"fence\.proxy\.async"),
        ptx(r"mbarrier\.init"),
        sass(r"UTMALDG\.2D"),
        plan("two tensor maps", lambda plan: len(maps(plan)) == 2),
    ],
)
@pallasc.kernel(args={"x": "f32[64, 256]"}, targets=SINCE_HOPPER, reference=plus_one)
def copies_of_tiles(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, x_smem: Any, out_smem: Any, loaded: Any) -> None:
        columns = pl.ds(lax.axis_index("n") * 128, 128)
        plgpu.copy_gmem_to_smem(x_gmem.at[:, columns], x_smem, loaded)
        plgpu.barrier_wait(loaded)
        out_smem[...] = x_smem[...] + 1
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(out_smem, out_gmem.at[:, columns])
        plgpu.wait_smem_to_gmem(0)

    tile = plgpu.SMEM((64, 128), jnp.float32)
    scratch = [tile, tile, plgpu.Barrier()]
    return plgpu.kernel(
        body, out_type=like(x), scratch_types=scratch, grid=(2,), grid_names=("n",)
    )(x)


@covers(
    "plgpu.copy_gmem_to_smem",
    "plgpu.GMEM",
    "plgpu.MemorySpace",
    looks=[
        ptx(r"cp\.async\.bulk\.global\.shared::cta\.bulk_group"),
        plan("64 KiB of shared memory", lambda plan: smem_bytes(plan) >= 2 * 64 * 128 * 4),
    ],
)
@pallasc.kernel(args={"x": "f32[64, 128]"}, targets=SINCE_HOPPER, reference=plus_one)
def copies_of_whole_arrays(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, x_smem: Any, out_smem: Any, loaded: Any) -> None:
        assert jax.typeof(x_gmem).memory_space is plgpu.GMEM
        plgpu.copy_gmem_to_smem(x_gmem, x_smem, loaded)
        plgpu.barrier_wait(loaded)
        out_smem[...] = x_smem[...] + 1
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(out_smem, out_gmem)
        plgpu.wait_smem_to_gmem(0)

    tile = plgpu.MemorySpace.SMEM((64, 128), jnp.float32)
    return plgpu.kernel(body, out_type=like(x), scratch_types=[tile, tile, plgpu.Barrier()])(x)


@covers(
    "plgpu.copy_gmem_to_smem",
    "plgpu.wait_gmem_to_smem",
    looks=[
        ptx(r"cp\.async\.c[ag]\.shared\.global", says="cp.async.cg.shared.global"),
        ptx(r"cp\.async\.wait_group\s+0"),
    ],
    gaps={"0.10": "copy_gmem_to_smem() missing 1 required positional argument: 'barrier'"},
    uninterpreted={"0.12": "Interpret mode does not support copy_gmem_to_smem without a barrier."},
)
@pallasc.kernel(args={"x": "f32[128, 128]"}, targets=BEFORE_HOPPER, reference=same)
def copies_before_hopper(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, x_smem: Any) -> None:
        mode = plgpu.OOBFillMode.PROMISE_IN_BOUNDS
        plgpu.copy_gmem_to_smem(x_gmem, x_smem, oob_mode=mode)
        plgpu.wait_gmem_to_smem(0)
        out_gmem[...] = x_smem[...]

    scratch = [plgpu.SMEM((128, 128), jnp.float32)]
    return plgpu.kernel(body, out_type=like(x), scratch_types=scratch)(x)


@covers("plgpu.wait_smem_to_gmem", looks=[ptx(r"cp\.async\.bulk\.wait_group\.read\s+1")])
@pallasc.kernel(args={"x": "f32[2, 128]"}, targets=SINCE_HOPPER, reference=same)
def waits_for_reads_only(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, smem: Any) -> None:
        smem[0] = x_gmem[0]
        smem[1] = x_gmem[1]
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(smem.at[0], out_gmem.at[0])
        plgpu.copy_smem_to_gmem(smem.at[1], out_gmem.at[1])
        plgpu.wait_smem_to_gmem(1, wait_read_only=True)
        plgpu.wait_smem_to_gmem(0)

    scratch = [plgpu.SMEM((2, 128), jnp.float32)]
    return plgpu.kernel(body, out_type=like(x), scratch_types=scratch)(x)


@covers(
    "plgpu.commit_smem_to_gmem_group",
    looks=[
        ptx(
            r"(?s)(cp\.async\.bulk\.global.*){2}cp\.async\.bulk\.commit_group",
            says="cp.async.bulk.global twice, then commit_group",
        )
    ],
)
@pallasc.kernel(args={"x": "f32[2, 128]"}, targets=SINCE_HOPPER, reference=same)
def copies_in_one_group(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, smem: Any) -> None:
        smem[0] = x_gmem[0]
        smem[1] = x_gmem[1]
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(smem.at[0], out_gmem.at[0], commit_group=False)
        plgpu.copy_smem_to_gmem(smem.at[1], out_gmem.at[1], commit_group=False)
        plgpu.commit_smem_to_gmem_group()
        plgpu.wait_smem_to_gmem(0)

    scratch = [plgpu.SMEM((2, 128), jnp.float32)]
    return plgpu.kernel(body, out_type=like(x), scratch_types=scratch)(x)


@covers(
    "plgpu.copy_smem_to_gmem",
    looks=[ptx(r"cp\.reduce\.async\.bulk\S*\.add", says="cp.reduce.async.bulk….add")],
    uninterpreted="reduction_op not supported",
    zeroed=True,
    gives=same,
)
@pallasc.kernel(args={"x": "f32[64, 64]"}, targets=SINCE_HOPPER)
def copy_that_adds(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, smem: Any) -> None:
        smem[...] = x_gmem[...]
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(smem, out_gmem, reduction_op="add")
        plgpu.wait_smem_to_gmem(0)

    scratch = [plgpu.SMEM((64, 64), jnp.float32)]
    return plgpu.kernel(body, out_type=like(x), scratch_types=scratch)(x)


@covers(
    "plgpu.async_prefetch",
    looks=[ptx(r"cp\.async\.bulk\.prefetch\.tensor\.2d\.L2\.global")],
    uninterpreted={"0.10": "ref must be a reference"},
)
@pallasc.kernel(args={"x": "f32[128, 128]"}, targets=SINCE_HOPPER, reference=same)
def prefetch(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        plgpu.async_prefetch(x_gmem.at[:64, :64])
        out_gmem[...] = x_gmem[...]

    return plgpu.kernel(body, out_type=like(x))(x)


def first_columns(x: Any) -> Any:
    return np.stack([x[:, :32]] * 2)


@covers(
    "plgpu.kernel(cluster)",
    "plgpu.kernel(cluster_names)",
    "plgpu.copy_gmem_to_smem",
    looks=[
        ptx(r"cp\.async\.bulk\.tensor\.2d\.shared::cluster\.global.*multicast::cluster"),
        plan("a cluster of 2", lambda plan: plan.launches[0].cluster == (2, 1, 1)),
    ],
    fetches=64 * 32 * 4 // 2,
)
@pallasc.kernel(args={"x": "f32[64, 64]"}, targets=SINCE_HOPPER, reference=first_columns)
def multicast_copy(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, x_smem: Any, loaded: Any) -> None:
        plgpu.copy_gmem_to_smem(x_gmem.at[:, pl.ds(0, 32)], x_smem, loaded, collective_axes="c")
        plgpu.barrier_wait(loaded)
        plgpu.copy_smem_to_gmem(x_smem, out_gmem.at[lax.axis_index("c")])
        plgpu.wait_smem_to_gmem(0)

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((2, 64, 32), jnp.float32),
        scratch_types=[plgpu.SMEM((64, 32), jnp.float32), plgpu.Barrier()],
        cluster=(2,),
        cluster_names=("c",),
    )(x)


@covers(
    "plgpu.CopyPartition",
    looks=[
        ptx(r"cp\.async\.bulk\.tensor\.2d.*\.cta_group::2"),
        plan("a cluster of 2", lambda plan: plan.launches[0].cluster == (2, 1, 1)),
    ],
    uninterpreted={"0.10": "nan + cluster_barrier", "0.12": "RACE DETECTED"},
)
@pallasc.kernel(args={"x": "f16[256, 64]"}, targets=TENSOR_MEMORY, reference=same)
def partitioned_copy(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, x_smem: Any, loaded: Any, everywhere: Any) -> None:
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

    return plgpu.kernel(
        body,
        out_type=like(x),
        scratch_types=[
            plgpu.SMEM((128, 64), jnp.float16),
            plgpu.Barrier(),
            plgpu.ClusterBarrier(collective_axes=("c",)),
        ],
        cluster=(2,),
        cluster_names=("c",),
    )(x)
