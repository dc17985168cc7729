"""Loops, pipelines, and the order of work."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from architectures import EVERYWHERE, SINCE_BLACKWELL, SINCE_HOPPER
from covering import compared, covers, kernel, no_ptx, plan
from forms import array, lane, like, maps, plus_one, same, warpgroup
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallasc


def row(i: Any) -> Any:
    return i, 0


@covers(
    ["plgpu.emit_pipeline", "plgpu.BlockSpec"],
    looks=[
        r"mbarrier\.try_wait",
        plan(
            "room for two steps", lambda plan: plan.launches[0].dynamic_smem_bytes >= 2 * 2 * 16384
        ),
    ],
    expected=plus_one,
)
@kernel({"x": "f32[256, 64]"}, SINCE_HOPPER)
def pipeline(x_gmem: Any, out_gmem: Any) -> None:
    def step(_: Any, x_smem: Any, out_smem: Any) -> None:
        out_smem[...] = x_smem[...] + 1

    spec = plgpu.BlockSpec((64, 64), row)
    plgpu.emit_pipeline(step, grid=(4,), in_specs=[spec], out_specs=[spec], max_concurrent_steps=2)(
        x_gmem, out_gmem
    )


# `transforms` and `delay_release`.
@covers(
    ["plgpu.BlockSpec", "plgpu.TilingTransform", "plgpu.SwizzleTransform"],
    looks=[
        plan("a swizzle of 128 bytes", lambda plan: {m.swizzle for m in maps(plan)} == {128}),
        compared(
            "another order of waits than", lambda own, other: own.ptx != other.ptx, to="pipeline"
        ),
    ],
    expected=plus_one,
)
@kernel({"x": "f32[256, 64]"}, SINCE_HOPPER, compiler_params=lane())
def pipeline_of_tiles(x_gmem: Any, out_gmem: Any) -> None:
    def step(_: Any, x_smem: Any, out_smem: Any) -> None:
        out_smem[...] = x_smem[...] + 1

    transforms = (plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(128))
    delayed = plgpu.BlockSpec((64, 64), row, transforms=transforms, delay_release=1)
    spec = plgpu.BlockSpec((64, 64), row, transforms=transforms)
    plgpu.emit_pipeline(
        step, grid=(4,), in_specs=[delayed], out_specs=[spec], max_concurrent_steps=3
    )(x_gmem, out_gmem)


@covers(
    "plgpu.emit_pipeline_warp_specialized",
    looks=[
        r"setmaxnreg\.dec\.sync\.aligned\.u32\s+40",
        r"setmaxnreg\.inc\.sync\.aligned\.u32",
        plan("three warpgroups", lambda plan: plan.launches[0].block == (384, 1, 1)),
    ],
    expected=plus_one,
)
@kernel({"x": "f32[256, 64]"}, SINCE_HOPPER, num_threads=3, compiler_params=warpgroup())
def specialized_pipeline(x_gmem: Any, out_gmem: Any) -> None:
    def step(index: Any, x_smem: Any) -> None:
        half = lax.axis_index("wg") * 32
        out_gmem[pl.ds(index[0] * 64 + half, 32)] = x_smem[pl.ds(half, 32)] + 1

    plgpu.emit_pipeline_warp_specialized(
        step,
        grid=(4,),
        in_specs=[plgpu.BlockSpec((64, 64), row)],
        max_concurrent_steps=2,
        wg_axis="wg",
        num_compute_wgs=2,
        memory_registers=40,
    )(x_gmem)


@covers(
    "plgpu.PipelinePipeline",
    looks=[r"setmaxnreg\.dec\.sync\.aligned\.u32\s+40"],
    expected=lambda x: np.zeros_like(x),
)
@pallasc.kernel(args={"x": "f32[256, 64]"}, targets=SINCE_HOPPER)
def pipelines_in_a_row(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        def step(_: Any, x_smem: Any) -> None:
            del x_smem

        def pipe(state: Any) -> Any:
            return plgpu.emit_pipeline_warp_specialized(
                step,
                grid=(4,),
                in_specs=[plgpu.BlockSpec((64, 64), row)],
                max_concurrent_steps=2,
                wg_axis="wg",
                num_compute_wgs=1,
                memory_registers=40,
                pipeline_state=state,
            )

        start = pipe(plgpu.PipelinePipeline.START)

        def run(allocations: Any) -> None:
            start(x_gmem, allocations=allocations)
            pipe(plgpu.PipelinePipeline.STOP)(x_gmem, allocations=allocations)

        pl.run_scoped(run, start.get_allocations(x_gmem), collective_axes="wg")

        @pl.when(lax.axis_index("wg") == 0)
        def finish() -> None:
            out_gmem[...] = jnp.zeros(x.shape, x.dtype)

    return plgpu.kernel(body, out_type=like(x), num_threads=2, thread_name="wg")(x)


# `memory_thread_idx`.
@covers(
    "plgpu.emit_pipeline_warp_specialized",
    gaps=dict.fromkeys(("0.10", "0.12"), "Memory thread must be the last thread."),
)
@kernel({"x": "f32[256, 64]"}, SINCE_HOPPER, num_threads=2)
def specialized_pipeline_of_the_first_thread(x_gmem: Any, out_gmem: Any) -> None:
    def step(index: Any, x_smem: Any) -> None:
        out_gmem[pl.ds(index[0] * 64, 64)] = x_smem[...] + 1

    plgpu.emit_pipeline_warp_specialized(
        step,
        grid=(4,),
        in_specs=[plgpu.BlockSpec((64, 64), row)],
        wg_axis="wg",
        num_compute_wgs=1,
        memory_registers=40,
        memory_thread_idx=0,
    )(x_gmem)


# `collective_axes`; see `specialized_pipeline_of_a_cluster`.
@covers(
    "plgpu.BlockSpec",
    gaps={
        "0.10": "BlockSpecs with collective_axes are not supported in emit_pipeline",
        "0.12": "pl.BlockSpec with collective_axes= is not supported",
    },
)
@kernel({"x": "f32[256, 64]"}, SINCE_HOPPER, out_type=array(2, 256, 64), cluster=(2,))
def pipeline_of_a_cluster(x_gmem: Any, out_gmem: Any) -> None:
    def step(_: Any, x_smem: Any, out_smem: Any) -> None:
        out_smem[...] = x_smem[...] + 1

    shared = plgpu.BlockSpec((64, 64), row, collective_axes=("c",))
    plgpu.emit_pipeline(
        step, grid=(4,), in_specs=[shared], out_specs=[plgpu.BlockSpec((64, 64), row)]
    )(x_gmem, out_gmem.at[lax.axis_index("c")])


# `collective_axes`.
@covers(
    "plgpu.BlockSpec",
    looks=[
        r"cp\.async\.bulk\.tensor\.2d\.\S*multicast::cluster",
        plan("a cluster of 2", lambda plan: plan.launches[0].cluster == (2, 1, 1)),
    ],
    fetches=256 * 64 * 4 // 2,
    expected=lambda x: np.stack([x, x]),
)
@kernel(
    {"x": "f32[256, 64]"}, SINCE_HOPPER, out_type=array(2, 256, 64), cluster=(2,), num_threads=2
)
def specialized_pipeline_of_a_cluster(x_gmem: Any, out_gmem: Any) -> None:
    def step(index: Any, x_smem: Any) -> None:
        out_gmem[lax.axis_index("c"), pl.ds(index[0] * 64, 64)] = x_smem[...]

    plgpu.emit_pipeline_warp_specialized(
        step,
        grid=(4,),
        in_specs=[plgpu.BlockSpec((64, 64), row, collective_axes=("c",))],
        wg_axis="wg",
        num_compute_wgs=1,
        memory_registers=40,
    )(x_gmem)


@covers(
    ["plgpu.nd_loop", "plgpu.NDLoopInfo", "plgpu.kernel(grid)", "plgpu.kernel(grid_names)"],
    looks=[plan("three blocks for 8 rows", lambda plan: plan.launches[0].grid == (3, 1, 1))],
    expected=lambda x: x + np.arange(x.shape[0], dtype=x.dtype)[:, None],
)
@kernel({"x": "f32[8, 128]"}, grid=(3,), grid_names=("sm",))
def loop_over_a_grid(x_gmem: Any, out_gmem: Any) -> None:
    @plgpu.nd_loop((4, 2), collective_axes="sm")
    def step(info: Any) -> None:
        assert isinstance(info, plgpu.NDLoopInfo)
        row = info.index[0] * 2 + info.index[1]
        out_gmem[row] = x_gmem[row] + row.astype(jnp.float32)


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
    expected=snake,
)
@kernel({"x": "f32[128]"}, out_type=array(4, 4, 128), grid=(16,))
def snake_order(x_gmem: Any, out_gmem: Any) -> None:
    number = lax.axis_index("i")
    row, column = plgpu.planar_snake(number, (4, 4), 0, 2)
    out_gmem[row, column] = jnp.full((128,), number.astype(jnp.float32))


@covers(
    "plgpu.dynamic_scheduling_loop",
    looks=[r"clusterlaunchcontrol\.try_cancel", r"clusterlaunchcontrol\.query_cancel"],
    expected=same,
)
@kernel({"x": "i32[256, 128]"}, SINCE_BLACKWELL, grid=(256,))
def dynamic_schedule(x_gmem: Any, out_gmem: Any) -> None:
    @plgpu.dynamic_scheduling_loop(("i",))
    def step(info: Any) -> None:
        (row,) = info.index
        out_gmem[row] = x_gmem[row]


@covers(
    ["plgpu.try_cluster_cancel", "plgpu.query_cluster_cancel", "plgpu.TryClusterCancelResult"],
    looks=[
        r"clusterlaunchcontrol\.try_cancel\.async",
        r"clusterlaunchcontrol\.query_cancel\.is_canceled",
    ],
    expected=lambda x: np.full((64,), -1, np.int32),
)
@kernel(
    {"x": "i32[128]"},
    SINCE_BLACKWELL,
    out_type=array(64, dtype=jnp.int32),
    scratch=[plgpu.TryClusterCancelResult(), plgpu.Barrier()],
    grid=(64,),  # all targets have room for all blocks, so none is left to steal
)
def stolen_block(x_gmem: Any, out_gmem: Any, result: Any, answered: Any) -> None:
    plgpu.try_cluster_cancel(result, answered)
    plgpu.barrier_wait(answered)
    (block,), success = plgpu.query_cluster_cancel(result, grid_names=("i",))
    out_gmem[lax.axis_index("i")] = lax.select(success, block, jnp.int32(-1))


@covers(
    ["plgpu.griddepcontrol_wait", "plgpu.griddepcontrol_launch_dependents"],
    looks=[
        r"griddepcontrol\.wait",
        r"griddepcontrol\.launch_dependents",
        plan("no PDL", lambda plan: not plan.launches[0].pdl, jax="0.10"),
        plan("PDL", lambda plan: plan.launches[0].pdl, jax="0.12"),
    ],
    expected=plus_one,
)
@kernel({"x": "f32[128]"}, SINCE_HOPPER)
def dependent_launch(x_gmem: Any, out_gmem: Any) -> None:
    plgpu.griddepcontrol_wait()
    out_gmem[...] = x_gmem[...] + 1
    plgpu.griddepcontrol_launch_dependents()


@covers(
    ["plgpu.Mesh", "pl.kernel(mesh)"],
    looks=[
        plan("four blocks", lambda plan: plan.launches[0].grid == (4, 1, 1)),
        no_ptx(r"mbarrier\.init"),
    ],
    expected=same,
)
@pallasc.kernel(args={"x": "f32[4, 128]"}, targets=EVERYWHERE)
def mesh_of_blocks(x: jax.Array) -> jax.Array:
    mesh = plgpu.Mesh(grid=(4,), grid_names=("i",))

    @pl.kernel(out_type=like(x), mesh=mesh)
    def copy(x_gmem: Any, out_gmem: Any) -> None:
        row = lax.axis_index("i")
        out_gmem[row] = x_gmem[row]

    return copy(x)
