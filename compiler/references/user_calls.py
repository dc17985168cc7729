"""Call a variant's function or reference with arrays, on the CPU; only workers do this."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pallasc.compiler.lowering.diagnose import frames, user_place
from pallasc.compiler.lowering.entry import array_arguments, import_function, static_arguments
from pallasc.compiler.lowering.jax_versions import without_locations
from pallasc.compiler.lowering.trees import abstract, bind
from pallasc.compiler.references.compare import numpy_dtype
from pallasc.errors import SpecError, summary_of
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.dtypes import parse_dtype
from pallasc.specs.spec import Variant


def prepare_jax(inputs: Mapping[str, Any]) -> None:
    """Have JAX keep 64-bit types, if there are any; before any array of JAX's is made."""
    import jax

    if any(array.dtype.itemsize >= 8 and array.dtype != "complex64" for array in inputs.values()):
        jax.config.update("jax_enable_x64", True)


def kernel_call(variant: Variant, inputs: Mapping[str, Any]) -> Callable[[], Any]:
    """Return what calls a variant's function with these arrays, as the spec passes them.

    Args:
        variant: the variant.
        inputs: numpy arrays by path, in the order of the kernel's signature.

    Raises:
        SpecError: it cannot be imported.
    """
    prepare_jax(inputs)
    try:
        function = import_function(variant.entry, variant.base_dir)
        static = static_arguments(variant.static, variant.base_dir)
        positional, named = _arguments(variant, inputs)
    except SpecError as error:
        error.location = error.location or variant.location
        raise
    import jax

    # As it is compiled: `core_map` and references in a memory space need a trace around them.
    compiled = jax.jit(lambda args, kwargs: function(*args, **kwargs, **static))
    return lambda: compiled(positional, named)


def run_reference(variant: Variant, inputs: Mapping[str, Any]) -> Any:
    """Return the results of a variant's reference.

    It is called with the kernel's arrays and those static arguments that it has parameters for.

    Args:
        variant: the variant.
        inputs: numpy arrays by path, in the order of the kernel's signature.

    Raises:
        SpecError: it cannot be imported, or fails.
    """
    import jax

    prepare_jax(inputs)
    try:
        function = import_function(str(variant.reference), variant.base_dir)
        taken = {k: value for k, value in variant.static.items() if _takes(function, k)}
        static = static_arguments(taken, variant.base_dir)
        positional, named = _arguments(variant, inputs)
    except SpecError as error:
        error.location = error.location or variant.location
        raise
    try:
        with without_locations():
            return jax.block_until_ready(function(*positional, **named, **static))
    except Exception as error:
        place = user_place(frames(error)) or variant.location
        raise SpecError(
            f"the reference {variant.reference} of {variant.name} failed: {summary_of(error)}",
            location=place,
        ) from error


def _takes(function: Callable[..., Any], name: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return True
    kinds = {parameter.kind for parameter in parameters.values()}
    return name in parameters or inspect.Parameter.VAR_KEYWORD in kinds


def _arguments(variant: Variant, inputs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments by position and by name, as the spec passes them to the kernel."""
    trees = array_arguments(variant.args, variant.base_dir)
    if isinstance(trees, list):
        in_order = iter(inputs.values())
        return [_filled(tree, "", lambda _: next(in_order)) for tree in trees], {}
    return [], {name: _filled(tree, name, inputs.__getitem__) for name, tree in trees.items()}


def _filled(tree: Any, path: str, array_at: Callable[[str], Any]) -> Any:
    """Return an argument with JAX arrays, in the order in which JAX flattens it."""
    import jax
    import jax.numpy as jnp

    shapes = abstract(tree, None)
    bound: list[Binding] = []
    bind(shapes, path, bound, is_input=True)
    if bit := next((a for a in bound if parse_dtype(a.dtype).bits == 1), None):
        raise SpecError(
            f"JAX cannot compute with arrays of {bit.dtype}: an element takes a bit, and XLA reads "
            "a byte.",
            hint="Pass i2, i8, or bool, and convert it in the kernel.",
        )
    arrays = [
        jnp.asarray(array_at(argument.path), dtype=numpy_dtype(argument.dtype))
        for argument in bound
    ]
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(shapes), arrays)


def leaves_of(result: Any) -> list[Any]:
    """Return the arrays of a result, in the order of the kernel's results."""
    import jax
    import numpy as np

    return [np.asarray(leaf) for leaf in jax.tree.leaves(result)]
