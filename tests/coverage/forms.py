"""Code that kernels share: types of results, expected results, facts of a plan."""

from hashlib import sha256
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from architectures import BEFORE_HOPPER
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallasc.specs.artifacts.plan import Copy, Fill, Pointer

NEAR = {"rtol": 1e-2, "atol": 1e-2}
"""The tolerance of products of half precision."""


def like(x: Any) -> jax.ShapeDtypeStruct:
    """Return the type of a result that is made as `x`."""
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """Return the type of an array."""
    return jax.ShapeDtypeStruct(shape, dtype)


def lane(**fields: Any) -> Any:
    """Return compiler parameters that leave layouts and transforms to the kernel."""
    semantics = plgpu.LoweringSemantics.Lane
    return plgpu.CompilerParams(lowering_semantics=semantics, **fields)


def warpgroup(**fields: Any) -> Any:
    """Return compiler parameters that have Mosaic infer layouts and transforms."""
    semantics = plgpu.LoweringSemantics.Warpgroup
    return plgpu.CompilerParams(lowering_semantics=semantics, **fields)


def load(ref: Any, **options: Any) -> Any:
    """Load all of a reference; JAX 0.10 wants an index as well."""
    if jax.__version_info__ < (0, 11):
        return plgpu.load(ref, (), **options)
    return plgpu.load(ref, **options)


def store(ref: Any, value: Any) -> None:
    """Store in whatever layout the value has; JAX 0.11 and later want to be told so."""
    if jax.__version_info__ < (0, 11):
        ref[...] = value
    else:
        plgpu.store(ref, value, optimized=False)


def absent(name: str) -> dict[str, str]:
    """Return the gap of a name that JAX 0.10 has not."""
    return {"0.10": f"module 'jax.experimental.pallas.mosaic_gpu' has no attribute '{name}'"}


def no_argument(function: str, name: str) -> dict[str, str]:
    """Return the gap of a keyword argument that JAX 0.10 has not."""
    return {"0.10": f"{function}() got an unexpected keyword argument '{name}'"}


def gone(name: str) -> dict[str, str]:
    """Return the gap of a name that neither JAX has."""
    words = f"module 'jax.experimental.pallas' has no attribute '{name}'"
    return dict.fromkeys(("0.10", "0.12"), words)


def unfenced(modifier: str = "acquire") -> dict[str, str]:
    """Return the gap of semaphores before Hopper, whose PTX has a fence that comes with it."""
    words = f"Modifier '.{modifier}' on 'fence' requires .target sm_90 or higher"
    return dict.fromkeys(BEFORE_HOPPER, words)


def maps(plan: Any) -> list[Any]:
    """Return the tensor maps of a plan."""
    return [
        tensor_map
        for launch in plan.launches
        for parameter in launch.parameters
        for _, tensor_map in getattr(parameter, "tensor_maps", ())
    ]


def smem_bytes(plan: Any) -> int:
    """Return the dynamic shared memory of the launch with the most."""
    return max(launch.dynamic_smem_bytes for launch in plan.launches)


def buffers(launch: Any) -> set[int]:
    """Return the buffers that a launch is given by address."""
    return {parameter.buffer for parameter in launch.parameters if isinstance(parameter, Pointer)}


def zeros(plan: Any) -> set[int]:
    """Return the buffers that are constants of zeros."""
    return {
        number
        for number, buffer in enumerate(plan.buffers)
        if buffer.digest == sha256(bytes(buffer.size)).hexdigest()
    }


def zeroes(plan: Any) -> int:
    """Return how many bytes a plan sets to zero, by filling or from a constant."""
    steps = plan.steps
    filled = sum(step.size for step in steps if isinstance(step, Fill) and step.value == 0)
    constants = zeros(plan)
    return filled + sum(
        step.size for step in steps if isinstance(step, Copy) and step.source in constants
    )


def same(x: Any) -> Any:
    return x


def plus_one(x: Any) -> Any:
    return x + np.ones((), x.dtype)


def product(a: Any, b: Any) -> Any:
    return np.asarray(a, np.float32) @ np.asarray(b, np.float32)


def exponentials(x: Any) -> Any:
    return np.exp(x)


def fetch(loaded: Any, *pairs: tuple[Any, Any]) -> None:
    """Copy arrays to shared memory, and wait for them."""
    for source, target in pairs:
        plgpu.copy_gmem_to_smem(source, target, loaded)
    plgpu.barrier_wait(loaded)
