"""The order of work: loops over a grid, blocks that take over others, launches that overlap."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from architectures import EVERYWHERE, SINCE_BLACKWELL, SINCE_HOPPER
from covering import covers, no_ptx, plan, ptx
from forms import like, plus_one, same, vector
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallasc


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
    uninterpreted="Collective axis `None` not found among axes",
)
@pallasc.kernel(args={"x": "i32[256, 128]"}, targets=SINCE_BLACKWELL, reference=same)
def dynamic_schedule(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        @plgpu.dynamic_scheduling_loop(("i",))
        def step(info: Any) -> None:
            (row,) = info.index
            out_gmem[row] = x_gmem[row]

    return plgpu.kernel(body, out_type=like(x), grid=(256,), grid_names=("i",))(x)


def none_stolen(x: Any) -> Any:
    return np.full((256,), -1, np.int32)


@covers(
    "plgpu.try_cluster_cancel",
    "plgpu.query_cluster_cancel",
    "plgpu.TryClusterCancelResult",
    looks=[
        ptx(r"clusterlaunchcontrol\.try_cancel\.async"),
        ptx(r"clusterlaunchcontrol\.query_cancel\.is_canceled"),
    ],
    uninterpreted={"0.10": "MLIR translation rule for primitive 'try_cluster_cancel' not found"},
)
@pallasc.kernel(args={"x": "i32[128]"}, targets=SINCE_BLACKWELL, reference=none_stolen)
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
        plan("no PDL", lambda plan: not plan.launches[0].pdl, jax="0.10"),
        plan("PDL", lambda plan: plan.launches[0].pdl, jax="0.12"),
    ],
    uninterpreted="MLIR translation rule for primitive 'griddepcontrol_wait' not found",
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=SINCE_HOPPER, reference=plus_one)
def dependent_launch(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        plgpu.griddepcontrol_wait()
        out_gmem[...] = x_gmem[...] + 1
        plgpu.griddepcontrol_launch_dependents()

    return plgpu.kernel(body, out_type=like(x))(x)


@covers(
    "plgpu.Mesh",
    "pl.kernel(mesh)",
    looks=[
        plan("four blocks", lambda plan: plan.launches[0].grid == (4, 1, 1)),
        no_ptx(r"mbarrier\.init"),
    ],
)
@pallasc.kernel(args={"x": "f32[4, 128]"}, targets=EVERYWHERE, reference=same)
def mesh_of_blocks(x: jax.Array) -> jax.Array:
    mesh = plgpu.Mesh(grid=(4,), grid_names=("i",))

    @pl.kernel(out_type=like(x), mesh=mesh)
    def copy(x_gmem: Any, out_gmem: Any) -> None:
        row = lax.axis_index("i")
        out_gmem[row] = x_gmem[row]

    return copy(x)
