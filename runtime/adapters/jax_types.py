"""Types of arrays and results in the programs of JAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pallasc.errors import ArgumentError
from pallasc.runtime.adapters.numpy_arrays import short_dtype
from pallasc.runtime.calls.program import lay_out
from pallasc.runtime.matching.candidates import ArrayType, array_type
from pallasc.runtime.matching.variants import Variants
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.dtypes import parse_dtype


def types_of(kernel: Variants, arrays: Sequence[Any]) -> list[ArrayType]:
    """Return the types of arrays; as XLA lays them out as is asked, their layouts are a variant's.

    A variant whose arrays are row-major goes first.
    """
    return laid_out(kernel, [(short_dtype(array.dtype), tuple(array.shape)) for array in arrays])


def laid_out(kernel: Variants, types: Sequence[ArrayType]) -> list[ArrayType]:
    """Return types with the layouts that a variant for them takes."""
    plain = [array_type(*array[:2]) for array in types]
    by_variant = [variant.arrays for variant in kernel.variants]
    fitting = [arrays for arrays in by_variant if [array[:2] for array in arrays] == plain]
    return list(min(fitting, key=lambda own: sum(map(len, own)), default=plain))


def result_type(name: str, binding: Binding) -> Any:
    """Return what JAX wants to know of a result.

    Raises:
        ArgumentError: JAX has no such dtype, or has switched it off.
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
    """Return the type of the memory for temporaries that any variant for these arrays needs."""
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
    """Return results that vary over the devices of a `shard_map` as any of the arrays does.

    JAX believes what types say: gradients are summed over devices where an array is the same.
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
    """Return the axes of a mesh over which an array varies."""
    import jax

    axes: frozenset[Any] = jax.typeof(array).manual_axis_type.varying
    return axes
