"""Every field of `CompilerParams`, with a value that is not its default, and its effect."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from architectures import EVERYWHERE, HOPPER, SINCE_HOPPER
from covering import compared, covers, fewer, plan, same_artifact
from forms import NEAR, array, exponentials, like, maps, plus_one, product, smem_bytes
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallasc


def exponential(x: jax.Array, **fields: Any) -> jax.Array:
    """Return `exp(x)` with the given parameters."""

    def body(x_gmem: Any, out_gmem: Any) -> None:
        out_gmem[...] = jnp.exp(x_gmem[...])

    return plgpu.kernel(body, out_type=like(x), compiler_params=plgpu.CompilerParams(**fields))(x)


@covers("plgpu.CompilerParams", looks=[r"fma\.rn"], expected=exponentials)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE)
def default_parameters(x: jax.Array) -> jax.Array:
    return exponential(x)


@covers(
    "plgpu.CompilerParams(approx_math)",
    looks=[r"ex2\.approx", fewer(r"fma\.rn", than="default_parameters")],
    expected=exponentials,
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE)
def approximate_mathematics(x: jax.Array) -> jax.Array:
    return exponential(x, approx_math=True)


def blocks(x: jax.Array, **fields: Any) -> jax.Array:
    """Return `x + 1`, block by block, with the given parameters."""

    def body(x_smem: Any, out_smem: Any) -> None:
        out_smem[...] = x_smem[...] + 1

    spec = pl.BlockSpec((64, 64), lambda i, j: (i, j))
    return pl.pallas_call(
        body,
        out_shape=like(x),
        grid=(4, 4),
        in_specs=[spec],
        out_specs=spec,
        compiler_params=plgpu.CompilerParams(**fields),
    )(x)


NO_CALL = {"0.12": "JAX 0.11 and newer do not compile pl.pallas_call with Mosaic GPU"}


@covers(
    "plgpu.CompilerParams(dimension_semantics)",
    looks=[plan("4 blocks instead of 16", lambda plan: plan.launches[0].grid == (4, 1, 1))],
    gaps=NO_CALL,
    expected=plus_one,
)
@pallasc.kernel(args={"x": "f32[256, 256]"}, targets=SINCE_HOPPER)
def sequential_blocks(x: jax.Array) -> jax.Array:
    return blocks(x, dimension_semantics=["parallel", "sequential"])


# The dimensions of `plgpu.kernel` are parallel anyway.
@covers(
    "plgpu.CompilerParams(dimension_semantics)",
    looks=[same_artifact("default_parameters")],
    gaps={"0.12": "dimension_semantics= is not supported by the unpipelined lowering"},
    expected=exponentials,
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE)
def parallel_kernel(x: jax.Array) -> jax.Array:
    return exponential(x, dimension_semantics=[])


# `plgpu.kernel` takes it and leaves nothing of it; `emit_pipeline` has one of its own, see
# `pipeline`.
@covers(
    "plgpu.CompilerParams(max_concurrent_steps)",
    looks=[same_artifact("default_parameters")],
    expected=exponentials,
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE)
def concurrent_steps_of_a_kernel(x: jax.Array) -> jax.Array:
    return exponential(x, max_concurrent_steps=2)


# `BlockSpec` has it, see `pipeline_of_tiles`.
@covers(
    "plgpu.CompilerParams(delay_release)",
    gaps=dict.fromkeys(
        ("0.10", "0.12"),
        "CompilerParams.__init__() got an unexpected keyword argument 'delay_release'",
    ),
)
@pallasc.kernel(args={"x": "f32[256, 256]"}, targets=SINCE_HOPPER)
def delayed_release(x: jax.Array) -> jax.Array:
    return blocks(x, max_concurrent_steps=2, delay_release=1)


def through_smem(x: jax.Array, **fields: Any) -> jax.Array:
    """Return `x + 1` through shared memory, with the given parameters."""

    def body(x_gmem: Any, out_gmem: Any, smem: Any) -> None:
        smem[...] = x_gmem[...]
        out_gmem[...] = smem[...] + 1
        smem[...] = x_gmem[...] + 2

    return plgpu.kernel(
        body,
        out_type=like(x),
        scratch_types=[plgpu.SMEM(x.shape, x.dtype)],
        compiler_params=plgpu.CompilerParams(**fields),
    )(x)


@covers("plgpu.CompilerParams", looks=[r"bar\.sync"], expected=plus_one)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE)
def automatic_barriers(x: jax.Array) -> jax.Array:
    return through_smem(x)


@covers(
    "plgpu.CompilerParams(unsafe_no_auto_barriers)",
    looks=[fewer(r"bar\.sync|barrier\.\S*sync", than="automatic_barriers")],
    expected=plus_one,
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE)
def no_automatic_barriers(x: jax.Array) -> jax.Array:
    return through_smem(x, unsafe_no_auto_barriers=True)


def total(x: jax.Array, **fields: Any) -> jax.Array:
    """Return the sum of each row, with the given parameters."""

    def body(x_gmem: Any, out_gmem: Any) -> None:
        out_gmem[...] = jnp.broadcast_to(jnp.sum(x_gmem[...]), (128,))

    return plgpu.kernel(body, out_type=array(128), compiler_params=plgpu.CompilerParams(**fields))(
        x
    )


def totals(x: Any) -> Any:
    return np.full((128,), x.sum(), np.float32)


@covers("plgpu.CompilerParams", looks=[r"shfl\.sync"], expected=totals)
@pallasc.kernel(args={"x": "f32[1024]"}, targets=EVERYWHERE)
def reduction(x: jax.Array) -> jax.Array:
    return total(x)


@covers(
    "plgpu.CompilerParams(reduction_scratch_bytes)",
    looks=[
        compared(
            "4096 bytes more shared memory than",
            lambda own, other: smem_bytes(own.plan) == smem_bytes(other.plan) + 4096,
            to="reduction",
        )
    ],
    expected=totals,
)
@pallasc.kernel(args={"x": "f32[1024]"}, targets=EVERYWHERE)
def reduction_with_more_scratch(x: jax.Array) -> jax.Array:
    return total(x, reduction_scratch_bytes=2048 + 4096)


def profiled(x: jax.Array, **fields: Any) -> jax.Array:
    """Return `x + 1` from a kernel that is profiled, with the given parameters."""

    def body(x_gmem: Any, out_gmem: Any) -> None:
        out_gmem[...] = x_gmem[...] + 1

    parameters = plgpu.CompilerParams(profile_space=8, profile_dir="traces", **fields)
    return plgpu.kernel(body, out_type=like(x), compiler_params=parameters)(x)


PROFILED = "the kernel is profiled (profile_space), which pallasc does not support"


@covers(
    [
        "plgpu.CompilerParams(profile_space)",
        "plgpu.CompilerParams(profile_dir)",
        "plgpu.CompilerParams(profile_trace_scope)",
        "plgpu.TraceScope",
    ],
    gaps=dict.fromkeys(("0.10", "0.12"), PROFILED),
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE)
def profile(x: jax.Array) -> jax.Array:
    return profiled(x, profile_trace_scope=plgpu.TraceScope.WARP)


@covers(
    "plgpu.CompilerParams(profile_bounds_check)",
    gaps={
        "0.10": "CompilerParams.__init__() got an unexpected keyword argument "
        "'profile_bounds_check'",
        "0.12": PROFILED,
    },
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE)
def profile_within_bounds(x: jax.Array) -> jax.Array:
    return profiled(x, profile_bounds_check=True)


def square(x: jax.Array, transforms: Any, **fields: Any) -> jax.Array:
    """Return `x @ x` by `wgmma` on shared memory with transforms, with the given parameters."""

    def body(x_gmem: Any, out_gmem: Any, left: Any, right: Any, loaded: Any) -> None:
        plgpu.copy_gmem_to_smem(x_gmem, left, loaded)
        plgpu.copy_gmem_to_smem(x_gmem, right, loaded)
        plgpu.barrier_wait(loaded)

        def multiply(acc: Any) -> Any:
            plgpu.wgmma(acc, left, right)
            return acc[...]

        out_gmem[...] = pl.run_scoped(multiply, plgpu.ACC(x.shape))

    smem = plgpu.SMEM(x.shape, x.dtype, transforms=transforms)
    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct(x.shape, jnp.float32),
        scratch_types=[smem, smem, plgpu.Barrier(num_arrivals=2)],
        compiler_params=plgpu.CompilerParams(**fields),
    )(x)


def squared(x: Any) -> Any:
    return product(x, x)


# Transforms are those that the kernel names.
@covers(
    ["plgpu.CompilerParams(lowering_semantics)", "plgpu.LoweringSemantics"],
    looks=[plan("a swizzle of 64 bytes", lambda plan: {m.swizzle for m in maps(plan)} == {64})],
    expected=squared,
)
@pallasc.kernel(args={"x": "f16[64, 64]"}, targets=HOPPER, tolerance=NEAR)
def lane_semantics(x: jax.Array) -> jax.Array:
    transforms = (plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(64))
    return square(x, transforms, lowering_semantics=plgpu.LoweringSemantics.Lane)


# Where the kernel names none.
@covers(
    ["plgpu.CompilerParams(lowering_semantics)", "plgpu.LoweringSemantics"],
    gaps=dict.fromkeys(
        ("0.10", "0.12"),
        "When WGMMA lhs is passed in as a ref, it must be transformed by swizzling and tiling",
    ),
)
@pallasc.kernel(args={"x": "f16[64, 64]"}, targets=HOPPER)
def lane_semantics_of_plain_memory(x: jax.Array) -> jax.Array:
    return square(x, (), lowering_semantics=plgpu.LoweringSemantics.Lane)


# Mosaic finds the transforms.
@covers(
    ["plgpu.CompilerParams(lowering_semantics)", "plgpu.LoweringSemantics"],
    looks=[plan("a swizzle of 128 bytes", lambda plan: {m.swizzle for m in maps(plan)} == {128})],
    expected=squared,
)
@pallasc.kernel(args={"x": "f16[64, 64]"}, targets=HOPPER, tolerance=NEAR)
def warpgroup_semantics(x: jax.Array) -> jax.Array:
    return square(x, (), lowering_semantics=plgpu.LoweringSemantics.Warpgroup)
