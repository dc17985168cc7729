"""Ways into a kernel: `plgpu.kernel`, torch's wrapper, and the interpreter's switches."""

from __future__ import annotations

import sys
from typing import Any
from unittest.mock import patch

import jax
from architectures import EVERYWHERE
from covering import covers, plan, same_artifact
from forms import absent, like, plus_one
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallasc

CALLBACK = (
    "the function contains a host callback (io_callback), which cannot be launched from a cubin"
)


@covers(
    "plgpu.kernel",
    looks=[plan("one block of 128", lambda plan: plan.launches[0].block == (128, 1, 1))],
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, reference=plus_one)
def smallest_kernel(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        out_gmem[...] = x_gmem[...] + 1

    return plgpu.kernel(body, out_type=like(x))(x)


@covers(
    "plgpu.as_torch_kernel",
    gaps=dict.fromkeys(("0.10", "0.12"), "Can't compile for PyTorch: import torch failed"),
    note="it compiles when it is called with torch's tensors, for the GPU at hand; "
    "see `wrapped_for_torch`",
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE)
def called_by_torch(x: jax.Array) -> Any:
    with patch.dict(sys.modules, {"torch": None}):  # the same words where torch is installed
        return plgpu.as_torch_kernel(smallest_kernel)(x)


@covers(
    "plgpu.as_torch_kernel",
    looks=[same_artifact("smallest_kernel")],
    note="what it wraps compiles ahead of time, and `pallasc.open_artifact` takes torch's tensors",
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE, reference=plus_one)
def wrapped_for_torch(x: jax.Array) -> jax.Array:
    wrapped = plgpu.as_torch_kernel(smallest_kernel)
    return wrapped.__wrapped__(x)


@covers(
    "plgpu.InterpretGPUParams",
    "plgpu.force_gpu_interpret_mode",
    gaps=absent("force_gpu_interpret_mode") | {"0.12": CALLBACK},
    note="*numbers* on this page come from it; there is nothing to compile",
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE)
def forced_into_the_interpreter(x: jax.Array) -> jax.Array:
    with plgpu.force_gpu_interpret_mode(plgpu.InterpretGPUParams()):
        return smallest_kernel(x)


@covers(
    "plgpu.set_gpu_interpret_mode",
    gaps=absent("set_gpu_interpret_mode") | {"0.12": CALLBACK},
)
@pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE)
def switched_to_the_interpreter(x: jax.Array) -> jax.Array:
    plgpu.set_gpu_interpret_mode(plgpu.InterpretGPUParams())
    try:
        return smallest_kernel(x)
    finally:
        plgpu.set_gpu_interpret_mode(None)
