"""Types of arrays and results in JAX programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pallasc.errors import ArgumentError
from pallasc.runtime.adapters.numpy_arrays import short_dtype
from pallasc.runtime.device.memory import lay_out
from pallasc.runtime.matching.candidates import ArrayType, array_type
from pallasc.runtime.matching.variants import Variants
from pallasc.specs.arrays import parse_dtype
from pallasc.specs.artifacts.plan import Binding


def types_of(kernel: Variants, arrays: Sequence[Any]) -> list[ArrayType]:
    """Return the types of arrays with a variant's layouts, since XLA uses any layout requested.

    Variants whose arrays are row-major are preferred.
    """
    return laid_out(kernel, [(short_dtype(array.dtype), tuple(array.shape)) for array in arrays])


def laid_out(kernel: Variants, types: Sequence[ArrayType]) -> list[ArrayType]:
    """Return the types with the layouts of a variant that takes them."""
    plain = [array_type(*array[:2]) for array in types]
    by_variant = [variant.arrays for variant in kernel.variants]
    fitting = [arrays for arrays in by_variant if [array[:2] for array in arrays] == plain]
    return list(min(fitting, key=lambda own: sum(map(len, own)), default=plain))


def result_type(name: str, binding: Binding) -> Any:
    """Return JAX's shape and dtype of a result.

    Raises:
        ArgumentError: JAX has no such dtype, or has it disabled.
    """
    import jax
    import numpy

    dtype = numpy.dtype(getattr(jax.numpy, parse_dtype(binding.dtype).jax_name, None))
    if short_dtype(dtype) != binding.dtype:
        raise ArgumentError(f"{name}: this version of JAX has no dtype for {binding.dtype}.")
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise ArgumentError(
            f"{name}: {binding.path} is {binding.dtype}, and JAX has 64-bit dtypes switched off.",
            hint='Call jax.config.update("jax_enable_x64", True).',
        )
    return jax.ShapeDtypeStruct(binding.shape, dtype)


def workspace_types(kernel: Variants, types: Sequence[ArrayType]) -> list[Any]:
    """Return the type of the temporary memory, large enough for every variant for these arrays."""
    import jax

    size_bytes = max(
        (
            lay_out(variant.artifact.plan)[1]
            for variant in kernel.variants
            if list(variant.arrays) == list(types)
        ),
        default=0,
    )
    return [jax.ShapeDtypeStruct((size_bytes,), "uint8")] if size_bytes else []


def varying(results: Sequence[Any], arrays: Sequence[Any]) -> list[Any]:
    """Mark results as varying over each `shard_map` axis that any of the arrays varies over.

    JAX trusts these types: it sums gradients over devices where an array is the same on all.
    """
    import jax

    axes = {axis for array in arrays for axis in _axes(array)}
    return [
        jax.lax.pcast(result, tuple(sorted(missing)), to="varying")
        if (missing := axes - _axes(result))
        else result
        for result in results
    ]


def _axes(array: Any) -> frozenset[Any]:
    """Return the mesh axes over which an array varies."""
    import jax

    axes: frozenset[Any] = jax.typeof(array).manual_axis_type.varying
    return axes
