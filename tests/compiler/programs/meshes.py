"""Kernels over several devices, JAX's own and small ones."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas.ops.gpu import (
    all_gather_mgpu,
    collective_matmul_mgpu,
    hopper_matmul_mgpu,
    reduce_scatter_mgpu,
)


def _like(x: Any) -> Any:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def all_gather(x: Any) -> Any:
    return all_gather_mgpu.all_gather(x, axis_name="x", num_blocks=8)


def reduce_scatter(x: Any) -> Any:
    return reduce_scatter_mgpu.reduce_scatter(x, axis_name="x", num_blocks=8)


def collective_matmul(a: Any, b: Any) -> Any:
    config = hopper_matmul_mgpu.TuningConfig(
        tile_m=64,
        tile_n=64,
        tile_k=64,
        max_concurrent_steps=4,
        wg_dimension=hopper_matmul_mgpu.MatmulDimension.M,
    )
    return collective_matmul_mgpu.all_gather_lhs_matmul(a, b, axis_name="x", config=config)


def signal(x: Any) -> Any:
    def body(x_ref: Any, o_ref: Any, arrived: Any) -> None:
        right = lax.rem(lax.axis_index("x") + 1, lax.axis_size("x"))
        pl.semaphore_signal(arrived, 1, device_id=right)
        pl.semaphore_wait(arrived)
        plgpu.remote_ref(o_ref, right)[...] = x_ref[...]

    scratch = [plgpu.SemaphoreType.REGULAR]
    return plgpu.kernel(body, out_type=_like(x), scratch_types=scratch)(x)


def fetch(x: Any) -> Any:
    """Copy from the right neighbour by TMA, whose tensor map the host makes."""

    def body(x_ref: Any, o_ref: Any, memory: Any, barrier: Any) -> None:
        right = lax.rem(lax.axis_index("x") + 1, lax.axis_size("x"))
        plgpu.copy_gmem_to_smem(plgpu.remote_ref(x_ref, right), memory, barrier)
        plgpu.barrier_wait(barrier)
        plgpu.copy_smem_to_gmem(memory, o_ref)
        plgpu.wait_smem_to_gmem(0)

    scratch = [plgpu.SMEM(x.shape, x.dtype), plgpu.Barrier()]
    return plgpu.kernel(body, out_type=_like(x), scratch_types=scratch)(x)


def reduced(x: Any) -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        total = plgpu.multimem_load_reduce(x_ref, collective_axes="x", reduction_op="add")
        o_ref[...] = plgpu.layout_cast(total, plgpu.Layout.WG_STRIDED(x.shape, vec_size=4))

    params = plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup)
    return plgpu.kernel(body, out_type=_like(x), compiler_params=params)(x)


def two_axes(x: Any) -> Any:
    def body(x_ref: Any, o_ref: Any, arrived: Any) -> None:
        pl.semaphore_signal(arrived, 1, device_id={"b": 1})
        o_ref[...] = x_ref[...]

    scratch = [plgpu.SemaphoreType.REGULAR]
    return plgpu.kernel(body, out_type=_like(x), scratch_types=scratch)(x)


def alone(x: Any) -> Any:
    return jnp.sin(x)


def summed(x: Any) -> Any:
    return lax.psum(x, "x")


_ONE = (("x", 4),)
CASES = {
    "all_gather": (all_gather, ["f16[256, 256]"], {}, _ONE),
    "reduce_scatter": (reduce_scatter, ["f16[1024, 256]"], {}, _ONE),
    "collective_matmul": (collective_matmul, ["f16[256, 256]"] * 2, {}, _ONE),
    "signal": (signal, ["f32[128]"], {}, _ONE),
    "fetch": (fetch, ["f32[128]"], {}, _ONE),
    "reduced": (reduced, ["f32[1024]"], {}, _ONE),
    "two_axes": (two_axes, ["f32[128]"], {}, (("a", 2), ("b", 2))),
    "alone": (alone, ["f32[128]"], {}, _ONE),
    "alone_on_two": (alone, ["f32[128]"], {}, (("x", 2),)),
    "summed": (summed, ["f32[128]"], {}, _ONE),
    "without_a_mesh": (all_gather, ["f16[256, 256]"], {}),
}
