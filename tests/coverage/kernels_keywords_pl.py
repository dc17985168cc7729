"""Every keyword of `pl.kernel`, and references that its kernels are given or close over."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from architectures import EVERYWHERE
from covering import covers, plan, printed, ptx, same_artifact
from forms import NO_REFERENCES, exponentials, like, plus_one
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallasc


def body(x_gmem: Any, out_gmem: Any) -> None:
    out_gmem[...] = x_gmem[...] + 1


@covers(
    "pl.kernel",
    "pl.kernel(body)",
    "pl.kernel(out_type)",
    looks=[ptx(r"st\.global"), plan("one block", lambda plan: plan.launches[0].grid == (1, 1, 1))],
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, reference=plus_one)
def entry_of_a_body(x: jax.Array) -> jax.Array:
    return pl.kernel(body, like(x), mesh=plgpu.Mesh())(x)


@covers(
    "pl.kernel(body)",
    looks=[same_artifact("entry_of_a_body")],
    note="the factory form: no body, then a decorator",
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, reference=plus_one)
def entry_from_a_factory(x: jax.Array) -> jax.Array:
    return pl.kernel(out_type=like(x), mesh=plgpu.Mesh())(body)(x)


@covers(
    "pl.kernel(body)",
    gaps=dict.fromkeys(("0.10", "0.12"), "NotImplementedError: raise NotImplementedError()"),
    note="several bodies, each with a mesh",
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE)
def entry_of_two_bodies(x: jax.Array) -> jax.Array:
    meshes = [plgpu.Mesh(), plgpu.Mesh(grid=(2,), grid_names=("i",))]
    return pl.kernel([body, body], like(x), mesh=meshes)(x)


def more_and_twice(x: Any) -> Any:
    return {"more": x + 1, "twice": x * 2}


@covers(
    "pl.kernel(out_type)",
    looks=[
        plan(
            "two outputs in a tree",
            lambda plan: [output.path for output in plan.outputs] == ["out.more", "out.twice"],
        )
    ],
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, reference=more_and_twice)
def entry_with_a_tree_of_outputs(x: jax.Array) -> Any:
    @pl.kernel(out_type={"more": like(x), "twice": like(x)}, mesh=plgpu.Mesh())
    def body(x_gmem: Any, out_gmem: Any) -> None:
        out_gmem["more"][...] = x_gmem[...] + 1
        out_gmem["twice"][...] = x_gmem[...] * 2

    return body(x)


@covers(
    "pl.kernel(scratch_types)",
    looks=[same_artifact("entry_with_a_scope")],
    gaps={"0.12": "Scratch operands are not supported by the Mosaic GPU mpmd_map lowering"},
    note="`plgpu.kernel` has it, and `pl.run_scoped` does the same",
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, reference=plus_one)
def entry_with_scratch(x: jax.Array) -> jax.Array:
    scratch = [plgpu.SMEM((128,), jnp.float32)]

    @pl.kernel(out_type=like(x), mesh=plgpu.Mesh(), scratch_types=scratch)
    def body(x_gmem: Any, out_gmem: Any, smem: Any) -> None:
        smem[...] = x_gmem[...]
        out_gmem[...] = smem[...] + 1

    return body(x)


@covers(
    "pl.kernel(scratch_types)",
    looks=[ptx(r"ld\.shared"), ptx(r"st\.shared")],
    note="by `pl.run_scoped`",
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, reference=plus_one)
def entry_with_a_scope(x: jax.Array) -> jax.Array:
    @pl.kernel(out_type=like(x), mesh=plgpu.Mesh())
    def body(x_gmem: Any, out_gmem: Any) -> None:
        def add(smem: Any) -> None:
            smem[...] = x_gmem[...]
            out_gmem[...] = smem[...] + 1

        pl.run_scoped(add, plgpu.SMEM((128,), jnp.float32))

    return body(x)


@covers("pl.kernel(compiler_params)", looks=[ptx(r"ex2\.approx")])
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, reference=exponentials)
def entry_with_parameters(x: jax.Array) -> jax.Array:
    parameters = plgpu.CompilerParams(approx_math=True)

    @pl.kernel(out_type=like(x), mesh=plgpu.Mesh(), compiler_params=parameters)
    def body(x_gmem: Any, out_gmem: Any) -> None:
        out_gmem[...] = jnp.exp(x_gmem[...])

    return body(x)


@covers(
    "pl.kernel(interpret)",
    looks=[
        plan(
            "kernels of XLA alone",
            lambda plan: {launch.origin for launch in plan.launches} == {"xla"},
        )
    ],
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, reference=plus_one)
def entry_in_the_interpreter(x: jax.Array) -> jax.Array:
    return pl.kernel(body, like(x), mesh=plgpu.Mesh(), interpret=True)(x)


@covers(
    "pl.kernel(cost_estimate)",
    looks=[same_artifact("entry_of_a_body")],
    note="XLA's scheduler reads it, which leaves nothing of it",
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, reference=plus_one)
def entry_with_costs(x: jax.Array) -> jax.Array:
    costs = pl.CostEstimate(flops=128, bytes_accessed=1024, transcendentals=0)
    return pl.kernel(body, like(x), mesh=plgpu.Mesh(), cost_estimate=costs)(x)


@covers(
    "pl.kernel(debug)",
    looks=[
        printed("The kernel jaxpr for"),
        printed("The Mosaic GPU module for"),
        same_artifact("entry_of_a_body"),
    ],
    note="`pallasc inspect --debug-output` shows it",
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, reference=plus_one)
def entry_that_is_shown(x: jax.Array) -> jax.Array:
    return pl.kernel(body, like(x), mesh=plgpu.Mesh(), debug=True)(x)


@covers(
    "pl.kernel(name)",
    looks=[plan("a kernel of that name", lambda plan: "add_one" in plan.launches[0].kernel)],
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, reference=plus_one)
def entry_with_a_name(x: jax.Array) -> jax.Array:
    return pl.kernel(body, like(x), mesh=plgpu.Mesh(), name="add_one")(x)


@covers(
    "pl.kernel(metadata)",
    looks=[same_artifact("entry_of_a_body")],
    note="this back end takes it and leaves nothing of it",
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, reference=plus_one)
def entry_with_metadata(x: jax.Array) -> jax.Array:
    return pl.kernel(body, like(x), mesh=plgpu.Mesh(), metadata={"author": "nobody"})(x)


@covers(
    "pl.kernel",
    looks=[
        plan("one array for the kernel", lambda plan: len(plan.launches[-1].parameters) == 1),
        plan("a copy first", lambda plan: type(plan.steps[0]).__name__ == "Copy"),
    ],
    uninterpreted=NO_REFERENCES,
    note="a reference as an argument",
)
@pallasc.kernel(args={"x": "f32[4, 128]"}, targets=EVERYWHERE, reference=plus_one)
def reference_as_an_argument(x: jax.Array) -> jax.Array:
    x_ref = jax.new_ref(x)

    @pl.kernel(mesh=plgpu.Mesh(grid=(4,), grid_names=("i",)))
    def body(x_gmem: Any) -> None:
        row = lax.axis_index("i")
        x_gmem[row] = x_gmem[row] + 1

    body(x_ref)
    return jax.freeze(x_ref)


@covers(
    "pl.kernel",
    looks=[same_artifact("reference_as_an_argument")],
    uninterpreted=NO_REFERENCES,
    note="a reference that the body closes over",
)
@pallasc.kernel(args={"x": "f32[4, 128]"}, targets=EVERYWHERE, reference=plus_one)
def reference_closed_over(x: jax.Array) -> jax.Array:
    x_ref = jax.new_ref(x)

    @pl.kernel(mesh=plgpu.Mesh(grid=(4,), grid_names=("i",)))
    def body() -> None:
        row = lax.axis_index("i")
        x_ref[row] = x_ref[row] + 1

    body()
    return jax.freeze(x_ref)
