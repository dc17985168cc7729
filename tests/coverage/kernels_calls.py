"""The module `pl`: ways to call a kernel, over blocks of arrays or over a mesh."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from architectures import BEFORE_HOPPER, EVERYWHERE, SINCE_HOPPER
from covering import covers, kernel, no_ptx, plan, same_artifact
from forms import array, like, maps, plus_one
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallasc

NO_CALL = {"0.12": "JAX 0.11 and newer do not compile pl.pallas_call with Mosaic GPU"}


def blocks() -> Any:
    """Return the spec of blocks of 64 x 64."""
    return pl.BlockSpec((64, 64), lambda i, j: (i, j))


def origins(plan: Any) -> list[str]:
    """Return who wrote the kernel of each launch."""
    return [launch.origin for launch in plan.launches]


def block_plus_one(x_smem: Any, out_smem: Any) -> None:
    out_smem[...] = x_smem[...] + 1


@covers(
    ["pl.pallas_call", "pl.BlockSpec"],
    looks=[
        plan("16 blocks", lambda plan: math.prod(plan.launches[0].grid) == 16),
        plan("boxes of 64 x 64", lambda plan: {m.box[:2] for m in maps(plan)} == {(64, 64)}),
        r"cp\.async\.bulk\.tensor\.2d\.shared",
    ],
    gaps=NO_CALL,
    expected=plus_one,
)
@pallasc.kernel(args={"x": "f32[256, 256]"}, targets=SINCE_HOPPER)
def call_over_blocks(x: jax.Array) -> jax.Array:
    return pl.pallas_call(
        block_plus_one,
        out_shape=like(x),
        grid=(4, 4),
        in_specs=[blocks()],
        out_specs=blocks(),
        compiler_params=plgpu.CompilerParams(),
    )(x)


# Without `compiler_params`.
@covers(
    "pl.pallas_call",
    looks=[
        plan("a kernel of Mosaic's", lambda plan: origins(plan) == ["mosaic"], jax="0.10"),
        plan("a kernel of XLA's, by Triton", lambda plan: origins(plan) == ["xla"], jax="0.12"),
    ],
    gaps=dict.fromkeys(
        (f"0.10 {arch}" for arch in BEFORE_HOPPER),
        "'nvvm.cp.async.bulk.wait_group' op is not supported on …",
    ),
    expected=plus_one,
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE)
def call_without_parameters(x: jax.Array) -> jax.Array:
    return pl.pallas_call(block_plus_one, out_shape=like(x))(x)


@covers("pl.GridSpec", looks=[same_artifact("call_over_blocks")], gaps=NO_CALL, expected=plus_one)
@pallasc.kernel(args={"x": "f32[256, 256]"}, targets=SINCE_HOPPER)
def call_over_a_grid(x: jax.Array) -> jax.Array:
    return pl.pallas_call(
        block_plus_one,
        out_shape=like(x),
        grid_spec=pl.GridSpec(grid=(4, 4), in_specs=[blocks()], out_specs=blocks()),
        compiler_params=plgpu.CompilerParams(),
    )(x)


# See `place_in_a_grid`.
@covers(
    ["pl.program_id", "pl.num_programs"],
    looks=[r"%ctaid\.x", plan("four blocks", lambda plan: plan.launches[0].grid[0] == 4)],
    gaps=NO_CALL,
    expected=lambda x: x + np.repeat(np.arange(4, dtype=np.int32) * 10 + 4, 128),
)
@pallasc.kernel(args={"x": "i32[512]"}, targets=SINCE_HOPPER)
def place_in_a_call(x: jax.Array) -> jax.Array:
    def body(x_smem: Any, out_smem: Any) -> None:
        out_smem[...] = x_smem[...] + (pl.program_id(0) * 10 + pl.num_programs(0))

    spec = pl.BlockSpec((128,), lambda i: (i,))
    return pl.pallas_call(
        body,
        out_shape=like(x),
        grid=(4,),
        in_specs=[spec],
        out_specs=spec,
        compiler_params=plgpu.CompilerParams(),
    )(x)


def numbered(x: Any) -> Any:
    return x + np.arange(4, dtype=np.int32)[:, None]


# Deprecated in 0.12; `lax.axis_index` takes its place.
@covers(
    "pl.program_id", looks=[r"%ctaid\.x", same_artifact("place_in_a_kernel")], expected=numbered
)
@kernel({"x": "i32[4, 128]"}, grid=(4,))
def program_of_a_kernel(x_gmem: Any, out_gmem: Any) -> None:
    row = pl.program_id(0)
    out_gmem[row] = x_gmem[row] + row


# `lax.axis_index` in its place.
@covers("pl.program_id", looks=[r"%ctaid\.x"], expected=numbered)
@kernel({"x": "i32[4, 128]"}, grid=(4,))
def place_in_a_kernel(x_gmem: Any, out_gmem: Any) -> None:
    row = lax.axis_index("i")
    out_gmem[row] = x_gmem[row] + row


# `lax.axis_index` and `lax.axis_size` in their place.
@covers(
    ["pl.program_id", "pl.num_programs"],
    looks=[r"%ctaid\.x", plan("four blocks", lambda plan: plan.launches[0].grid[0] == 4)],
    expected=lambda x: x + np.arange(4, dtype=np.int32)[:, None] * 10 + 4,
)
@kernel({"x": "i32[4, 128]"}, grid=(4,))
def place_in_a_grid(x_gmem: Any, out_gmem: Any) -> None:
    row = lax.axis_index("i")
    out_gmem[row] = x_gmem[row] + (row * 10 + lax.axis_size("i"))


def row(i: Any) -> Any:
    return i, 0


def pipelined(x: jax.Array, spec: Any) -> jax.Array:
    """Return `x + 1` by a pipeline over blocks."""

    def body(x_gmem: Any, out_gmem: Any) -> None:
        def step(_: Any, x_smem: Any, out_smem: Any) -> None:
            out_smem[...] = x_smem[...] + 1

        plgpu.emit_pipeline(step, grid=(4,), in_specs=[spec], out_specs=[spec])(x_gmem, out_gmem)

    return plgpu.kernel(body, out_type=like(x))(x)


@covers(
    "pl.BlockSpec",
    looks=[plan("boxes of 64 x 64", lambda plan: {m.box[:2] for m in maps(plan)} == {(64, 64)})],
    expected=plus_one,
)
@pallasc.kernel(args={"x": "f32[256, 64]"}, targets=SINCE_HOPPER)
def pipeline_of_plain_blocks(x: jax.Array) -> jax.Array:
    return pipelined(x, pl.BlockSpec((64, 64), row))


# Deprecated in 0.12; `pl.kernel` takes its place.
@covers(
    "pl.core_map",
    looks=[
        plan("four blocks", lambda plan: plan.launches[0].grid == (4, 1, 1)),
        no_ptx(r"mbarrier\.init"),
    ],
    expected=plus_one,
)
@pallasc.kernel(args={"x": "f32[4, 128]"}, targets=EVERYWHERE)
def mapped_over_blocks(x: jax.Array) -> jax.Array:
    @pl.run_state
    def run(refs: Any) -> None:
        x_ref, out_ref = refs

        @pl.core_map(plgpu.Mesh(grid=(4,), grid_names=("i",)))
        def body() -> None:
            row = lax.axis_index("i")
            out_ref[row] = x_ref[row] + 1

    return run((x, jnp.zeros_like(x)))[1]


@covers(
    "pl.cdiv",
    looks=[plan("8 blocks of 128 for 1000", lambda plan: plan.launches[0].grid == (8, 1, 1))],
    expected=plus_one,
)
@kernel({"x": "f32[1024]"}, grid=(pl.cdiv(1000, 128),))
def blocks_rounded_up(x_gmem: Any, out_gmem: Any) -> None:
    block = pl.ds(lax.axis_index("i") * 128, 128)
    out_gmem[block] = x_gmem[block] + 1


def written(x: jax.Array, start: jax.Array) -> jax.Array:
    """Return `x + 1`, written into `start`."""
    out_ref = jax.new_ref(start)

    @pl.kernel(mesh=plgpu.Mesh())
    def body(x_gmem: Any, out_gmem: Any) -> None:
        out_gmem[...] = x_gmem[...] + 1

    body(x, out_ref)
    return jax.freeze(out_ref)


def steps(plan: Any) -> list[str]:
    """Return the kinds of a plan's steps."""
    return [type(step).__name__ for step in plan.steps]


@covers(
    "pl.empty",
    looks=[plan("only a launch", lambda plan: steps(plan) == ["Launch"])],
    expected=plus_one,
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE)
def into_an_empty_array(x: jax.Array) -> jax.Array:
    return written(x, pl.empty(x.shape, x.dtype))


@covers("pl.empty_like", looks=[same_artifact("into_an_empty_array")], expected=plus_one)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE)
def into_an_array_like_another(x: jax.Array) -> jax.Array:
    return written(x, pl.empty_like(array(128)))
