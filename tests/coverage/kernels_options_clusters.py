"""Keyword arguments of what clusters share that other files leave as they are."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from architectures import SINCE_BLACKWELL, SINCE_HOPPER, TENSOR_MEMORY
from covering import covers, faulty, plan, ptx
from forms import exchanged, lane, like, maps, no_argument, same, store, vector, warpgroup
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallasc
from pallasc.compiler.lowering.constructs import COLLECTIVE_PREFETCH


def added_to_three_times(x: Any) -> Any:
    return 3 * x + x[::-1]


@covers(
    "plgpu.async_store_smem",
    looks=[ptx(r"red\.async\.\S*add")],
    uninterpreted={
        "0.10": "nan + cluster_barrier",
        "0.12": "ref must be a reference",
    },
    note="`atomic`",
)
@pallasc.kernel(args={"x": "i32[2, 64, 32]"}, targets=SINCE_HOPPER, reference=added_to_three_times)
def addition_to_the_neighbour(x: jax.Array) -> jax.Array:
    return exchanged(x, begins=3, atomic="add")


@covers(
    "plgpu.ClusterBarrier",
    looks=[
        ptx(r"(?s)(mbarrier\.init.*){2}", says="mbarrier.init twice"),
        ptx(r"mbarrier\.arrive\.\S*shared::cluster"),
    ],
    uninterpreted={"0.10": "nan + cluster_barrier"},
    note="`num_barriers` and `num_arrivals`",
)
@pallasc.kernel(args={"x": "f32[2, 128]"}, targets=SINCE_HOPPER, reference=same)
def two_barriers_of_a_cluster(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, both: Any) -> None:
        block = lax.axis_index("c")
        for number in range(2):
            plgpu.barrier_arrive(both.at[number])
            plgpu.barrier_arrive(both.at[number])
            plgpu.barrier_wait(both.at[number])
        out_gmem[block] = x_gmem[block]

    barriers = plgpu.ClusterBarrier(collective_axes=("c",), num_barriers=2, num_arrivals=2)
    return plgpu.kernel(
        body, out_type=like(x), scratch_types=[barriers], cluster=(2,), cluster_names=("c",)
    )(x)


def none_stolen(x: Any) -> Any:
    return np.full((64,), -1, np.int32)


@covers(
    "plgpu.TryClusterCancelResult",
    "plgpu.try_cluster_cancel",
    looks=[
        ptx(r"(?s)(clusterlaunchcontrol\.try_cancel\.async.*){2}", says="try_cancel twice"),
        ptx(r"try_cancel\S*multicast::cluster"),
    ],
    gaps=no_argument("try_cluster_cancel", "collective_axes"),
    note="`num_buffers` and `collective_axes`",
)
@pallasc.kernel(args={"x": "i32[128]"}, targets=SINCE_BLACKWELL, reference=none_stolen)
def stolen_clusters(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, results: Any, answered: Any) -> None:
        for number in range(2):
            plgpu.try_cluster_cancel(results.at[number], answered.at[number], collective_axes="c")
        for number in range(2):
            plgpu.barrier_wait(answered.at[number])
        (block,), success = plgpu.query_cluster_cancel(results.at[1], grid_names=("i",))
        place = lax.axis_index("i") * 2 + lax.axis_index("c")
        out_gmem[place] = lax.select(success, block, jnp.int32(-1))

    return plgpu.kernel(
        body,
        out_type=vector(64, jnp.int32),
        scratch_types=[plgpu.TryClusterCancelResult(2), plgpu.Barrier(num_barriers=2)],
        grid=(32,),
        grid_names=("i",),
        cluster=(2,),
        cluster_names=("c",),
    )(x)


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
        out_type=jax.ShapeDtypeStruct((2, 64, 64), jnp.float32),
        cluster=(2,),
        cluster_names=("c",),
        compiler_params=parameters,
    )(x)


@covers(
    "plgpu.async_prefetch",
    looks=[
        ptx(r"cp\.async\.bulk\.prefetch\.tensor\.2d\.L2\.global"),
        plan(HALVES, fetched_in_halves),
    ],
    uninterpreted={"0.10": "ref must be a reference"},
    note="`collective_axes`",
    fetches=64 * 64 * 4 // 2,
)
@pallasc.kernel(args={"x": "f32[64, 64]"}, targets=SINCE_HOPPER, reference=twice)
def prefetch_by_a_cluster(x: jax.Array) -> jax.Array:
    return fetched(x, lane())


@covers(
    "plgpu.async_prefetch",
    looks=[
        faulty(
            plan(HALVES, fetched_in_halves),
            does=COLLECTIVE_PREFETCH.does,
        ),
    ],
    uninterpreted={"0.10": "ref must be a reference"},
    emulated="each block fetches 16384 bytes, and 8192 are to be fetched",
    note="`collective_axes` where Mosaic infers layouts, as it does in 0.12 unless told otherwise",
    fetches=64 * 64 * 4 // 2,
)
@pallasc.kernel(args={"x": "f32[64, 64]"}, targets=SINCE_HOPPER, reference=twice)
def prefetch_of_inferred_layouts(x: jax.Array) -> jax.Array:
    return fetched(x, warpgroup())


@covers(
    "plgpu.tcgen05_commit_arrive",
    looks=[ptx(r"tcgen05\.commit\.cta_group::2\.\S*multicast::cluster")],
    uninterpreted={
        "0.10": "Unsupported memory space: tmem",
        "0.12": "Collective axis not supported for copy yet",
    },
    note="`collective_axis`",
)
@pallasc.kernel(args={"x": "f16[2, 128, 128]"}, targets=TENSOR_MEMORY, reference=same)
def commit_of_two_tensor_cores(x: jax.Array) -> jax.Array:
    def body(
        x_gmem: Any, out_gmem: Any, smem: Any, tmem: Any, loaded: Any, both: Any, done: Any
    ) -> None:
        block = lax.axis_index("c")
        plgpu.copy_gmem_to_smem(x_gmem.at[block], smem, loaded)
        plgpu.barrier_wait(loaded)
        plgpu.barrier_arrive(both)
        plgpu.barrier_wait(both)
        plgpu.async_copy_smem_to_tmem(smem, tmem, collective_axis="c")
        plgpu.tcgen05_commit_arrive(done, collective_axis="c")
        plgpu.barrier_wait(done)
        store(out_gmem.at[block], plgpu.async_load_tmem(tmem))

    transforms = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
    return plgpu.kernel(
        body,
        out_type=like(x),
        scratch_types=[
            plgpu.SMEM((128, 128), jnp.float16, transforms=transforms),
            plgpu.TMEM((128, 128), jnp.float16, packed=True, collective=True),
            plgpu.Barrier(),
            plgpu.ClusterBarrier(collective_axes=("c",)),
            plgpu.Barrier(orders_tensor_core=True),
        ],
        cluster=(2,),
        cluster_names=("c",),
        compiler_params=lane(),
    )(x)
