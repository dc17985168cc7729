"""Tracing a function as one of several devices runs it.

The function is wrapped in `jax.shard_map`, all arrays being what one device holds: so the axes of
the mesh have names inside it, and the executable is one device's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pallasc.specs.meshes import Mesh


def jax_mesh(mesh: Mesh, devices: Sequence[Any]) -> Any:
    """Return JAX's mesh of these devices, in the order of their numbers."""
    import jax
    import numpy as np

    names = tuple(name for name, _ in mesh)
    shape = tuple(size for _, size in mesh)
    return jax.sharding.Mesh(np.array(devices).reshape(shape), names)


def on_one_device(function: Callable[..., Any], mesh: Any) -> Callable[..., Any]:
    """Return `function` as each device of a mesh runs it, on arrays of its own."""
    import jax

    own = jax.sharding.PartitionSpec()
    jax_module: Any = jax
    wrapped: Callable[..., Any] = jax_module.shard_map(
        function, mesh=mesh, in_specs=own, out_specs=own, check_vma=False
    )
    return wrapped
