"""Compile functions with several steps, and run them on the stand-in step by step.

Usage: steps.py. Standard output gets one JSON object: function -> the steps of its plan and
whether the numbers are right.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import made
import numpy as np
import standin
from emulate import emulate_steps, view
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallasc

SHAPE = (128, 128)
TABLE = np.arange(128 * 128, dtype=np.float32).reshape(SHAPE)


def increment(x: Any) -> Any:
    """Add one, in a Mosaic kernel."""

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + 1

    return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def total(x: Any, y: Any) -> Any:
    """Add two arrays, in a Mosaic kernel."""

    def body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + y_ref[...]

    return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)


def filled(x: Any) -> Any:
    return total(x, jnp.full(SHAPE, 1.5, jnp.float32))


def constant(x: Any) -> Any:
    return total(x, jnp.asarray(TABLE))


def around(x: Any) -> Any:
    """Have XLA's own kernels in front of, between and behind Mosaic's."""
    return increment(jnp.transpose(increment(x))) * 2


def both(x: Any) -> Any:
    once = increment(x)
    return {"once": once, "again": [increment(once)]}


def in_place(x: Any) -> Any:
    """Add one twice where the array lies: both kernels have one buffer, a copy of the input."""

    def body(ref: Any) -> None:
        ref[...] = ref[...] + 1

    ref = jax.new_ref(x)
    mesh = plgpu.Mesh(grid=(1,), grid_names=("block",))
    params = plgpu.CompilerParams()
    for _ in range(2):
        pl.kernel(body, out_type=(), mesh=mesh, compiler_params=params)(ref)
    return ref[...]


def _on(function: Callable[..., Any]) -> Callable[[list[int]], None]:
    """Return the device for one launch: the last address is the result's, the others' come in."""

    def run(places: list[int]) -> None:
        arrays = [view(place, "f32", SHAPE) for place in places]
        arrays[-1][...] = function(*arrays[:-1])

    return run


def _add_one_in_place(places: list[int]) -> None:
    """Run as the device where a kernel has the addresses of one buffer only."""
    (place,) = set(places)
    view(place, "f32", SHAPE)[...] += 1


ADD_ONE = _on(lambda x: x + 1)
ADD = _on(lambda x, y: x + y)

CASES: dict[str, Any] = {
    "filled": (filled, [_on(lambda: 1.5), ADD], lambda x: x + 1.5),
    "constant": (constant, [ADD], lambda x: x + TABLE),
    "around": (
        around,
        [ADD_ONE, _on(np.transpose), ADD_ONE, _on(lambda x: x * 2)],
        lambda x: ((x + 1).T + 1) * 2,
    ),
    "in_place": (in_place, [_add_one_in_place] * 2, lambda x: x + 2),
    "both": (both, [ADD_ONE, ADD_ONE], lambda x: {"once": x + 1, "again": (x + 2,)}),
}


def main() -> None:
    """Compile all, then run all."""
    driver = standin.load()
    driver.reset()
    made.install()
    artifacts = {
        name: pallasc.compile(function, "f32[128, 128]", target="h100-sxm")
        for name, (function, _, _) in CASES.items()
    }
    x = np.random.default_rng(3).integers(-9, 9, SHAPE).astype(np.float32)
    report = {}
    for name, (_, functions, reference) in CASES.items():
        artifact = artifacts[name]
        kernel = made.kernel(artifact)
        driver.kernel("*")(emulate_steps(artifact, *functions))
        wanted = reference(x)
        right = [_same(kernel(x), wanted)]
        tensors = made.arrays._by_type[made.Tensor]
        mine = tensors.tensor("f32[128, 128]", values=x)
        for _ in range(3):
            right.append(_same(kernel(mine), wanted))
        driver.check()
        steps = [type(step).__name__.lower() for step in artifact.plan.steps]
        origins = [launch.origin for launch in artifact.plan.launches]
        report[name] = {"steps": steps, "origins": origins, "right": all(right)}
    print(json.dumps(report))


def _same(got: Any, wanted: Any) -> bool:
    """Tell whether results are equal, whatever they lie in."""
    if isinstance(wanted, dict):
        return set(got) == set(wanted) and all(_same(got[key], wanted[key]) for key in wanted)
    if isinstance(wanted, tuple):
        return len(got) == len(wanted) and all(map(_same, got, wanted))
    array = got.numpy() if isinstance(got, made.Tensor) else got
    return bool((array == wanted).all())


main()
