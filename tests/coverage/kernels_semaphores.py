"""Semaphores: what blocks, and kernels after each other, wait for."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from architectures import EVERYWHERE
from covering import covers, plan, ptx
from forms import NO_SEMAPHORES, absent, buffers, lane, like, same, unfenced, zeroes, zeros
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.mosaic.gpu import utils
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallasc


def each_block_has_one(plan: Any) -> bool:
    """Return whether a kernel of XLA first writes a word of zeros for each of two blocks."""
    first, kernel = plan.launches
    (zeros,) = first.parameters
    return (first.origin, first.block, kernel.grid) == ("xla", (2, 1, 1), (2, 1, 1)) and (
        zeros in kernel.parameters
    )


@covers(
    "plgpu.SemaphoreType",
    "plgpu.semaphore_signal",
    "plgpu.semaphore_wait",
    looks=[
        ptx(r"(atom|red)\.\S*gpu\S*add|(atom|red)\.add\S*gpu", says="atom….gpu….add"),
        plan("4 bytes of zeros for it", lambda plan: zeroes(plan) == 4),
    ],
    gaps=unfenced(),
    uninterpreted=NO_SEMAPHORES,
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, reference=same)
def semaphores(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, semaphore: Any) -> None:
        plgpu.semaphore_signal(semaphore, 2, memory_scope="gpu")
        plgpu.semaphore_wait(semaphore, 2, memory_scope="gpu")
        out_gmem[...] = x_gmem[...]

    scratch = [plgpu.SemaphoreType.REGULAR(())]
    return plgpu.kernel(body, out_type=like(x), scratch_types=scratch)(x)


@covers(
    "plgpu.SemaphoreType",
    looks=[plan("4 bytes of zeros for each block", each_block_has_one)],
    gaps=unfenced(),
    uninterpreted=NO_SEMAPHORES,
)
@pallasc.kernel(args={"x": "f32[2, 128]"}, targets=EVERYWHERE, reference=same)
def semaphores_of_blocks(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, semaphore: Any) -> None:
        block = lax.axis_index("i")
        pl.semaphore_signal(semaphore)
        pl.semaphore_wait(semaphore)
        out_gmem[block] = x_gmem[block]

    scratch = [plgpu.SemaphoreType.REGULAR(())]
    return plgpu.kernel(
        body, out_type=like(x), scratch_types=scratch, grid=(2,), grid_names=("i",)
    )(x)


@covers(
    "plgpu.semaphore_signal_parallel",
    "plgpu.SemaphoreSignal",
    looks=[ptx(r"fence\.\S*(sys|gpu)", says="fence….sys"), ptx(r"(red|atom)\.", says="red/atom")],
    gaps=unfenced("release"),
    uninterpreted=NO_SEMAPHORES,
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, reference=same)
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


def in_both(plan: Any) -> list[int]:
    """Return the sizes of what begins as zeros and is given to both of two Mosaic kernels."""
    first, second = (buffers(launch) for launch in plan.launches if launch.origin == "mosaic")
    return [plan.buffers[number].size for number in first & second & zeros(plan)]


@covers(
    "plgpu.alloc_semaphore",
    looks=[
        plan(
            "two launches are given one semaphore: 4 bytes that begin as zeros",
            lambda plan: in_both(plan) == [4],
        )
    ],
    gaps=absent("alloc_semaphore") | unfenced(),
    uninterpreted={
        "0.12": "type object 'AbstractSemaphoreTyRules' has no attribute "
        "'global_sharded_result_handler'"
    },
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, reference=same)
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


@covers(
    "pl.get_global",
    "pl.semaphore_signal",
    "pl.semaphore_wait",
    looks=[
        ptx(r"(atom|red)\.\S*add", says="atom….add"),
        ptx(r"ld\.(relaxed|acquire|volatile)|atom\.\S*cas", says="ld.acquire/atom….cas"),
        plan("4 bytes of zeros for it", lambda plan: zeroes(plan) == 4),
    ],
    gaps=unfenced(),
    uninterpreted="No ir_type_handler for aval type: <class 'jax._src.state.types.AbstractRef'>",
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, reference=same)
def semaphore_of_all_blocks(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        semaphore = pl.get_global(plgpu.SemaphoreType.REGULAR)

        @pl.when(lax.axis_index("i") == 0)
        def signal() -> None:
            out_gmem[...] = x_gmem[...]
            pl.semaphore_signal(semaphore, 2)

        @pl.when(lax.axis_index("i") == 1)
        def wait() -> None:
            pl.semaphore_wait(semaphore, 2)

    return plgpu.kernel(body, out_type=like(x), grid=(2,), grid_names=("i",))(x)


def meet() -> None:
    """Have the warps of a block wait for each other."""

    @plgpu.inline_mgpu()
    def wait(_: Any) -> None:
        utils.warpgroup_barrier()

    wait()


def threes(x: Any) -> Any:
    return np.full_like(x, 3)


@covers(
    "pl.semaphore_read",
    "pl.semaphore_signal",
    "pl.semaphore_wait",
    looks=[
        ptx(r"red\.release\.sys\.global\.add\.u32"),
        ptx(r"ld\.acquire\.sys\.u32"),
        ptx(r"atom\.\S*global\.cas\.b32"),
    ],
    gaps=unfenced(),
    uninterpreted=NO_SEMAPHORES,
    note="a barrier, because one thread signals and all read",
)
@pallasc.kernel(args={"x": "i32[128]"}, targets=EVERYWHERE, reference=threes)
def value_of_a_semaphore(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, semaphore: Any) -> None:
        pl.semaphore_signal(semaphore, 3)
        meet()
        out_gmem[...] = lax.broadcast(pl.semaphore_read(semaphore), (128,))
        meet()
        pl.semaphore_wait(semaphore, 3)

    return plgpu.kernel(
        body,
        out_type=like(x),
        scratch_types=[plgpu.SemaphoreType.REGULAR(())],
        compiler_params=lane(),
    )(x)
