"""Warpgroups, warps, barriers, clusters, semaphores and the order of work."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from architectures import SINCE_HOPPER
from covering import covers, plan, ptx, sass
from forms import absent, exchanged, lane, like, plus_one, same, vector
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallasc


@covers(
    "plgpu.kernel(num_threads)",
    "plgpu.kernel(thread_name)",
    "plgpu.barrier_arrive",
    "plgpu.barrier_wait",
    "plgpu.Barrier",
    looks=[
        plan("256 threads", lambda plan: plan.launches[0].block == (256, 1, 1)),
        ptx(r"mbarrier\.arrive"),
        ptx(r"mbarrier\.try_wait"),
    ],
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=SINCE_HOPPER, reference=plus_one)
def two_threads(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, smem: Any, ready: Any) -> None:
        thread = lax.axis_index("wg")

        @pl.when(thread == 0)
        def produce() -> None:
            smem[...] = x_gmem[...] + 1
            plgpu.barrier_arrive(ready)

        @pl.when(thread == 1)
        def consume() -> None:
            plgpu.barrier_wait(ready)
            out_gmem[...] = smem[...]

    return plgpu.kernel(
        body,
        out_type=like(x),
        scratch_types=[plgpu.SMEM((128,), jnp.float32), plgpu.Barrier()],
        num_threads=2,
        thread_name="wg",
    )(x)


@covers(
    "plgpu.barrier_arrive_and_wait",
    looks=[ptx(r"mbarrier\.arrive"), ptx(r"mbarrier\.try_wait")],
    gaps=absent("barrier_arrive_and_wait"),
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=SINCE_HOPPER, reference=same)
def arrive_and_wait(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, smem: Any, both: Any) -> None:
        @pl.when(lax.axis_index("wg") == 0)
        def produce() -> None:
            smem[...] = x_gmem[...]

        plgpu.barrier_arrive_and_wait(both)

        @pl.when(lax.axis_index("wg") == 1)
        def consume() -> None:
            out_gmem[...] = smem[...]

    return plgpu.kernel(
        body,
        out_type=like(x),
        scratch_types=[plgpu.SMEM((128,), jnp.float32), plgpu.Barrier(num_arrivals=2)],
        num_threads=2,
        thread_name="wg",
    )(x)


def seen_or_not(x: Any) -> Any:
    return x, np.zeros((1,), np.int32)


@covers(
    "plgpu.warp_map",
    "plgpu.WarpMesh",
    "plgpu.barrier_test",
    looks=[ptx(r"mbarrier\.test_wait"), ptx(r"shfl\.sync|elect\.sync")],
    uninterpreted={
        "0.10": "Higher-order primitive core_map",
        "0.12": "barrier must be a reference",
    },
    gives=seen_or_not,
    undefined={1: "the copy may have ended by then, or not"},
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=SINCE_HOPPER)
def warps(x: jax.Array) -> Any:
    def body(x_gmem: Any, out_gmem: Any, seen_gmem: Any, smem: Any, loaded: Any) -> None:
        @plgpu.warp_map
        def per_warp(warp: jax.Array) -> None:
            @pl.when(warp == 0)
            def copy() -> None:
                plgpu.copy_gmem_to_smem(x_gmem, smem, loaded)

            @pl.when(warp == 1)
            def look() -> None:
                seen_gmem[0] = plgpu.barrier_test(loaded).astype(jnp.int32)

        plgpu.barrier_wait(loaded)
        out_gmem[...] = smem[...]

    return plgpu.kernel(
        body,
        out_type=(like(x), vector(1, jnp.int32)),
        scratch_types=[plgpu.SMEM((128,), jnp.float32), plgpu.Barrier()],
    )(x)


def neighbours(x: Any) -> Any:
    return x[::-1]


@covers(
    "plgpu.ClusterBarrier",
    "plgpu.cluster_ref",
    looks=[
        ptx(r"mbarrier\.arrive\.shared::cluster"),
        ptx(r"mapa\.shared::cluster|ld\.shared::cluster"),
        plan("a cluster of 2", lambda plan: plan.launches[0].cluster == (2, 1, 1)),
    ],
    uninterpreted={
        "0.10": "nan + cluster_barrier",
        "0.12": "Unsupported transform: ClusterRefTransform",
    },
)
@pallasc.kernel(args={"x": "f32[2, 64, 32]"}, targets=SINCE_HOPPER, reference=neighbours)
def memory_of_the_neighbour(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, smem: Any, loaded: Any, both: Any) -> None:
        block = lax.axis_index("c")
        plgpu.copy_gmem_to_smem(x_gmem.at[block], smem, loaded)
        plgpu.barrier_wait(loaded)
        plgpu.barrier_arrive(both)
        plgpu.barrier_wait(both)
        out_gmem[block] = plgpu.cluster_ref(smem, {"c": 1 - block})[...]
        plgpu.barrier_arrive(both)  # or the other block ends before its memory is read
        plgpu.barrier_wait(both)

    transforms = (plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(128))
    return plgpu.kernel(
        body,
        out_type=like(x),
        scratch_types=[
            plgpu.SMEM((64, 32), jnp.float32, transforms=transforms),
            plgpu.Barrier(),
            plgpu.ClusterBarrier(collective_axes=("c",)),
        ],
        cluster=(2,),
        cluster_names=("c",),
        compiler_params=lane(),
    )(x)


@covers(
    "plgpu.async_store_smem",
    looks=[ptx(r"st\.async\..*mbarrier::complete_tx::bytes")],
    uninterpreted={
        "0.10": "assert isinstance(out_ty, state_types.AbstractRef)",
        "0.12": "ref must be a reference",
    },
)
@pallasc.kernel(args={"x": "f32[2, 64, 32]"}, targets=SINCE_HOPPER, reference=neighbours)
def store_to_the_neighbour(x: jax.Array) -> jax.Array:
    return exchanged(x)


@covers(
    "plgpu.set_max_registers",
    looks=[
        ptx(r"setmaxnreg\.dec\.sync\.aligned\.u32\s+40"),
        ptx(r"setmaxnreg\.inc\.sync\.aligned\.u32\s+232"),
        sass(r"USETMAXREG"),
    ],
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=SINCE_HOPPER, reference=same)
def registers(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        @pl.when(lax.axis_index("wg") == 0)
        def less() -> None:
            plgpu.set_max_registers(40, action="decrease")

        @pl.when(lax.axis_index("wg") == 1)
        def more() -> None:
            plgpu.set_max_registers(232, action="increase")
            out_gmem[...] = x_gmem[...]

    return plgpu.kernel(body, out_type=like(x), num_threads=2, thread_name="wg")(x)
