"""Ways into a kernel: every keyword of `plgpu.kernel` and `pl.kernel`, torch, the interpreter."""

import sys
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
from architectures import EVERYWHERE, SINCE_HOPPER
from covering import covers, kernel, plan, printed, same_artifact, table_row
from forms import absent, array, exponentials, like, plus_one, same, smem_bytes
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallasc

CALLBACK = (
    "the function contains a host callback (io_callback), which cannot be launched from a cubin"
)


@covers(
    ["plgpu.kernel", "plgpu.kernel(body)", "plgpu.kernel(out_type)"],
    looks=[plan("one block of 128", lambda plan: plan.launches[0].block == (128, 1, 1))],
    expected=plus_one,
)
@kernel({"x": "f32[128]"})
def smallest_kernel(x_gmem: Any, out_gmem: Any) -> None:
    out_gmem[...] = x_gmem[...] + 1


# It compiles when it is called with torch's tensors, for the GPU at hand; see
# `wrapped_for_torch`.
@covers(
    "plgpu.as_torch_kernel",
    gaps=dict.fromkeys(("0.10", "0.12"), "Can't compile for PyTorch: import torch failed"),
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE)
def called_by_torch(x: jax.Array) -> Any:
    with patch.dict(sys.modules, {"torch": None}):  # the same words where torch is installed
        return plgpu.as_torch_kernel(smallest_kernel)(x)


# What it wraps compiles ahead of time, and `pallasc.open_artifact` takes torch's tensors.
@covers("plgpu.as_torch_kernel", looks=[same_artifact("smallest_kernel")], expected=plus_one)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE)
def wrapped_for_torch(x: jax.Array) -> jax.Array:
    wrapped = plgpu.as_torch_kernel(smallest_kernel)
    return wrapped.__wrapped__(x)


# It switches to JAX's interpreter; there is nothing to compile.
@covers(
    ["plgpu.InterpretGPUParams", "plgpu.force_gpu_interpret_mode"],
    gaps=absent("force_gpu_interpret_mode") | {"0.12": CALLBACK},
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE)
def forced_into_the_interpreter(x: jax.Array) -> jax.Array:
    with plgpu.force_gpu_interpret_mode(plgpu.InterpretGPUParams()):
        return smallest_kernel(x)


@covers("plgpu.set_gpu_interpret_mode", gaps=absent("set_gpu_interpret_mode") | {"0.12": CALLBACK})
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE)
def switched_to_the_interpreter(x: jax.Array) -> jax.Array:
    plgpu.set_gpu_interpret_mode(plgpu.InterpretGPUParams())
    try:
        return smallest_kernel(x)
    finally:
        plgpu.set_gpu_interpret_mode(None)


def no_keyword(name: str, *versions: str) -> dict[str, str]:
    """Return the gap of a keyword that JAX takes for one of `plgpu.Mesh`."""
    words = f"Mesh.__init__() got an unexpected keyword argument '{name}'"
    return dict.fromkeys(versions, words)


def body(x_gmem: Any, out_gmem: Any) -> None:
    out_gmem[...] = x_gmem[...] + 1


# `out_type` took its place.
@covers(
    "plgpu.kernel(out_shape)",
    looks=[same_artifact("smallest_kernel")],
    gaps=no_keyword("out_shape", "0.12"),
    expected=plus_one,
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE)
def kernel_with_an_out_shape(x: jax.Array) -> jax.Array:
    return plgpu.kernel(body, out_shape=like(x))(x)


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
        r"mbarrier\.init",
    ],
    expected=same,
)
@pallasc.kernel(args={"x": "f32[128, 128]"}, targets=SINCE_HOPPER)
def kernel_with_scratch(x: jax.Array) -> jax.Array:
    return through_smem(x, scratch_types=[plgpu.SMEM(x.shape, x.dtype), plgpu.Barrier()])


# `scratch_types` took its place.
@covers(
    "plgpu.kernel(scratch_shapes)",
    looks=[same_artifact("kernel_with_scratch")],
    gaps=no_keyword("scratch_shapes", "0.12"),
    expected=same,
)
@pallasc.kernel(args={"x": "f32[128, 128]"}, targets=SINCE_HOPPER)
def kernel_with_scratch_shapes(x: jax.Array) -> jax.Array:
    return through_smem(x, scratch_shapes=[plgpu.SMEM(x.shape, x.dtype), plgpu.Barrier()])


@covers("plgpu.kernel(compiler_params)", looks=[r"ex2\.approx"], expected=exponentials)
@kernel(
    {"x": "f32[128]"}, out_type=array(128), compiler_params=plgpu.CompilerParams(approx_math=True)
)
def kernel_with_parameters(x_gmem: Any, out_gmem: Any) -> None:
    out_gmem[...] = jnp.exp(x_gmem[...])


# It switches to JAX's interpreter; there is nothing to compile.
@covers(
    "plgpu.kernel(interpret)",
    gaps={
        "0.10": "module 'jax.experimental.pallas.mosaic_gpu' has no attribute 'InterpretGPUParams'",
        "0.12": CALLBACK,
    },
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE)
def kernel_in_the_interpreter(x: jax.Array) -> jax.Array:
    return plgpu.kernel(body, out_type=like(x), interpret=plgpu.InterpretGPUParams())(x)


def added(x: Any, y: Any) -> Any:
    return x, x + y


NO_EFFECTS = {"0.10": "`JaxprInputEffect` … does not have a corresponding jaxpr input."}


