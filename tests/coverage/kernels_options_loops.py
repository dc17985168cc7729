"""Keyword arguments of loops, pipelines and arithmetic that other files leave as they are."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from architectures import EVERYWHERE, SINCE_BLACKWELL, SINCE_HOPPER, TENSOR_MEMORY
from covering import covers, no_ptx, plan, ptx
from forms import (
    NEAR,
    NO_PREDICATES,
    absent,
    like,
    load,
    plus_one,
    product,
    store,
    vector,
    warpgroup,
)
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallasc


def row(i: Any) -> Any:
    return i, 0


def sum_of_even_rows(x: Any) -> Any:
    return x[::2].sum(axis=0)


@covers(
    "pl.loop",
    looks=[ptx(r"add\.(rn\.)?f32", says="add.f32")],
    note="`step` and `init_carry`",
)
@pallasc.kernel(args={"x": "f32[64, 128]"}, targets=EVERYWHERE, reference=sum_of_even_rows)
def loop_with_a_carry(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        @pl.loop(0, 64, step=2, init_carry=jnp.zeros((128,), jnp.float32))
        def total(number: Any, carry: Any) -> Any:
            return carry + x_gmem[number]

        out_gmem[...] = total

    return plgpu.kernel(body, out_type=vector(), compiler_params=warpgroup())(x)


def steps_of_blocks(x: Any) -> Any:
    return np.array([[6], [5], [5]], np.int32) + np.zeros((3, 128), np.int32)


@covers(
    "plgpu.nd_loop",
    looks=[plan("three blocks", lambda plan: plan.launches[0].grid == (3, 1, 1))],
    note="`tiling` and `init_carry`",
)
@pallasc.kernel(args={"x": "i32[128]"}, targets=EVERYWHERE, reference=steps_of_blocks)
def loop_over_tiles(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        @plgpu.nd_loop((4, 4), collective_axes="sm", tiling=(2, 2), init_carry=jnp.int32(0))
        def steps(info: Any, carry: Any) -> Any:
            return carry + 1

        out_gmem[lax.axis_index("sm")] = lax.broadcast(steps, (128,))

    out = jax.ShapeDtypeStruct((3, 128), jnp.int32)
    return plgpu.kernel(body, out_type=out, grid=(3,), grid_names=("sm",))(x)


def sum_of_blocks(x: Any) -> Any:
    return x.reshape(4, 64, 64).sum(axis=0)


@covers(
    "plgpu.emit_pipeline",
    looks=[ptx(r"mbarrier\.try_wait"), ptx(r"add\.(rn\.)?f32", says="add.f32")],
    uninterpreted={"0.12": "RACE DETECTED"},
    note="`init_carry`",
)
@pallasc.kernel(args={"x": "f32[256, 64]"}, targets=SINCE_HOPPER, reference=sum_of_blocks)
def pipeline_with_a_carry(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        def step(_: Any, x_smem: Any, carry: Any) -> Any:
            return carry + x_smem[...]

        spec = plgpu.BlockSpec((64, 64), row)
        start = jnp.zeros((64, 64), jnp.float32)
        out_gmem[...] = plgpu.emit_pipeline(
            step, grid=(4,), in_specs=[spec], max_concurrent_steps=2, init_carry=start
        )(x_gmem)

    out = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    return plgpu.kernel(body, out_type=out, compiler_params=warpgroup())(x)


@covers(
    "plgpu.emit_pipeline_warp_specialized",
    looks=[
        ptx(r"setmaxnreg\.dec\.sync\.aligned\.u32\s+40"),
        ptx(r"mbarrier\.arrive"),
        plan("two warpgroups", lambda plan: plan.launches[0].block == (256, 1, 1)),
    ],
    uninterpreted={"0.12": "RACE DETECTED"},
    note="`compute_context` and `manual_consumed_barriers`",
)
@pallasc.kernel(args={"x": "f32[256, 64]"}, targets=SINCE_HOPPER, reference=sum_of_blocks)
def specialized_pipeline_with_a_carry(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        def step(_: Any, x_smem: Any, consumed: Any, carry: Any) -> Any:
            value = x_smem[...]
            plgpu.barrier_arrive(consumed)
            return carry + value

        def compute(pipeline: Any) -> None:
            out_gmem[...] = pipeline(jnp.zeros((64, 64), jnp.float32))

        plgpu.emit_pipeline_warp_specialized(
            step,
            grid=(4,),
            in_specs=[plgpu.BlockSpec((64, 64), row)],
            wg_axis="wg",
            num_compute_wgs=1,
            memory_registers=40,
            manual_consumed_barriers=True,
            compute_context=compute,
        )(x_gmem)

    out = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    return plgpu.kernel(
        body, out_type=out, num_threads=2, thread_name="wg", compiler_params=warpgroup()
    )(x)


@covers(
    "plgpu.emit_pipeline_warp_specialized",
    gaps=dict.fromkeys(("0.10", "0.12"), "Memory thread must be the last thread."),
    note="`memory_thread_idx`",
)
@pallasc.kernel(args={"x": "f32[256, 64]"}, targets=SINCE_HOPPER)
def specialized_pipeline_of_the_first_thread(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
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

    return plgpu.kernel(body, out_type=like(x), num_threads=2, thread_name="wg")(x)


def plus_five(x: Any) -> Any:
    return x + 5


@covers(
    "plgpu.dynamic_scheduling_loop",
    looks=[
        ptx(r"clusterlaunchcontrol\.try_cancel"),
        plan("two warpgroups", lambda plan: plan.launches[0].block == (256, 1, 1)),
    ],
    uninterpreted={
        "0.10": "Cannot lower jaxpr with effects",
        "0.12": "GPU interpret mode does not support `inline_mgpu`.",
    },
    note="`thread_axis` and `init_carry`",
)
@pallasc.kernel(args={"x": "i32[256, 128]"}, targets=SINCE_BLACKWELL, reference=plus_five)
def dynamic_schedule_of_threads(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        # Which rows a block takes over is not known, but how many it has done is in `info`, too.
        @plgpu.dynamic_scheduling_loop(("i",), thread_axis="wg", init_carry=jnp.int32(5))
        def step(info: Any, carry: Any) -> Any:
            (number,) = info.index

            @pl.when(lax.axis_index("wg") == 0)
            def copy() -> None:
                out_gmem[number] = x_gmem[number] + (carry - 3 * info.local_index)

            return carry + 3

    return plgpu.kernel(
        body,
        out_type=like(x),
        grid=(256,),
        grid_names=("i",),
        num_threads=2,
        thread_name="wg",
    )(x)


def totals_of_rows(x: Any) -> Any:
    return x.sum(axis=1)


@covers(
    "plgpu.sum",
    looks=[ptx(r"add\.(rn\.)?f32", says="add.f32")],
    gaps=absent("sum"),
    uninterpreted={"0.12": "MLIR translation rule for primitive 'mosaic_gpu_reduce_sum' not found"},
    note="`axis` and `accumulator_ilp`",
)
@pallasc.kernel(args={"x": "f32[64, 64]"}, targets=EVERYWHERE, reference=totals_of_rows)
def sums_of_rows(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        value = load(x_gmem, layout=plgpu.Layout.WGMMA, optimized=False)
        store(out_gmem, plgpu.sum(value, axis=1, accumulator_ilp=2))

    return plgpu.kernel(body, out_type=vector(64))(x)


@covers(
    "plgpu.BlockSpec",
    gaps={
        "0.10": "BlockSpecs with collective_axes are not supported in emit_pipeline",
        "0.12": "pl.BlockSpec with collective_axes= is not supported",
    },
    note="`collective_axes`; see `specialized_pipeline_of_a_cluster`",
)
@pallasc.kernel(args={"x": "f32[256, 64]"}, targets=SINCE_HOPPER)
def pipeline_of_a_cluster(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        def step(_: Any, x_smem: Any, out_smem: Any) -> None:
            out_smem[...] = x_smem[...] + 1

        shared = plgpu.BlockSpec((64, 64), row, collective_axes=("c",))
        plgpu.emit_pipeline(
            step, grid=(4,), in_specs=[shared], out_specs=[plgpu.BlockSpec((64, 64), row)]
        )(x_gmem, out_gmem.at[lax.axis_index("c")])

    out = jax.ShapeDtypeStruct((2, 256, 64), jnp.float32)
    return plgpu.kernel(body, out_type=out, cluster=(2,), cluster_names=("c",))(x)


def twice(x: Any) -> Any:
    return np.stack([x, x])


@covers(
    "plgpu.BlockSpec",
    looks=[
        ptx(r"cp\.async\.bulk\.tensor\.2d\.\S*multicast::cluster"),
        plan("a cluster of 2", lambda plan: plan.launches[0].cluster == (2, 1, 1)),
    ],
    uninterpreted={"0.10": "nan + cluster_barrier", "0.12": "RACE DETECTED"},
    note="`collective_axes`",
    fetches=256 * 64 * 4 // 2,
)
@pallasc.kernel(args={"x": "f32[256, 64]"}, targets=SINCE_HOPPER, reference=twice)
def specialized_pipeline_of_a_cluster(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
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

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((2, 256, 64), jnp.float32),
        cluster=(2,),
        cluster_names=("c",),
        num_threads=2,
        thread_name="wg",
    )(x)


@covers(
    "plgpu.BlockSpec",
    looks=[
        ptx(r"ld\.global"),
        no_ptx(
            r"cp\.async\.bulk\.tensor\S*\.shared::(cluster|cta)\.global",
            says="cp.async….shared….global",
        ),
    ],
    uninterpreted=NO_PREDICATES,
    note="`memory_space`: the array stays where it is",
)
@pallasc.kernel(args={"x": "f32[256, 64]"}, targets=SINCE_HOPPER, reference=plus_one)
def pipeline_of_global_blocks(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        def step(index: Any, all_gmem: Any, out_smem: Any) -> None:
            out_smem[...] = all_gmem[pl.ds(index[0] * 64, 64)] + 1

        outside = plgpu.BlockSpec(memory_space=plgpu.GMEM)
        plgpu.emit_pipeline(
            step, grid=(4,), in_specs=[outside], out_specs=[plgpu.BlockSpec((64, 64), row)]
        )(x_gmem, out_gmem)

    return plgpu.kernel(body, out_type=like(x))(x)


def two_products(a: Any, b: Any) -> Any:
    return 2 * product(a, b)


@covers(
    "plgpu.tcgen05_mma",
    "plgpu.tcgen05_commit_arrive",
    looks=[
        ptx(
            r"tcgen05\.mma\.cta_group::1\.kind::f16\s+\[\S+\],\s*\[",
            says="tcgen05.mma […], […]: A in tensor memory",
        ),
        ptx(r"(?s)(tcgen05\.mma\.cta_group::1.*){2}", says="tcgen05.mma twice"),
    ],
    uninterpreted={"0.10": "Unsupported memory space: tmem"},
    note="`accumulate`, and a left side in tensor memory",
)
@pallasc.kernel(
    args={"a": "f16[128, 64]", "b": "f16[64, 128]"},
    targets=TENSOR_MEMORY,
    reference=two_products,
    tolerance=NEAR,
)
def product_from_tensor_memory(a: jax.Array, b: jax.Array) -> jax.Array:
    def body(
        a_gmem: Any, b_gmem: Any, out_gmem: Any, b_smem: Any, a_tmem: Any, acc: Any, ready: Any,
        done: Any,
    ) -> None:  # fmt: skip
        plgpu.copy_gmem_to_smem(b_gmem, b_smem, ready)
        plgpu.async_store_tmem(a_tmem, load(a_gmem, layout=plgpu.Layout.TCGEN05, optimized=False))
        plgpu.commit_tmem()
        plgpu.barrier_wait(ready)
        for accumulate in (False, True):
            plgpu.tcgen05_mma(acc, a_tmem, b_smem, accumulate=accumulate)
        plgpu.tcgen05_commit_arrive(done)
        plgpu.barrier_wait(done)
        out_gmem[...] = plgpu.async_load_tmem(acc)

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((128, 128), jnp.float32),
        scratch_types=[
            plgpu.SMEM((64, 128), jnp.float16),
            plgpu.TMEM((128, 64), jnp.float16, packed=True),
            plgpu.TMEM((128, 128), jnp.float32),
            plgpu.Barrier(),
            plgpu.Barrier(orders_tensor_core=True),
        ],
        compiler_params=warpgroup(),
    )(a, b)
