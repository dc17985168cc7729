"""Pipelines: blocks copied ahead while others are computed, by one thread or by warpgroups."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from architectures import SINCE_HOPPER
from covering import compared, covers, plan, ptx
from forms import NO_PREDICATES, lane, like, maps, plus_one, warpgroup
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallasc


def row(i: Any) -> Any:
    return i, 0


@covers(
    "plgpu.emit_pipeline",
    "plgpu.BlockSpec",
    looks=[
        ptx(r"mbarrier\.try_wait"),
        plan(
            "room for two steps", lambda plan: plan.launches[0].dynamic_smem_bytes >= 2 * 2 * 16384
        ),
    ],
    uninterpreted=NO_PREDICATES,
)
@pallasc.kernel(args={"x": "f32[256, 64]"}, targets=SINCE_HOPPER, reference=plus_one)
def pipeline(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        def step(_: Any, x_smem: Any, out_smem: Any) -> None:
            out_smem[...] = x_smem[...] + 1

        spec = plgpu.BlockSpec((64, 64), row)
        plgpu.emit_pipeline(
            step, grid=(4,), in_specs=[spec], out_specs=[spec], max_concurrent_steps=2
        )(x_gmem, out_gmem)

    return plgpu.kernel(body, out_type=like(x))(x)


@covers(
    "plgpu.BlockSpec",
    "plgpu.TilingTransform",
    "plgpu.SwizzleTransform",
    looks=[
        plan("a swizzle of 128 bytes", lambda plan: {m.swizzle for m in maps(plan)} == {128}),
        compared(
            "another order of waits than", lambda own, other: own.ptx != other.ptx, to="pipeline"
        ),
    ],
    uninterpreted=NO_PREDICATES,
    note="`transforms` and `delay_release`",
)
@pallasc.kernel(args={"x": "f32[256, 64]"}, targets=SINCE_HOPPER, reference=plus_one)
def pipeline_of_tiles(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        def step(_: Any, x_smem: Any, out_smem: Any) -> None:
            out_smem[...] = x_smem[...] + 1

        transforms = (plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(128))
        delayed = plgpu.BlockSpec((64, 64), row, transforms=transforms, delay_release=1)
        spec = plgpu.BlockSpec((64, 64), row, transforms=transforms)
        plgpu.emit_pipeline(
            step, grid=(4,), in_specs=[delayed], out_specs=[spec], max_concurrent_steps=3
        )(x_gmem, out_gmem)

    return plgpu.kernel(body, out_type=like(x), compiler_params=lane())(x)


@covers(
    "plgpu.emit_pipeline_warp_specialized",
    looks=[
        ptx(r"setmaxnreg\.dec\.sync\.aligned\.u32\s+40"),
        ptx(r"setmaxnreg\.inc\.sync\.aligned\.u32"),
        plan("three warpgroups", lambda plan: plan.launches[0].block == (384, 1, 1)),
    ],
    uninterpreted={"0.12": "RACE DETECTED"},
)
@pallasc.kernel(args={"x": "f32[256, 64]"}, targets=SINCE_HOPPER, reference=plus_one)
def specialized_pipeline(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
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

    return plgpu.kernel(
        body, out_type=like(x), num_threads=3, thread_name="wg", compiler_params=warpgroup()
    )(x)


def zeros(x: Any) -> Any:
    return np.zeros_like(x)


@covers("plgpu.PipelinePipeline", looks=[ptx(r"setmaxnreg\.dec\.sync\.aligned\.u32\s+40")])
@pallasc.kernel(args={"x": "f32[256, 64]"}, targets=SINCE_HOPPER, reference=zeros)
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
