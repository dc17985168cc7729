"""Kernels over two devices: what they say to each other, and what the plan says they need.

Such kernels are compiled, shown, and executed on emulated devices; launching them is refused until
there is a runtime for it. Their references take and give the arrays of all devices, the first
dimension being the devices.
"""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
from architectures import EVERYWHERE, SINCE_HOPPER
from covering import compared, covers, plan, ptx
from forms import NO_SEMAPHORES, like, same, unfenced
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallasc

PEERS = plan("a table of 2 peers", lambda plan: table(plan).ranks == 2)
OUTPUT = plan(
    "the output is in that table",
    lambda plan: plan.outputs[0].buffer in {buffer for buffer, _ in table(plan).arrays},
)
SYMMETRIC = plan("an array in symmetric memory", lambda plan: table(plan).symmetric)
MULTICAST = plan("multicast memory", lambda plan: table(plan).multicast)


def table(plan: Any) -> Any:
    """Return the table of peers of the one Mosaic kernel."""
    (found,) = [launch.peer_table for launch in plan.launches if launch.peer_table]
    return found


def symmetric(found: Any) -> Any:
    """Return the arrays that have to lie in memory which all devices can reach."""
    return table(found.plan).symmetric


def meet(semaphore: Any) -> None:
    """Wait until the other device is here too."""
    pl.semaphore_signal(semaphore, 1, device_id=1 - lax.axis_index("d"))
    pl.semaphore_wait(semaphore)


def of_the_first(x: Any) -> Any:
    return x[:1].repeat(2, axis=0)


@covers(
    "plgpu.multimem_store",
    looks=[ptx(r"multimem\.st\.\S*global"), PEERS, MULTICAST, SYMMETRIC],
    uninterpreted=NO_SEMAPHORES,
)
@pallasc.kernel(args={"x": "i32[128]"}, targets=SINCE_HOPPER, mesh={"d": 2}, reference=of_the_first)
def store_on_all_devices(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, semaphore: Any) -> None:
        @pl.when(lax.axis_index("d") == 0)
        def store() -> None:
            plgpu.multimem_store(x_gmem[...], out_gmem, "d")

        meet(semaphore)

    scratch = [plgpu.SemaphoreType.REGULAR(())]
    return plgpu.kernel(body, out_type=like(x), scratch_types=scratch)(x)


