"""Every keyword of `plgpu.kernel` that other files do not use for what it does."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from architectures import EVERYWHERE, SINCE_HOPPER
from covering import covers, plan, printed, ptx, same_artifact
from forms import exponentials, like, plus_one, same, smem_bytes, vector
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallasc

INTERPRETER = (
    "the function contains a host callback (io_callback), which cannot be launched from a cubin"
)


def no_keyword(name: str, *versions: str) -> dict[str, str]:
    """Return the gap of a keyword that JAX takes for one of `plgpu.Mesh`."""
    words = f"Mesh.__init__() got an unexpected keyword argument '{name}'"
    return dict.fromkeys(versions, words)


def body(x_gmem: Any, out_gmem: Any) -> None:
    out_gmem[...] = x_gmem[...] + 1


@covers("plgpu.kernel(body)", "plgpu.kernel(out_type)", looks=[ptx(r"st\.global")])
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, reference=plus_one)
def kernel_of_a_body(x: jax.Array) -> jax.Array:
    return plgpu.kernel(body, out_type=like(x))(x)


@covers(
    "plgpu.kernel(body)",
    looks=[same_artifact("kernel_of_a_body")],
    note="the factory form: no body, then a decorator",
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, reference=plus_one)
def kernel_from_a_factory(x: jax.Array) -> jax.Array:
    return plgpu.kernel(out_type=like(x))(body)(x)


@covers(
    "plgpu.kernel(out_shape)",
    looks=[same_artifact("kernel_of_a_body")],
    gaps=no_keyword("out_shape", "0.12"),
    note="`out_type` took its place",
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, reference=plus_one)
def kernel_with_an_out_shape(x: jax.Array) -> jax.Array:
    return plgpu.kernel(body, out_shape=like(x))(x)


def both(x: Any) -> Any:
    return {"more": x + 1, "twice": x * 2}, x - 1


@covers(
    "plgpu.kernel(out_type)",
    looks=[
        plan(
            "three outputs in a tree",
            lambda plan: (
                [output.path for output in plan.outputs] == ["out.0.more", "out.0.twice", "out.1"]
            ),
        )
    ],
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, reference=both)
def kernel_with_a_tree_of_outputs(x: jax.Array) -> Any:
    def body(x_gmem: Any, named: Any, less_gmem: Any) -> None:
        named["more"][...] = x_gmem[...] + 1
        named["twice"][...] = x_gmem[...] * 2
        less_gmem[...] = x_gmem[...] - 1

    return plgpu.kernel(body, out_type=({"more": like(x), "twice": like(x)}, like(x)))(x)


def through_smem(x: jax.Array, **keywords: Any) -> jax.Array:
    """Return `x` by way of shared memory."""

    def body(x_gmem: Any, out_gmem: Any, smem: Any, loaded: Any) -> None:
        plgpu.copy_gmem_to_smem(x_gmem, smem, loaded)
        plgpu.barrier_wait(loaded)
        out_gmem[...] = smem[...]

    return plgpu.kernel(body, out_type=like(x), **keywords)(x)


@covers(
    "plgpu.kernel(scratch_types)",
    looks=[
        plan("64 KiB of shared memory", lambda plan: smem_bytes(plan) >= 65536),
        ptx(r"mbarrier\.init"),
    ],
)
@pallasc.kernel(args={"x": "f32[128, 128]"}, targets=SINCE_HOPPER, reference=same)
def kernel_with_scratch(x: jax.Array) -> jax.Array:
    return through_smem(x, scratch_types=[plgpu.SMEM(x.shape, x.dtype), plgpu.Barrier()])


@covers(
    "plgpu.kernel(scratch_types)",
    looks=[same_artifact("kernel_with_scratch")],
    note="by name",
)
@pallasc.kernel(args={"x": "f32[128, 128]"}, targets=SINCE_HOPPER, reference=same)
def kernel_with_named_scratch(x: jax.Array) -> jax.Array:
    scratch = {"smem": plgpu.SMEM(x.shape, x.dtype), "loaded": plgpu.Barrier()}
    return through_smem(x, scratch_types=scratch)


@covers(
    "plgpu.kernel(scratch_shapes)",
    looks=[same_artifact("kernel_with_scratch")],
    gaps=no_keyword("scratch_shapes", "0.12"),
    note="`scratch_types` took its place",
)
@pallasc.kernel(args={"x": "f32[128, 128]"}, targets=SINCE_HOPPER, reference=same)
def kernel_with_scratch_shapes(x: jax.Array) -> jax.Array:
    return through_smem(x, scratch_shapes=[plgpu.SMEM(x.shape, x.dtype), plgpu.Barrier()])


@covers("plgpu.kernel(compiler_params)", looks=[ptx(r"ex2\.approx")])
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, reference=exponentials)
def kernel_with_parameters(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        out_gmem[...] = jnp.exp(x_gmem[...])

    parameters = plgpu.CompilerParams(approx_math=True)
    return plgpu.kernel(body, out_type=vector(), compiler_params=parameters)(x)


@covers(
    "plgpu.kernel(interpret)",
    gaps={
        "0.10": "module 'jax.experimental.pallas.mosaic_gpu' has no attribute 'InterpretGPUParams'",
        "0.12": INTERPRETER,
    },
    note="*numbers* on this page come from the interpreter; there is nothing to compile",
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE)
def kernel_in_the_interpreter(x: jax.Array) -> jax.Array:
    return plgpu.kernel(body, out_type=like(x), interpret=plgpu.InterpretGPUParams())(x)


@covers(
    "plgpu.kernel(debug)",
    looks=[
        printed("The kernel jaxpr for"),
        printed("The Mosaic GPU module for"),
        same_artifact("kernel_of_a_body"),
    ],
    gaps=no_keyword("debug", "0.10"),
    note="`pallasc inspect --debug-output` shows it",
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, reference=plus_one)
def kernel_that_is_shown(x: jax.Array) -> jax.Array:
    return plgpu.kernel(body, out_type=like(x), debug=True)(x)


@covers(
    "plgpu.kernel(mesh_kwargs)",
    looks=[plan("a kernel of that name", lambda plan: "add_one" in plan.launches[0].kernel)],
    note="`kernel_name`",
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, reference=plus_one)
def kernel_with_a_name(x: jax.Array) -> jax.Array:
    return plgpu.kernel(body, out_type=like(x), kernel_name="add_one")(x)


@covers(
    "plgpu.kernel(cost_estimate)",
    looks=[same_artifact("kernel_of_a_body")],
    gaps=no_keyword("cost_estimate", "0.10"),
    note="XLA's scheduler reads it, which leaves nothing of it",
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, reference=plus_one)
def kernel_with_costs(x: jax.Array) -> jax.Array:
    costs = pl.CostEstimate(flops=128, bytes_accessed=1024, transcendentals=0)
    return plgpu.kernel(body, out_type=like(x), cost_estimate=costs)(x)


def added(x: Any, y: Any) -> Any:
    return x, x + y


NO_EFFECTS = {"0.10": "`JaxprInputEffect` … does not have a corresponding jaxpr input."}


@covers(
    "plgpu.kernel",
    looks=[
        plan("the reference is an output", lambda plan: len(plan.outputs) == 2),
        ptx(r"st\.global"),
    ],
    gaps=NO_EFFECTS,
    note="a reference as an argument, by `jax.new_ref`",
)
@pallasc.kernel(args={"x": "f32[128]", "y": "f32[128]"}, targets=EVERYWHERE, reference=added)
def kernel_given_a_reference(x: jax.Array, y: jax.Array) -> Any:
    y_ref = jax.new_ref(y)

    def body(x_gmem: Any, y_gmem: Any, out_gmem: Any) -> None:
        y_gmem[...] = y_gmem[...] + x_gmem[...]
        out_gmem[...] = x_gmem[...]

    return plgpu.kernel(body, out_type=like(x))(x, y_ref), jax.freeze(y_ref)


@covers(
    "plgpu.kernel",
    looks=[same_artifact("kernel_given_a_reference")],
    gaps=NO_EFFECTS,
    note="a reference that the body closes over",
)
@pallasc.kernel(args={"x": "f32[128]", "y": "f32[128]"}, targets=EVERYWHERE, reference=added)
def kernel_closing_over_a_reference(x: jax.Array, y: jax.Array) -> Any:
    y_ref = jax.new_ref(y)

    def body(x_gmem: Any, out_gmem: Any) -> None:
        y_ref[...] = y_ref[...] + x_gmem[...]
        out_gmem[...] = x_gmem[...]

    return plgpu.kernel(body, out_type=like(x))(x), jax.freeze(y_ref)
