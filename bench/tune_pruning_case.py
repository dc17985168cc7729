"""A kernel of Tokamax with the arguments of an entry of its tables and one of its configurations.

Specs of `tune_pruning_points.py` name `call`. Tokamax's own readers of its tables are used.
"""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

OPS = {
    "attention": ("attention.pallas_mosaic_gpu", "PallasMosaicGpuFlashAttention"),
    "attention_vjp": ("attention.pallas_mosaic_gpu_vjp", "PallasMosaicGpuFlashAttentionVjp"),
    "glu": ("gated_linear_unit.pallas_mosaic_gpu", "PallasMosaicGpuGatedLinearUnit"),
    "ragged_dot": ("ragged_dot.pallas_mosaic_gpu", "PallasMosaicGpuRaggedDot"),
}


def call(*arrays: Any, op: str, arguments: str, configuration: str) -> Any:
    """Call an operation.

    Args:
        arrays: in the order of the leaves of the arguments.
        op: a name of `OPS`.
        arguments: JSON text as in Tokamax's tables.
        configuration: the same.
    """
    import jax
    from pydantic import TypeAdapter

    kernel, bound = bound_arguments(op, arguments)
    leaves, tree = jax.tree.flatten(bound)
    given = iter(arrays)
    filled = [next(given) if is_array(leaf) else leaf for leaf in leaves]
    config = TypeAdapter(type(kernel).config_cls).validate_python(json.loads(configuration))
    return kernel.replace(config=config, vjp=None)(**tree.unflatten(filled))


def bound_arguments(op: str, arguments: str) -> tuple[Any, dict[str, Any]]:
    """Return an operation and its arguments, whose arrays are shapes."""
    from tokamax._src.ops import op as operations

    module, name = OPS[op]
    kernel = getattr(import_module(f"tokamax._src.ops.{module}"), name)()
    reader = operations._get_arg_spec_adapter(kernel)
    return kernel, dict(reader.validate_python(json.loads(arguments)))


def is_array(leaf: object) -> bool:
    """Tell whether a leaf of arguments is an array."""
    import jax

    return isinstance(leaf, jax.ShapeDtypeStruct)