@covers(
    "plgpu.multimem_store",
    gaps=dict.fromkeys(
        ("0.10", "0.12"), "JAX device mesh is required by multimem_store, but not defined."
    ),
)
@pallasc.kernel(args={"x": "i32[128]"}, targets=SINCE_HOPPER)
def store_without_a_mesh(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        plgpu.multimem_store(x_gmem[...], out_gmem, "d")

    return plgpu.kernel(body, out_type=like(x))(x)


def reduced(x: jax.Array, operation: Any) -> jax.Array:
    """Return what an operation makes of the arrays of all devices."""

    def body(x_gmem: Any, out_gmem: Any, semaphore: Any) -> None:
        found = plgpu.multimem_load_reduce(x_gmem, collective_axes="d", reduction_op=operation)
        out_gmem[...] = plgpu.layout_cast(found, plgpu.Layout.WG_STRIDED((64, 32), vec_size=4))
        meet(semaphore)

    scratch = [plgpu.SemaphoreType.REGULAR(())]
    return plgpu.kernel(body, out_type=like(x), scratch_types=scratch)(x)


def sum_of_devices(x: Any) -> Any:
    return x.sum(axis=0, keepdims=True).repeat(2, axis=0)


@covers(
    "plgpu.multimem_load_reduce",
    looks=[ptx(r"multimem\.ld_reduce\.\S*global\S*\.add"), PEERS, MULTICAST],
    uninterpreted=NO_SEMAPHORES,
)
@pallasc.kernel(
    args={"x": "f32[64, 32]"}, targets=SINCE_HOPPER, mesh={"d": 2}, reference=sum_of_devices
)
def sum_over_all_devices(x: jax.Array) -> jax.Array:
    return reduced(x, "add")


def most_of_devices(x: Any) -> Any:
    return x.max(axis=0, keepdims=True).repeat(2, axis=0)


@covers(
    "plgpu.multimem_load_reduce",
    looks=[ptx(r"multimem\.ld_reduce\.\S*global\S*\.max"), PEERS, MULTICAST],
    uninterpreted=NO_SEMAPHORES,
    note="`reduction_op`",
)
@pallasc.kernel(
    args={"x": "f16[64, 32]"}, targets=SINCE_HOPPER, mesh={"d": 2}, reference=most_of_devices
)
def most_of_all_devices(x: jax.Array) -> jax.Array:
    return reduced(x, "max")


def copied(x: jax.Array, *, to_another: bool) -> jax.Array:
    """Return `x`, or what another device makes of it, copied by TMA."""

    def body(x_gmem: Any, out_gmem: Any, smem: Any, semaphore: Any) -> None:
        smem[...] = x_gmem[...]
        plgpu.commit_smem()
        target = out_gmem
        if to_another:
            target = plgpu.remote_ref(out_gmem, 1 - lax.axis_index("d"))
            assert any(isinstance(transform, plgpu.PeerMemRef) for transform in target.transforms)
        plgpu.copy_smem_to_gmem(smem, target)
        plgpu.wait_smem_to_gmem(0)
        meet(semaphore)

    scratch = [plgpu.SMEM((128,), jnp.float32), plgpu.SemaphoreType.REGULAR(())]
    return plgpu.kernel(body, out_type=like(x), scratch_types=scratch)(x)


@covers(
    "plgpu.copy_smem_to_gmem", looks=[ptx(r"cp\.async\.bulk"), PEERS], uninterpreted=NO_SEMAPHORES
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=SINCE_HOPPER, mesh={"d": 2}, reference=same)
def memory_of_this_device(x: jax.Array) -> jax.Array:
    return copied(x, to_another=False)


def more_addresses(own: Any, other: Any) -> bool:
    """Return whether a kernel reads more addresses from the table of peers."""
    own_count, other_count = (len(re.findall(r"ld\.global\S*64", one.ptx)) for one in (own, other))
    return own_count > other_count


def of_the_other(x: Any) -> Any:
    return x[::-1]


@covers(
    "plgpu.remote_ref",
    "plgpu.PeerMemRef",
    looks=[
        ptx(r"cp\.async\.bulk"),
        PEERS,
        OUTPUT,
        compared("more addresses read than in", more_addresses, to="memory_of_this_device"),
    ],
    uninterpreted=NO_SEMAPHORES,
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=SINCE_HOPPER, mesh={"d": 2}, reference=of_the_other)
def memory_of_another_device(x: jax.Array) -> jax.Array:
    return copied(x, to_another=True)


def of_each(x: Any) -> Any:
    return x[None].repeat(2, axis=0)


@covers(
    "plgpu.multicast_ref",
    looks=[ptx(r"cp\.async\.bulk"), PEERS, MULTICAST, SYMMETRIC],
    uninterpreted=NO_SEMAPHORES,
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=SINCE_HOPPER, mesh={"d": 2}, reference=of_each)
def memory_of_all_devices(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, smem: Any, semaphore: Any) -> None:
        smem[...] = x_gmem[...]
        plgpu.commit_smem()
        own_row = out_gmem.at[lax.axis_index("d")]
        plgpu.copy_smem_to_gmem(smem, plgpu.multicast_ref(own_row, "d"))
        plgpu.wait_smem_to_gmem(0)
        meet(semaphore)

    scratch = [plgpu.SMEM((128,), jnp.float32), plgpu.SemaphoreType.REGULAR(())]
    out = jax.ShapeDtypeStruct((2, 128), x.dtype)
    return plgpu.kernel(body, out_type=out, scratch_types=scratch)(x)


@covers(
    "plgpu.semaphore_signal_multicast",
    looks=[ptx(r"multimem\.red\.\S*add"), PEERS, MULTICAST],
    uninterpreted=NO_SEMAPHORES,
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=SINCE_HOPPER, mesh={"d": 2}, reference=same)
def signal_on_all_devices(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, semaphore: Any) -> None:
        out_gmem[...] = x_gmem[...]
        plgpu.semaphore_signal_multicast(semaphore, collective_axes="d")
        pl.semaphore_wait(semaphore, 2)

    scratch = [plgpu.SemaphoreType.REGULAR(())]
    return plgpu.kernel(body, out_type=like(x), scratch_types=scratch)(x)


@covers(
    "plgpu.semaphore_signal",
    "plgpu.semaphore_signal_parallel",
    "plgpu.SemaphoreSignal",
    looks=[ptx(r"(red|atom)\.\S*sys\S*add"), PEERS],
    gaps=unfenced("release"),
    uninterpreted=NO_SEMAPHORES,
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, mesh={"d": 2}, reference=same)
def signals_to_another_device(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, one: Any, two: Any) -> None:
        out_gmem[...] = x_gmem[...]
        other = 1 - lax.axis_index("d")
        plgpu.semaphore_signal(one, device_id=other)
        plgpu.semaphore_signal_parallel(
            plgpu.SemaphoreSignal(one, device_id=other),
            plgpu.SemaphoreSignal(two, device_id=other),
        )
        pl.semaphore_wait(one, 2)
        pl.semaphore_wait(two)

    scratch = [plgpu.SemaphoreType.REGULAR(()), plgpu.SemaphoreType.REGULAR(())]
    return plgpu.kernel(body, out_type=like(x), scratch_types=scratch)(x)


def scaled(x: jax.Array, **fields: Any) -> jax.Array:
    """Return the other device's array, with the given parameters of the compiler."""

    def body(x_gmem: Any, out_gmem: Any, semaphore: Any) -> None:
        plgpu.remote_ref(out_gmem, 1 - lax.axis_index("d"))[...] = x_gmem[...]
        meet(semaphore)

    scratch = [plgpu.SemaphoreType.REGULAR(())]
    parameters = plgpu.CompilerParams(**fields)
    return plgpu.kernel(body, out_type=like(x), scratch_types=scratch, compiler_params=parameters)(
        x
    )


@covers(
    "plgpu.CompilerParams",
    looks=[PEERS, plan("a barrier before the launch", lambda plan: table(plan).barrier)],
    gaps=unfenced(),
    uninterpreted=NO_SEMAPHORES,
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, mesh={"d": 2}, reference=of_the_other)
def devices_that_meet(x: jax.Array) -> jax.Array:
    return scaled(x)


def without(field: str) -> dict[str, str]:
    """Return the gap of a field that JAX 0.10 has not."""
    return {"0.10": f"CompilerParams.__init__() got an unexpected keyword argument '{field}'"}


@covers(
    "plgpu.CompilerParams(skip_device_barrier)",
    looks=[PEERS, plan("no barrier before the launch", lambda plan: not table(plan).barrier)],
    gaps={**without("skip_device_barrier"), **unfenced()},
    uninterpreted=NO_SEMAPHORES,
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, mesh={"d": 2}, reference=of_the_other)
def no_barrier_of_devices(x: jax.Array) -> jax.Array:
    return scaled(x, skip_device_barrier=True)


@covers(
    "plgpu.CompilerParams(is_multi_process)",
    looks=[
        PEERS,
        compared(
            "more arrays in memory that all devices reach than",
            lambda own, other: len(symmetric(own)) > len(symmetric(other)),
            to="devices_that_meet",
        ),
    ],
    gaps={**without("is_multi_process"), **unfenced()},
    uninterpreted=NO_SEMAPHORES,
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, mesh={"d": 2}, reference=of_the_other)
def several_processes(x: jax.Array) -> jax.Array:
    return scaled(x, is_multi_process=True)
