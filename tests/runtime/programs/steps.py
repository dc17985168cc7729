"""Compile functions with several steps, and run them on the stand-in step by step."""

from __future__ import annotations

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

# Function, kinds and origins of its steps, the device for each launch, and the right result.
CASES: dict[str, Any] = {
    "filled": (
        filled, "launch launch", "xla mosaic", [_on(lambda: 1.5), ADD], lambda x: x + 1.5
    ),
    "constant": (constant, "launch", "mosaic", [ADD], lambda x: x + TABLE),
    "around": (
        around, "launch launch launch launch", "mosaic xla mosaic xla",
        [ADD_ONE, _on(np.transpose), ADD_ONE, _on(lambda x: x * 2)],
        lambda x: ((x + 1).T + 1) * 2,
    ),
    "in_place": (
        in_place, "copy launch launch", "mosaic mosaic", [_add_one_in_place] * 2, lambda x: x + 2
    ),
    "both": (
        both, "launch launch", "mosaic mosaic", [ADD_ONE, ADD_ONE],
        lambda x: {"once": x + 1, "again": (x + 2,)},
    ),
}  # fmt: skip


def main() -> None:
    """Compile all, then run all."""
    driver = standin.load()
    driver.reset()
    framework = made.install()
    x = np.random.default_rng(3).integers(-9, 9, SHAPE).astype(np.float32)
    artifacts = {
        name: pallasc.compile(case[0], "f32[128, 128]", target="h100-sxm")
        for name, case in CASES.items()
    }
    for name, (_, steps, origins, functions, reference) in CASES.items():
        plan, kernel, wanted = artifacts[name].plan, made.kernel(artifacts[name]), reference(x)
        assert " ".join(type(step).__name__.lower() for step in plan.steps) == steps, name
        assert " ".join(launch.origin for launch in plan.launches) == origins, name
        driver.kernel("*")(emulate_steps(artifacts[name], *functions))
        for array in (x, *[framework.tensor("f32[128, 128]", values=x)] * 3):
            check(kernel(array), wanted)
        driver.check()


def check(got: Any, wanted: Any) -> None:
    """Check that results are equal, whatever they lie in."""
    if isinstance(wanted, dict | tuple):
        assert len(got) == len(wanted)
        for key in wanted if isinstance(wanted, dict) else range(len(wanted)):
            check(got[key], wanted[key])
    else:
        array = got.numpy() if isinstance(got, made.Tensor) else got
        assert (array == wanted).all()


main()
