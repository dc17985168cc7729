"""Warpgroups, warps, barriers, clusters, semaphores and the order of work."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from architectures import EVERYWHERE, SINCE_BLACKWELL, SINCE_HOPPER
from covering import covers, no_ptx, plan, ptx, sass
from forms import lane, like, load, plus_one, same, unfenced, vector
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
    gaps={
        "0.10": "module 'jax.experimental.pallas.mosaic_gpu' has no attribute "
        "'barrier_arrive_and_wait'"
    },
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


@covers(
    "plgpu.warp_map",
    "plgpu.WarpMesh",
    "plgpu.barrier_test",
    looks=[ptx(r"mbarrier\.test_wait"), ptx(r"shfl\.sync|elect\.sync")],
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


@covers(
    "plgpu.ClusterBarrier",
    "plgpu.cluster_ref",
    looks=[
        ptx(r"mbarrier\.arrive\.shared::cluster"),
        ptx(r"mapa\.shared::cluster|ld\.shared::cluster"),
        plan("a cluster of 2", lambda plan: plan.launches[0].cluster == (2, 1, 1)),
    ],
)
@pallasc.kernel(args={"x": "f32[2, 64, 32]"}, targets=SINCE_HOPPER)
def memory_of_the_neighbour(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, smem: Any, loaded: Any, both: Any) -> None:
        block = lax.axis_index("c")
        plgpu.copy_gmem_to_smem(x_gmem.at[block], smem, loaded)
        plgpu.barrier_wait(loaded)
        plgpu.barrier_arrive(both)
        plgpu.barrier_wait(both)
        out_gmem[block] = plgpu.cluster_ref(smem, {"c": 1 - block})[...]

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


@covers("plgpu.async_store_smem", looks=[ptx(r"st\.async\..*mbarrier::complete_tx::bytes")])
@pallasc.kernel(args={"x": "f32[2, 64, 32]"}, targets=SINCE_HOPPER)
def store_to_the_neighbour(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, smem: Any, stored: Any) -> None:
        block = lax.axis_index("c")
        value = load(x_gmem.at[block], layout=plgpu.Layout.WGMMA, optimized=False)
        plgpu.async_store_smem(value, smem, stored, cluster_idx=1 - block, cluster_dim="c")
        plgpu.barrier_wait(stored)
        out_gmem[block] = load(smem, layout=plgpu.Layout.WGMMA)

    transforms = (plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(128))
    return plgpu.kernel(
        body,
        out_type=like(x),
        scratch_types=[plgpu.SMEM((64, 32), jnp.float32, transforms=transforms), plgpu.Barrier()],
        cluster=(2,),
        cluster_names=("c",),
        compiler_params=lane(),
    )(x)


@covers(
    "plgpu.set_max_registers",
    looks=[
        ptx(r"setmaxnreg\.dec\.sync\.aligned\.u32\s+40"),
        ptx(r"setmaxnreg\.inc\.sync\.aligned\.u32\s+232"),
        sass(r"USETMAXREG"),
    ],
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=SINCE_HOPPER)
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


@covers(
    "plgpu.SemaphoreType",
    "plgpu.semaphore_signal",
    "plgpu.semaphore_wait",
    looks=[
        ptx(r"(atom|red)\.\S*gpu\S*add|(atom|red)\.add\S*gpu", says="atom….gpu….add"),
        plan("a semaphore filled with zero", lambda plan: len(plan.steps) > 1),
    ],
    gaps=unfenced(),
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE)
def semaphores(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, semaphore: Any) -> None:
        @pl.when(lax.axis_index("i") == 0)
        def signal() -> None:
            out_gmem[...] = x_gmem[...]
            plgpu.semaphore_signal(semaphore, 2, memory_scope="gpu")

        @pl.when(lax.axis_index("i") == 1)
        def wait() -> None:
            plgpu.semaphore_wait(semaphore, 2, memory_scope="gpu")

    return plgpu.kernel(
        body,
        out_type=like(x),
        scratch_types=[plgpu.SemaphoreType.REGULAR(())],
        grid=(2,),
        grid_names=("i",),
    )(x)


@covers(
    "plgpu.semaphore_signal_parallel",
    "plgpu.SemaphoreSignal",
    looks=[ptx(r"fence\.\S*(sys|gpu)", says="fence….sys"), ptx(r"(red|atom)\.", says="red/atom")],
    gaps=unfenced("release"),
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE)
def signals_in_parallel(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, one: Any, other: Any) -> None:
        out_gmem[...] = x_gmem[...]
        plgpu.semaphore_signal_parallel(
            plgpu.SemaphoreSignal(one, device_id=None),
            plgpu.SemaphoreSignal(other, device_id=None, inc=2),
        )
        pl.semaphore_wait(one)
        pl.semaphore_wait(other, 2)

    scratch = [plgpu.SemaphoreType.REGULAR(()), plgpu.SemaphoreType.REGULAR(())]
    return plgpu.kernel(body, out_type=like(x), scratch_types=scratch)(x)


@covers(
    "plgpu.alloc_semaphore",
    looks=[
        plan(
            "one buffer, zeroed once, for two launches",
            lambda plan: [launch.origin for launch in plan.launches].count("mosaic") == 2,
        )
    ],
    gaps={
        "0.10": "module 'jax.experimental.pallas.mosaic_gpu' has no attribute 'alloc_semaphore'",
        **unfenced(),
    },
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE)
def semaphore_of_two_kernels(x: jax.Array) -> jax.Array:
    def signal(semaphore: Any, x_gmem: Any, out_gmem: Any) -> None:
        out_gmem[...] = x_gmem[...]
        plgpu.semaphore_signal(semaphore)

    def wait(semaphore: Any, x_gmem: Any, out_gmem: Any) -> None:
        plgpu.semaphore_wait(semaphore)
        out_gmem[...] = x_gmem[...]

    semaphore = plgpu.alloc_semaphore()
    first = plgpu.kernel(signal, out_type=like(x))(semaphore, x)
    return plgpu.kernel(wait, out_type=like(x))(semaphore, first)


def shifted_rows(x: Any) -> Any:
    return x + np.arange(x.shape[0], dtype=x.dtype)[:, None]


@covers(
    "plgpu.nd_loop",
    "plgpu.NDLoopInfo",
    "plgpu.kernel(grid)",
    "plgpu.kernel(grid_names)",
    looks=[plan("three blocks for 8 rows", lambda plan: plan.launches[0].grid == (3, 1, 1))],
)
@pallasc.kernel(args={"x": "f32[8, 128]"}, targets=EVERYWHERE, reference=shifted_rows)
def loop_over_a_grid(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        @plgpu.nd_loop((4, 2), collective_axes="sm")
        def step(info: Any) -> None:
            assert isinstance(info, plgpu.NDLoopInfo)
            row = info.index[0] * 2 + info.index[1]
            out_gmem[row] = x_gmem[row] + row.astype(jnp.float32)

    return plgpu.kernel(body, out_type=like(x), grid=(3,), grid_names=("sm",))(x)


def snake(x: Any) -> Any:
    out = np.zeros((4, 4, 128), x.dtype)
    for number in range(16):
        tile, inside = divmod(number, 8)
        major, minor = divmod(inside, 2)
        out[tile * 2 + minor, 3 - major if tile % 2 else major] = number
    return out


@covers(
    "plgpu.planar_snake",
    looks=[plan("16 blocks", lambda plan: plan.launches[0].grid == (16, 1, 1))],
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, reference=snake)
def snake_order(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        number = lax.axis_index("i")
        row, column = plgpu.planar_snake(number, (4, 4), 0, 2)
        out_gmem[row, column] = jnp.full((128,), number.astype(jnp.float32))

    out = jax.ShapeDtypeStruct((4, 4, 128), jnp.float32)
    return plgpu.kernel(body, out_type=out, grid=(16,), grid_names=("i",))(x)


@covers(
    "plgpu.dynamic_scheduling_loop",
    looks=[ptx(r"clusterlaunchcontrol\.try_cancel"), ptx(r"clusterlaunchcontrol\.query_cancel")],
)
@pallasc.kernel(args={"x": "i32[256, 128]"}, targets=SINCE_BLACKWELL)
def dynamic_schedule(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        @plgpu.dynamic_scheduling_loop(("i",))
        def step(info: Any) -> None:
            (row,) = info.index
            out_gmem[row] = x_gmem[row]

    return plgpu.kernel(body, out_type=like(x), grid=(256,), grid_names=("i",))(x)


@covers(
    "plgpu.try_cluster_cancel",
    "plgpu.query_cluster_cancel",
    "plgpu.TryClusterCancelResult",
    looks=[
        ptx(r"clusterlaunchcontrol\.try_cancel\.async"),
        ptx(r"clusterlaunchcontrol\.query_cancel\.is_canceled"),
    ],
)
@pallasc.kernel(args={"x": "i32[128]"}, targets=SINCE_BLACKWELL)
def stolen_block(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, result: Any, answered: Any) -> None:
        plgpu.try_cluster_cancel(result, answered)
        plgpu.barrier_wait(answered)
        (block,), success = plgpu.query_cluster_cancel(result, grid_names=("i",))
        out_gmem[lax.axis_index("i")] = lax.select(success, block, jnp.int32(-1))

    return plgpu.kernel(
        body,
        out_type=vector(256, jnp.int32),
        scratch_types=[plgpu.TryClusterCancelResult(), plgpu.Barrier()],
        grid=(256,),
        grid_names=("i",),
    )(x)


@covers(
    "plgpu.griddepcontrol_wait",
    "plgpu.griddepcontrol_launch_dependents",
    looks=[
        ptx(r"griddepcontrol\.wait"),
        ptx(r"griddepcontrol\.launch_dependents"),
        plan("PDL", lambda plan: plan.launches[0].pdl, jax="0.12"),
        plan("no PDL", lambda plan: not plan.launches[0].pdl, jax="0.10"),
    ],
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=SINCE_HOPPER)
def dependent_launch(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        plgpu.griddepcontrol_wait()
        out_gmem[...] = x_gmem[...] + 1
        plgpu.griddepcontrol_launch_dependents()

    return plgpu.kernel(body, out_type=like(x))(x)


@covers("plgpu.Mesh", "pl.kernel(mesh)", looks=[no_ptx(r"mbarrier\.init")])
@pallasc.kernel(args={"x": "f32[4, 128]"}, targets=EVERYWHERE, reference=same)
def mesh_of_blocks(x: jax.Array) -> jax.Array:
    mesh = plgpu.Mesh(grid=(4,), grid_names=("i",))

    @pl.kernel(out_type=like(x), mesh=mesh)
    def copy(x_gmem: Any, out_gmem: Any) -> None:
        row = lax.axis_index("i")
        out_gmem[row] = x_gmem[row]

    return copy(x)