# A reference as an argument, by `jax.new_ref`.
@covers(
    "plgpu.kernel",
    looks=[plan("the reference is an output", lambda plan: len(plan.outputs) == 2), r"st\.global"],
    gaps=NO_EFFECTS,
    expected=added,
)
@pallasc.kernel(args={"x": "f32[128]", "y": "f32[128]"}, targets=EVERYWHERE)
def kernel_given_a_reference(x: jax.Array, y: jax.Array) -> Any:
    y_ref = jax.new_ref(y)

    def body(x_gmem: Any, y_gmem: Any, out_gmem: Any) -> None:
        y_gmem[...] = y_gmem[...] + x_gmem[...]
        out_gmem[...] = x_gmem[...]

    return plgpu.kernel(body, out_type=like(x))(x, y_ref), jax.freeze(y_ref)


# Several bodies, each with a mesh.
@covers(
    "pl.kernel(body)",
    gaps=dict.fromkeys(("0.10", "0.12"), "NotImplementedError: raise NotImplementedError()"),
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE)
def entry_of_two_bodies(x: jax.Array) -> jax.Array:
    meshes = [plgpu.Mesh(), plgpu.Mesh(grid=(2,), grid_names=("i",))]
    return pl.kernel([body, body], like(x), mesh=meshes)(x)


# `plgpu.kernel` has it, and `pl.run_scoped` does the same.
@covers(
    "pl.kernel(scratch_types)",
    looks=[same_artifact("entry_with_a_scope")],
    gaps={"0.12": "Scratch operands are not supported by the Mosaic GPU mpmd_map lowering"},
    expected=plus_one,
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE)
def entry_with_scratch(x: jax.Array) -> jax.Array:
    scratch = [plgpu.SMEM((128,), jnp.float32)]

    @pl.kernel(out_type=like(x), mesh=plgpu.Mesh(), scratch_types=scratch)
    def body(x_gmem: Any, out_gmem: Any, smem: Any) -> None:
        smem[...] = x_gmem[...]
        out_gmem[...] = smem[...] + 1

    return body(x)


# By `pl.run_scoped`.
@covers("pl.kernel(scratch_types)", looks=[r"ld\.shared", r"st\.shared"], expected=plus_one)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE)
def entry_with_a_scope(x: jax.Array) -> jax.Array:
    @pl.kernel(out_type=like(x), mesh=plgpu.Mesh())
    def body(x_gmem: Any, out_gmem: Any) -> None:
        def add(smem: Any) -> None:
            smem[...] = x_gmem[...]
            out_gmem[...] = smem[...] + 1

        pl.run_scoped(add, plgpu.SMEM((128,), jnp.float32))

    return body(x)


@covers("pl.kernel(compiler_params)", looks=[r"ex2\.approx"], expected=exponentials)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE)
def entry_with_parameters(x: jax.Array) -> jax.Array:
    parameters = plgpu.CompilerParams(approx_math=True)

    @pl.kernel(out_type=like(x), mesh=plgpu.Mesh(), compiler_params=parameters)
    def body(x_gmem: Any, out_gmem: Any) -> None:
        out_gmem[...] = jnp.exp(x_gmem[...])

    return body(x)


def plus_one_with(entry: str, keywords: Any) -> Any:
    """Return a function of an array that calls one of the two entries with keywords."""

    def call(x: jax.Array) -> jax.Array:
        if entry.startswith("plgpu."):
            return plgpu.kernel(body, out_type=like(x), **keywords)(x)
        return pl.kernel(body, like(x), mesh=plgpu.Mesh(), **keywords)(x)

    return call


SAME, SAME_ENTRY = same_artifact("smallest_kernel"), same_artifact("entry_of_a_body")
ONE_BLOCK = plan("one block", lambda plan: plan.launches[0].grid == (1, 1, 1))
NAMED = plan("a kernel of that name", lambda plan: "add_one" in plan.launches[0].kernel)
XLA = plan("kernels of XLA alone", lambda plan: {each.origin for each in plan.launches} == {"xla"})
SHOWN = [printed("The kernel jaxpr for"), printed("The Mosaic GPU module for")]
DEBUG = {"debug": True}  # `pallasc inspect --debug-output` shows it
COSTS = {"cost_estimate": pl.CostEstimate(flops=128, bytes_accessed=1024, transcendentals=0)}
ROWS: list[tuple[str, list[str], dict[str, Any], list[Any], dict[str, str]]] = [
    ("kernel_that_is_shown", ["plgpu.kernel(debug)"], DEBUG, [*SHOWN, SAME],
     no_keyword("debug", "0.10")),
    ("kernel_with_a_name", ["plgpu.kernel(mesh_kwargs)"], {"kernel_name": "add_one"}, [NAMED], {}),
    ("kernel_with_costs", ["plgpu.kernel(cost_estimate)"], COSTS, [SAME],
     no_keyword("cost_estimate", "0.10")),
    ("entry_of_a_body", ["pl.kernel", "pl.kernel(body)", "pl.kernel(out_type)"], {},
     [r"st\.global", ONE_BLOCK], {}),
    ("entry_in_the_interpreter", ["pl.kernel(interpret)"], {"interpret": True}, [XLA], {}),
    ("entry_with_costs", ["pl.kernel(cost_estimate)"], COSTS, [SAME_ENTRY], {}),
    ("entry_that_is_shown", ["pl.kernel(debug)"], DEBUG, [*SHOWN, SAME_ENTRY], {}),
    ("entry_with_a_name", ["pl.kernel(name)"], {"name": "add_one"}, [NAMED], {}),
    ("entry_with_metadata", ["pl.kernel(metadata)"], {"metadata": {"author": "nobody"}},
     [SAME_ENTRY], {}),
]  # fmt: skip
for row, entries, keywords, looks, gaps in ROWS:
    call = plus_one_with(entries[0], keywords)
    table_row(globals(), row, call, entries=entries, looks=looks, gaps=gaps, expected=plus_one)
