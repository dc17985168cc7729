"""The kernels of the specs from `import_tables.py`, and the call that each replaces.

For each kernel, this module repeats the arguments that the spec passes to the op, as a function of
the kernel's parameters. Tokamax binds these arguments in the same way as those of a program's call,
so equal calls have the same key.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tokamax._src import precision as precisions
from tokamax._src.ops.attention import base as attention
from tokamax._src.ops.ragged_dot import base as ragged_dot
from tokamax._src.pydantic import ShapeDtype

import pallasc
from tokamax_prebuilt import kernels
from tokamax_prebuilt.calls import OWN, call_key

COMPILED_FROM = "0.0.17"
"""The version of Tokamax that the kernels are compiled from, as in `pyproject.toml`."""

Arguments = Mapping[str, Any]
"""Arguments of a call, as bound by Tokamax."""


class Prebuilt(NamedTuple):
    """A compiled kernel, and the function that selects its operands from a call."""

    kernel: pallasc.Kernel
    operands: Callable[[Arguments], dict[str, Any]]


class _Imported(NamedTuple):
    """Kernels with the same name.

    Attributes:
        op: a name in `calls.OWN`.
        passed: the arguments that the spec passes to the op for these parameters, with types in
            place of arrays.
        operands: the arrays of a call by the kernel's argument names.
    """

    op: str
    passed: Callable[[Arguments], dict[str, Any]]
    operands: Callable[[Arguments], dict[str, Any]]


def find(op: str, key: str) -> Sequence[Prebuilt]:
    """Return the kernels for a call, best first; empty if none was compiled.

    The first kernel takes its tile sizes from the bundle's table, which covers some GPUs. Each of
    the others has fixed tile sizes.
    """
    return _by_key().get((op, key), ())


@functools.cache
def _by_key() -> dict[tuple[str, str], list[Prebuilt]]:
    found: dict[tuple[str, str], list[Prebuilt]] = {}
    for name, kernel in kernels().items():
        op, passed, operands = _IMPORTED[name]
        for variant in kernel.variants:
            params = {key: own for key, own in variant.params.items() if key != "config"}
            key = call_key(op, OWN[op].bind(**passed(params)).arguments)
            own = found.setdefault((op, key), [Prebuilt(kernel.variant(**params), operands)])
            if "config" in variant.params:
                own.append(Prebuilt(kernel.variant(**variant.params), operands))
    return found


def _array(text: str | None) -> jax.ShapeDtypeStruct | None:
    """Return the array type that a spec writes as `bf16[8,128]`."""
    if text is None:
        return None
    dtype, _, shape = text.rstrip("]").partition("[")
    sizes = [int(size) for size in shape.split(",") if size]
    return jax.ShapeDtypeStruct(sizes, ShapeDtype.SHORT_DTYPE_NAMES_MAP[dtype])


def _arrays(params: Arguments, *names: str) -> dict[str, Any]:
    return {name: _array(params[name]) for name in names}


def _take(*names: str) -> Callable[[Arguments], dict[str, Any]]:
    return lambda arguments: {name: arguments[name] for name in names}


# ---- attention


def _attention(params: Arguments) -> dict[str, Any]:
    return {
        **_arrays(params, "q", "k", "v", "bias", "mask"),
        "precision": params["precision"],
        "logits_dtype": "float32",
        "is_causal": params.get("causal", False),
        "return_residuals": params.get("residuals", True),
    }


def _attention_operands(arguments: Arguments) -> dict[str, Any]:
    names = ("q", "k", "v", "bias")
    return {**_take(*names)(arguments), "mask": arguments["mask"].bool_mask}


def _attention_vjp(params: Arguments) -> dict[str, Any]:
    nothing = ("logits_soft_cap", "dropout_mask", "paging_info", "q_indices", "k_indices")
    precision = precisions.canonicalize_precision(params["precision"])
    if "mask" in params:
        mask = attention.Mask(bool_mask=_array(params["mask"]))
    else:
        mask = attention.Mask(is_causal=params["causal"])
    return {
        "residuals": (_array(params["residuals"]),) * 2,
        **_arrays(params, "out", "dout", "q", "k", "v", "bias"),
        "mask": mask,
        "precision": (precision, precision),
        "logits_dtype": np.dtype("float32"),
        "logits_scale": params["scale"],
        "dropout_rate": 0.0,
        "normalize_output": True,
        **dict.fromkeys(nothing),
    }


# ---- the others


def _gated_linear_unit(params: Arguments) -> dict[str, Any]:
    module, _, name = params["activation"].partition(":")
    activation = getattr(importlib.import_module(module), name)
    own = _arrays(params, "x", "weights")
    return {**own, "activation": activation, "precision": params["precision"]}


def _ragged_dot(params: Arguments) -> dict[str, Any]:
    numbers = getattr(ragged_dot, f"{params['dimensions']}_DOT_DIM_NUMS")
    return {
        **_arrays(params, "lhs", "rhs", "group_sizes"),
        "ragged_dot_dimension_numbers": numbers,
        "precision": params["precision"],
        "preferred_element_type": params["out"],
        "return_residuals": params["residuals"],
    }


def _ragged_dot_operands(arguments: Arguments) -> dict[str, Any]:
    sizes = jnp.asarray(arguments["group_sizes"])
    return {**_take("lhs", "rhs")(arguments), "group_sizes": sizes}


_BACKWARD = ("residuals", "out", "dout", "q", "k", "v", "bias")
_IMPORTED = {
    "attention": _Imported("attention", _attention, _attention_operands),
    "attention_forward_masked": _Imported("attention", _attention, _attention_operands),
    "attention_vjp": _Imported("attention_vjp", _attention_vjp, _take(*_BACKWARD)),
    "attention_vjp_masked": _Imported("attention_vjp", _attention_vjp, _take(*_BACKWARD, "mask")),
    "gated_linear_unit": _Imported("gated_linear_unit", _gated_linear_unit, _take("x", "weights")),
    "ragged_dot": _Imported("ragged_dot", _ragged_dot, _ragged_dot_operands),
}
"""The imported kernels by name."""
