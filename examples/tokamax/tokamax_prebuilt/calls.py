"""Calls of Tokamax's ops: the arrays in order, and a key of everything else.

The key decides which compiled kernel may replace a call, so it includes everything that the kernel
depends on: the op and its fields, and each argument: dtype and shape of arrays, numbers, dtypes,
masks and their structure, `return_residuals`, and functions by the name under which the same object
can be imported. A call with an unsupported value has no key, and so no kernel.

Two things are left out, since Tokamax's kernels do not depend on them: the representative sizes of
`GroupSizes`, which are only for tuning, and different spellings of the precision of 16-bit floats
for which Tokamax's `to_dot_algorithm_preset` returns the same algorithm.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tokamax._src import precision as precisions
from tokamax._src.ops.attention import pallas_mosaic_gpu as attention
from tokamax._src.ops.attention import pallas_mosaic_gpu_vjp as attention_vjp
from tokamax._src.ops.gated_linear_unit import pallas_mosaic_gpu as gated_linear_unit
from tokamax._src.ops.op import Op
from tokamax._src.ops.ragged_dot import base as ragged_dots
from tokamax._src.ops.ragged_dot import pallas_mosaic_gpu as ragged_dot

OWN: Mapping[str, Op] = {
    "attention": attention.PallasMosaicGpuFlashAttention(),
    "attention_vjp": attention_vjp.PallasMosaicGpuFlashAttentionVjp(),
    "gated_linear_unit": gated_linear_unit.PallasMosaicGpuGatedLinearUnit(),
    "ragged_dot": ragged_dot.PallasMosaicGpuRaggedDot(),
}
"""Tokamax's own ops from which the kernels are compiled, by name."""

_NOT_OF_THE_KERNEL = {"config", "vjp", "bypass_device_check"}
"""Fields of ops that do not affect the forward result, such as tile sizes."""

_FACTORS = {
    "attention": (("q", "k"), ("v", "v")),
    "attention_vjp": (("q", "k"), ("v", "v")),
    "gated_linear_unit": (("x", "weights"),),
    "ragged_dot": (("lhs", "rhs"),),
}
"""For each op, the arguments whose dtypes are the factors of each matrix product."""


class UnknownCallError(Exception):
    """A call contains a value that cannot be part of a key."""


def split(arguments: Mapping[str, Any]) -> tuple[list[Any], Any]:
    """Return the arrays of a call in the order of kernels, and the structure for `join`."""
    leaves, tree = jax.tree.flatten(dict(arguments))
    rest = [None if _is_array(leaf) else leaf for leaf in leaves]
    return [leaf for leaf in leaves if _is_array(leaf)], (tree, rest, [*map(_is_array, leaves)])


def join(structure: Any, arrays: Sequence[Any]) -> dict[str, Any]:
    """Rebuild the arguments of a call with these arrays."""
    tree, rest, places = structure
    left = iter(arrays)
    leaves = [next(left) if is_array else leaf for leaf, is_array in zip(rest, places, strict=True)]
    return tree.unflatten(leaves)


def describe_call(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything that a kernel depends on, as JSON data.

    Raises:
        UnknownCallError: a value has an unsupported type.
    """
    own = OWN[name]
    fields = [field.name for field in dataclasses.fields(own)]
    return {
        "op": f"{type(own).__module__}.{type(own).__qualname__}",
        "fields": {f: _describe(getattr(own, f)) for f in fields if f not in _NOT_OF_THE_KERNEL},
        "arguments": {
            key: _precision(name, arguments) if key == "precision" else _describe(value)
            for key, value in arguments.items()
        },
    }


def call_key(name: str, arguments: Mapping[str, Any]) -> str:
    """Return the key of a call: 16 hexadecimal digits.

    Raises:
        UnknownCallError: as for `describe_call`.
    """
    text = json.dumps(describe_call(name, arguments), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a readable form of a call, without arguments that are None."""
    shown = []
    for key, value in arguments.items():
        try:
            described = _precision(name, arguments) if key == "precision" else _describe(value)
        except UnknownCallError:
            described = repr(value)
        if described is not None:
            text = described if isinstance(described, str) else json.dumps(described)
            shown.append(f"{key}={text}")
    return f"{name}({', '.join(shown)})"


def array_text(array: Any) -> str:
    """Return the type of an array in the notation of specs: `bf16[8, 128]`."""
    short = jax.core.ShapedArray(array.shape, array.dtype).str_short(short_dtypes=True)
    return short.replace(",", ", ")


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.Array | np.ndarray | jax.ShapeDtypeStruct)


def _describe(value: Any) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if _is_array(value):
        return array_text(value)
    if isinstance(value, ragged_dots.GroupSizes):
        return array_text(value.value)
    if isinstance(value, jax.sharding.ManualAxisType) and value.empty:
        return None  # the same as without a mesh
    if isinstance(value, np.dtype):
        return {"dtype": value.name}
    if isinstance(value, enum.Enum):
        return {type(value).__qualname__: value.name}
    if type(value) in (tuple, list):
        return [_describe(item) for item in value]
    if isinstance(value, jax.lax.RaggedDotDimensionNumbers):
        return _fields(value, vars(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _fields(value, [field.name for field in dataclasses.fields(value)])
    return {"import": _importable(value)}


def _fields(value: Any, names: Any) -> dict[str, Any]:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return {kind: {name: _describe(getattr(value, name)) for name in names}}


def _importable(value: Any) -> str:
    """Return the name of a function or class.

    The name must refer to this object. Lambdas, partials, and wrappers are rejected: they have no
    name, or the name of another object.
    """
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    found = None
    if callable(value) and module and name:
        found = getattr(sys.modules.get(module), name, None)
    if found is None or found is not value:
        raise UnknownCallError(f"{value!r} is neither data nor a function that can be imported.")
    return f"{module}.{name}"


def _precision(name: str, arguments: Mapping[str, Any]) -> Any:
    """Return the algorithm of each product, or the original precision if it is uncertain."""
    precision, factors = arguments["precision"], _FACTORS[name]
    dtypes = [tuple(getattr(arguments[f], "dtype", None) for f in pair) for pair in factors]
    halves = (np.dtype(jnp.bfloat16), np.dtype(jnp.float16))
    is_certain = all(dtype in halves for pair in dtypes for dtype in pair)
    # With residuals, the gated linear unit runs in XLA, which receives the precision itself.
    if not is_certain or (name == "gated_linear_unit" and arguments["return_residuals"]):
        return _describe(precision)
    each = precision if len(factors) > 1 else (precision,)
    try:
        found = map(precisions.to_dot_algorithm_preset, *zip(*dtypes, strict=True), each)
        return [_describe(preset) for preset in found]
    except NotImplementedError:
        return _describe(precision)
