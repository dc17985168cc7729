"""What the kernels of this folder share: types of results, references, facts of a plan."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from architectures import BEFORE_HOPPER
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallasc.specs.plan import Copy, Fill


def like(x: Any) -> jax.ShapeDtypeStruct:
    """Return the type of a result that is made as `x`."""
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def vector(size: int = 128, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """Return the type of a vector."""
    return jax.ShapeDtypeStruct((size,), dtype)


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


def zeroes(plan: Any) -> int:
    """Return how many bytes a plan sets to zero, by filling or from a constant."""
    found = 0
    for step in plan.steps:
        if isinstance(step, Fill) and step.value == 0:
            found += step.size
        if isinstance(step, Copy):
            constant = plan.buffers[step.source].digest
            found += step.size if constant == sha256(bytes(step.size)).hexdigest() else 0
    return found


def same(x: Any) -> Any:
    return x


def plus_one(x: Any) -> Any:
    return x + np.ones((), x.dtype)


def transposed(x: Any) -> Any:
    return x.T


def product(a: Any, b: Any) -> Any:
    return np.asarray(a, np.float32) @ np.asarray(b, np.float32)
