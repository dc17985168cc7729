"""Semaphores, and kernels over two devices, whose references take the arrays of both."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from architectures import EVERYWHERE, SINCE_HOPPER
from covering import compared, covers, kernel, plan
from forms import absent, array, buffers, lane, like, same, unfenced, zeroes, zeros
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
    ["plgpu.SemaphoreType", "plgpu.semaphore_signal", "plgpu.semaphore_wait"],
    looks=[
        r"(atom|red)\.\S*gpu\S*add|(atom|red)\.add\S*gpu",
        plan("4 bytes of zeros for it", lambda plan: zeroes(plan) == 4),
    ],
    gaps=unfenced(),
    expected=same,
)
@kernel({"x": "f32[128]"}, scratch=[plgpu.SemaphoreType.REGULAR(())])
def semaphores(x_gmem: Any, out_gmem: Any, semaphore: Any) -> None:
    plgpu.semaphore_signal(semaphore, 2, memory_scope="gpu")
    plgpu.semaphore_wait(semaphore, 2, memory_scope="gpu")
    out_gmem[...] = x_gmem[...]


@covers(
    "plgpu.SemaphoreType",
    looks=[plan("4 bytes of zeros for each block", each_block_has_one)],
    gaps=unfenced(),
    expected=same,
)
@kernel({"x": "f32[2, 128]"}, scratch=[plgpu.SemaphoreType.REGULAR(())], grid=(2,))
def semaphores_of_blocks(x_gmem: Any, out_gmem: Any, semaphore: Any) -> None:
    block = lax.axis_index("i")
    pl.semaphore_signal(semaphore)
    pl.semaphore_wait(semaphore)
    out_gmem[block] = x_gmem[block]


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
    expected=same,
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


@covers(
    ["pl.get_global", "pl.semaphore_signal", "pl.semaphore_wait"],
    looks=[
        r"(atom|red)\.\S*add",
        r"ld\.(relaxed|acquire|volatile)|atom\.\S*cas",
        plan("4 bytes of zeros for it", lambda plan: zeroes(plan) == 4),
    ],
    gaps=unfenced(),
    expected=same,
)
@kernel({"x": "f32[128]"}, grid=(2,))
def semaphore_of_all_blocks(x_gmem: Any, out_gmem: Any) -> None:
    semaphore = pl.get_global(plgpu.SemaphoreType.REGULAR)

    @pl.when(lax.axis_index("i") == 0)
    def signal() -> None:
        out_gmem[...] = x_gmem[...]
        pl.semaphore_signal(semaphore, 2)

    @pl.when(lax.axis_index("i") == 1)
    def wait() -> None:
        pl.semaphore_wait(semaphore, 2)


def meet_in_a_block() -> None:
    """Have the warps of a block wait for each other."""

    @plgpu.inline_mgpu()
    def wait(_: Any) -> None:
        utils.warpgroup_barrier()

    wait()


# A barrier, because one thread signals and all read.
@covers(
    ["pl.semaphore_read", "pl.semaphore_signal", "pl.semaphore_wait"],
    looks=[
        r"red\.release\.sys\.global\.add\.u32",
        r"ld\.acquire\.sys\.u32",
        r"atom\.\S*global\.cas\.b32",
    ],
    gaps=unfenced(),
    expected=lambda x: np.full_like(x, 3),
)
@kernel({"x": "i32[128]"}, scratch=[plgpu.SemaphoreType.REGULAR(())], compiler_params=lane())
def value_of_a_semaphore(x_gmem: Any, out_gmem: Any, semaphore: Any) -> None:
    pl.semaphore_signal(semaphore, 3)
    meet_in_a_block()
    out_gmem[...] = lax.broadcast(pl.semaphore_read(semaphore), (128,))
    meet_in_a_block()
    pl.semaphore_wait(semaphore, 3)


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


@covers(
    "plgpu.multimem_store",
    looks=[r"multimem\.st\.\S*global", PEERS, MULTICAST, SYMMETRIC],
    expected=lambda x: x[:1].repeat(2, axis=0),
)
@kernel({"x": "i32[128]"}, SINCE_HOPPER, mesh={"d": 2}, scratch=[plgpu.SemaphoreType.REGULAR(())])
def store_on_all_devices(x_gmem: Any, out_gmem: Any, semaphore: Any) -> None:
    @pl.when(lax.axis_index("d") == 0)
    def store() -> None:
        plgpu.multimem_store(x_gmem[...], out_gmem, "d")

    meet(semaphore)


@covers(
    "plgpu.multimem_store",
    gaps=dict.fromkeys(
        ("0.10", "0.12"), "JAX device mesh is required by multimem_store, but not defined."
    ),
)
@kernel({"x": "i32[128]"}, SINCE_HOPPER)
def store_without_a_mesh(x_gmem: Any, out_gmem: Any) -> None:
    plgpu.multimem_store(x_gmem[...], out_gmem, "d")


@covers(
    "plgpu.multimem_load_reduce",
    looks=[r"multimem\.ld_reduce\.\S*global\S*\.add", PEERS, MULTICAST],
    expected=lambda x: x.sum(axis=0, keepdims=True).repeat(2, axis=0),
)
@kernel(
    {"x": "f32[64, 32]"}, SINCE_HOPPER, mesh={"d": 2}, scratch=[plgpu.SemaphoreType.REGULAR(())]
)
def sum_over_all_devices(x_gmem: Any, out_gmem: Any, semaphore: Any) -> None:
    found = plgpu.multimem_load_reduce(x_gmem, collective_axes="d", reduction_op="add")
    out_gmem[...] = plgpu.layout_cast(found, plgpu.Layout.WG_STRIDED((64, 32), vec_size=4))
    meet(semaphore)


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


@covers("plgpu.copy_smem_to_gmem", looks=[r"cp\.async\.bulk", PEERS], expected=same)
@pallasc.kernel(args={"x": "f32[128]"}, targets=SINCE_HOPPER, mesh={"d": 2})
def memory_of_this_device(x: jax.Array) -> jax.Array:
    return copied(x, to_another=False)


def more_addresses(own: Any, other: Any) -> bool:
    """Return whether a kernel reads more addresses from the table of peers."""
    own_count, other_count = (len(re.findall(r"ld\.global\S*64", one.ptx)) for one in (own, other))
    return own_count > other_count


def of_the_other(x: Any) -> Any:
    return x[::-1]


@covers(
    ["plgpu.remote_ref", "plgpu.PeerMemRef"],
    looks=[
        r"cp\.async\.bulk",
        PEERS,
        OUTPUT,
        compared("more addresses read than in", more_addresses, to="memory_of_this_device"),
    ],
    expected=of_the_other,
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=SINCE_HOPPER, mesh={"d": 2})
def memory_of_another_device(x: jax.Array) -> jax.Array:
    return copied(x, to_another=True)


@covers(
    "plgpu.multicast_ref",
    looks=[r"cp\.async\.bulk", PEERS, MULTICAST, SYMMETRIC],
    expected=lambda x: x[None].repeat(2, axis=0),
)
@kernel(
    {"x": "f32[128]"},
    SINCE_HOPPER,
    mesh={"d": 2},
    out_type=array(2, 128),
    scratch=[plgpu.SMEM((128,), jnp.float32), plgpu.SemaphoreType.REGULAR(())],
)
def memory_of_all_devices(x_gmem: Any, out_gmem: Any, smem: Any, semaphore: Any) -> None:
    smem[...] = x_gmem[...]
    plgpu.commit_smem()
    own_row = out_gmem.at[lax.axis_index("d")]
    plgpu.copy_smem_to_gmem(smem, plgpu.multicast_ref(own_row, "d"))
    plgpu.wait_smem_to_gmem(0)
    meet(semaphore)


@covers(
    "plgpu.semaphore_signal_multicast",
    looks=[r"multimem\.red\.\S*add", PEERS, MULTICAST],
    expected=same,
)
@kernel({"x": "f32[128]"}, SINCE_HOPPER, mesh={"d": 2}, scratch=[plgpu.SemaphoreType.REGULAR(())])
def signal_on_all_devices(x_gmem: Any, out_gmem: Any, semaphore: Any) -> None:
    out_gmem[...] = x_gmem[...]
    plgpu.semaphore_signal_multicast(semaphore, collective_axes="d")
    pl.semaphore_wait(semaphore, 2)


@covers(
    ["plgpu.semaphore_signal", "plgpu.semaphore_signal_parallel", "plgpu.SemaphoreSignal"],
    looks=[r"(red|atom)\.\S*sys\S*add", PEERS],
    gaps=unfenced("release"),
    expected=same,
)
@kernel(
    {"x": "f32[128]"},
    mesh={"d": 2},
    scratch=[plgpu.SemaphoreType.REGULAR(()), plgpu.SemaphoreType.REGULAR(())],
)
def signals_to_another_device(x_gmem: Any, out_gmem: Any, one: Any, two: Any) -> None:
    out_gmem[...] = x_gmem[...]
    other = 1 - lax.axis_index("d")
    plgpu.semaphore_signal(one, device_id=other)
    plgpu.semaphore_signal_parallel(
        plgpu.SemaphoreSignal(one, device_id=other), plgpu.SemaphoreSignal(two, device_id=other)
    )
    pl.semaphore_wait(one, 2)
    pl.semaphore_wait(two)


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
    expected=of_the_other,
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, mesh={"d": 2})
def devices_that_meet(x: jax.Array) -> jax.Array:
    return scaled(x)


def without(field: str) -> dict[str, str]:
    """Return the gap of a field that JAX 0.10 has not."""
    return {"0.10": f"CompilerParams.__init__() got an unexpected keyword argument '{field}'"}


@covers(
    "plgpu.CompilerParams(skip_device_barrier)",
    looks=[PEERS, plan("no barrier before the launch", lambda plan: not table(plan).barrier)],
    gaps={**without("skip_device_barrier"), **unfenced()},
    expected=of_the_other,
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, mesh={"d": 2})
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
    expected=of_the_other,
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, mesh={"d": 2})
def several_processes(x: jax.Array) -> jax.Array:
    return scaled(x, is_multi_process=True)
