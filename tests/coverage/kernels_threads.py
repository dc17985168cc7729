"""Warpgroups, warps, barriers, and clusters."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from architectures import SINCE_BLACKWELL, SINCE_HOPPER
from covering import covers, faulty, kernel, plan, sass
from forms import absent, array, lane, like, load, maps, no_argument, plus_one, same, warpgroup
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallasc
from pallasc.compiler.lowering.constructs import COLLECTIVE_PREFETCH


@covers(
    [
        "plgpu.kernel(num_threads)",
        "plgpu.kernel(thread_name)",
        "plgpu.barrier_arrive",
        "plgpu.barrier_wait",
        "plgpu.Barrier",
    ],
    looks=[
        plan("256 threads", lambda plan: plan.launches[0].block == (256, 1, 1)),
        r"mbarrier\.arrive",
        r"mbarrier\.try_wait",
    ],
    expected=plus_one,
)
@kernel(
    {"x": "f32[128]"},
    SINCE_HOPPER,
    scratch=[plgpu.SMEM((128,), jnp.float32), plgpu.Barrier()],
    num_threads=2,
)
def two_threads(x_gmem: Any, out_gmem: Any, smem: Any, ready: Any) -> None:
    thread = lax.axis_index("wg")

    @pl.when(thread == 0)
    def produce() -> None:
        smem[...] = x_gmem[...] + 1
        plgpu.barrier_arrive(ready)

    @pl.when(thread == 1)
    def consume() -> None:
        plgpu.barrier_wait(ready)
        out_gmem[...] = smem[...]


@covers(
    "plgpu.barrier_arrive_and_wait",
    looks=[r"mbarrier\.arrive", r"mbarrier\.try_wait"],
    gaps=absent("barrier_arrive_and_wait"),
    expected=same,
)
@kernel(
    {"x": "f32[128]"},
    SINCE_HOPPER,
    scratch=[plgpu.SMEM((128,), jnp.float32), plgpu.Barrier(num_arrivals=2)],
    num_threads=2,
)
def arrive_and_wait(x_gmem: Any, out_gmem: Any, smem: Any, both: Any) -> None:
    @pl.when(lax.axis_index("wg") == 0)
    def produce() -> None:
        smem[...] = x_gmem[...]

    plgpu.barrier_arrive_and_wait(both)

    @pl.when(lax.axis_index("wg") == 1)
    def consume() -> None:
        out_gmem[...] = smem[...]


@covers(
    ["plgpu.warp_map", "plgpu.WarpMesh", "plgpu.barrier_test"],
    looks=[r"mbarrier\.test_wait", r"shfl\.sync|elect\.sync"],
    undefined={1: "the copy may have ended by then, or not"},
    expected=lambda x: (x, np.zeros((1,), np.int32)),
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
        out_type=(like(x), array(1, dtype=jnp.int32)),
        scratch_types=[plgpu.SMEM((128,), jnp.float32), plgpu.Barrier()],
    )(x)


TILED = (plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(128))


def neighbours(x: Any) -> Any:
    return x[::-1]


@covers(
    ["plgpu.ClusterBarrier", "plgpu.cluster_ref"],
    looks=[
        r"mbarrier\.arrive\.shared::cluster",
        r"mapa\.shared::cluster|ld\.shared::cluster",
        plan("a cluster of 2", lambda plan: plan.launches[0].cluster == (2, 1, 1)),
    ],
    expected=neighbours,
)
@kernel(
    {"x": "f32[2, 64, 32]"},
    SINCE_HOPPER,
    scratch=[
        plgpu.SMEM(
            (64, 32),
            jnp.float32,
            transforms=(plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(128)),
        ),
        plgpu.Barrier(),
        plgpu.ClusterBarrier(collective_axes=("c",)),
    ],
    cluster=(2,),
    compiler_params=lane(),
)
def memory_of_the_neighbour(x_gmem: Any, out_gmem: Any, smem: Any, loaded: Any, both: Any) -> None:
    block = lax.axis_index("c")
    plgpu.copy_gmem_to_smem(x_gmem.at[block], smem, loaded)
    plgpu.barrier_wait(loaded)
    plgpu.barrier_arrive(both)
    plgpu.barrier_wait(both)
    out_gmem[block] = plgpu.cluster_ref(smem, {"c": 1 - block})[...]
    plgpu.barrier_arrive(both)  # or the other block ends before its memory is read
    plgpu.barrier_wait(both)


@covers(
    "plgpu.set_max_registers",
    looks=[
        r"setmaxnreg\.dec\.sync\.aligned\.u32\s+40",
        r"setmaxnreg\.inc\.sync\.aligned\.u32\s+232",
        sass(r"USETMAXREG"),
    ],
    expected=same,
)
@kernel({"x": "f32[128]"}, SINCE_HOPPER, num_threads=2)
def registers(x_gmem: Any, out_gmem: Any) -> None:
    @pl.when(lax.axis_index("wg") == 0)
    def less() -> None:
        plgpu.set_max_registers(40, action="decrease")

    @pl.when(lax.axis_index("wg") == 1)
    def more() -> None:
        plgpu.set_max_registers(232, action="increase")
        out_gmem[...] = x_gmem[...]


# `num_buffers` and `collective_axes`.
@covers(
    ["plgpu.TryClusterCancelResult", "plgpu.try_cluster_cancel"],
    looks=[
        r"(?s)(clusterlaunchcontrol\.try_cancel\.async.*){2}",
        r"try_cancel\S*multicast::cluster",
    ],
    gaps=no_argument("try_cluster_cancel", "collective_axes"),
    expected=lambda x: np.full((64,), -1, np.int32),
)
@kernel(
    {"x": "i32[128]"},
    SINCE_BLACKWELL,
    out_type=array(64, dtype=jnp.int32),
    scratch=[plgpu.TryClusterCancelResult(2), plgpu.Barrier(num_barriers=2)],
    grid=(32,),
    cluster=(2,),
)
def stolen_clusters(x_gmem: Any, out_gmem: Any, results: Any, answered: Any) -> None:
    for number in range(2):
        plgpu.try_cluster_cancel(results.at[number], answered.at[number], collective_axes="c")
    for number in range(2):
        plgpu.barrier_wait(answered.at[number])
    (block,), success = plgpu.query_cluster_cancel(results.at[1], grid_names=("i",))
    place = lax.axis_index("i") * 2 + lax.axis_index("c")
    out_gmem[place] = lax.select(success, block, jnp.int32(-1))


def twice(x: Any) -> Any:
    return np.stack([x, x])


def fetched_in_halves(plan: Any) -> bool:
    (fetched,) = maps(plan)
    return fetched.box[0] * fetched.box[1] == 64 * 64 // 2


HALVES = "each of two blocks fetches half of it"


def fetched(x: jax.Array, parameters: Any) -> jax.Array:
    """Return `x` twice, by two blocks that prefetch it together."""

    def body(x_gmem: Any, out_gmem: Any) -> None:
        plgpu.async_prefetch(x_gmem, collective_axes="c")
        out_gmem[lax.axis_index("c")] = x_gmem[...]

    return plgpu.kernel(
        body,
        out_type=array(2, 64, 64),
        cluster=(2,),
        cluster_names=("c",),
        compiler_params=parameters,
    )(x)


# `collective_axes`.
@covers(
    "plgpu.async_prefetch",
    looks=[r"cp\.async\.bulk\.prefetch\.tensor\.2d\.L2\.global", plan(HALVES, fetched_in_halves)],
    fetches=64 * 64 * 4 // 2,
    expected=twice,
)
@pallasc.kernel(args={"x": "f32[64, 64]"}, targets=SINCE_HOPPER)
def prefetch_by_a_cluster(x: jax.Array) -> jax.Array:
    return fetched(x, lane())


# `collective_axes` where Mosaic infers layouts, as it does in 0.12 unless told otherwise.
@covers(
    "plgpu.async_prefetch",
    looks=[faulty(plan(HALVES, fetched_in_halves), does=COLLECTIVE_PREFETCH.does)],
    emulated="each block fetches 16384 bytes, and 8192 are to be fetched",
    fetches=64 * 64 * 4 // 2,
    expected=twice,
)
@pallasc.kernel(args={"x": "f32[64, 64]"}, targets=SINCE_HOPPER)
def prefetch_of_inferred_layouts(x: jax.Array) -> jax.Array:
    return fetched(x, warpgroup())


@covers(
    "plgpu.async_store_smem",
    looks=[r"st\.async\..*mbarrier::complete_tx::bytes"],
    expected=neighbours,
)
@kernel(
    {"x": "f32[2, 64, 32]"},
    SINCE_HOPPER,
    scratch=[plgpu.SMEM((64, 32), jnp.float32, transforms=TILED), plgpu.Barrier()],
    cluster=(2,),
    compiler_params=lane(),
)
def store_to_the_neighbour(x_gmem: Any, out_gmem: Any, smem: Any, stored: Any) -> None:
    block = lax.axis_index("c")
    value = load(x_gmem.at[block], layout=plgpu.Layout.WGMMA, optimized=False)
    plgpu.async_store_smem(value, smem, stored, cluster_idx=1 - block, cluster_dim="c")
    plgpu.barrier_wait(stored)
    out_gmem[block] = load(smem, layout=plgpu.Layout.WGMMA)
