"""The process that runs references with JAX on the CPU, separate from the launching process.

Started by the warden as `main([REQUESTS, ANSWERS, PARENT], channel)`; the messages are those of
`reference`.
"""

from __future__ import annotations

import inspect
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pallasc.compiler.builds.compare import (
    compare_arrays,
    numpy_dtype,
    read_array,
    settle_tolerance,
)
from pallasc.compiler.builds.reference import ArrayFile, Compare, Compared
from pallasc.compiler.inputs.isolation import enter, expose_variables
from pallasc.compiler.lowering.diagnose import frames, user_place
from pallasc.compiler.lowering.entry import array_arguments, import_function, static_value
from pallasc.compiler.lowering.trees import abstract, bind
from pallasc.compiler.workers.channel import Channel, decode
from pallasc.compiler.workers.messages import Failed, Reply
from pallasc.errors import PallascError, SpecError
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.spec import Variant


def main(arguments: list[str], channel: Channel) -> int:
    """Serve requests until there are no more."""
    requests = int(arguments[0])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    with os.fdopen(requests, "rb") as source:
        for line in source:
            request = Compare.from_json(decode(line))
            reply: Reply
            try:
                reply = Compared(task=request.task, outputs=tuple(_compare(request)))
            except PallascError as error:
                reply = replace(Failed.because_of(error), task=request.task)
            channel.send(reply.to_json())
    return 0


def _compare(request: Compare) -> list[dict[str, object]]:
    """Return the comparison of each output.

    Raises:
        SpecError: the reference cannot be run, or its results have other shapes.
    """
    variant, launched = request.variant, request.launched
    expose_variables(request.env)
    enter(variant.base_dir)
    inputs = {file.array.path: _read(launched.folder, file) for file in launched.inputs}
    outputs = launched.outputs
    expected = _leaves_of(run_reference(variant, inputs))
    if len(expected) != len(outputs):
        raise _wrong(variant, f"gives {len(expected)} arrays, and the kernel {len(outputs)}")
    return [
        _compare_output(variant, output, array, launched.folder)
        for output, array in zip(outputs, expected, strict=True)
    ]


def _read(folder: Path, file: ArrayFile) -> Any:
    return read_array(folder / file.name, file.array.dtype, file.array.shape, file.array.layout)


def _compare_output(
    variant: Variant, output: ArrayFile, expected: Any, folder: Path
) -> dict[str, object]:
    array = output.array
    if tuple(expected.shape) != array.shape:
        raise _wrong(
            variant,
            f"gives {array.path} the shape {list(expected.shape)}, and the kernel "
            f"{list(array.shape)}",
        )
    rtol, atol = settle_tolerance(variant.tolerance, array.dtype)
    compared = compare_arrays(_read(folder, output), expected, rtol=rtol, atol=atol)
    return {"path": array.path, **compared}


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

    # JAX narrows 64-bit types unless this is set before any array is made.
    if any(array.dtype.itemsize >= 8 and array.dtype != "complex64" for array in inputs.values()):
        jax.config.update("jax_enable_x64", True)
    try:
        function = import_function(str(variant.reference), variant.base_dir)
        static = {
            name: static_value(value, variant.base_dir)
            for name, value in variant.static.items()
            if _takes(function, name)
        }
    except SpecError as error:
        error.location = error.location or variant.location
        raise
    positional, named = _arguments(variant, inputs)
    try:
        result = function(*positional, **named, **static)
        return jax.block_until_ready(result)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        place = user_place(frames(error)) or variant.location
        raise SpecError(
            f"the reference {variant.reference} of {variant.name} failed: {reason}", location=place
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
    arrays = [
        jnp.asarray(array_at(argument.path), dtype=numpy_dtype(argument.dtype))
        for argument in bound
    ]
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(shapes), arrays)


def _leaves_of(result: Any) -> list[Any]:
    """Return the arrays of a result, in the order of the kernel's results."""
    import jax
    import numpy as np

    return [np.asarray(leaf) for leaf in jax.tree.leaves(result)]


def _wrong(variant: Variant, what: str) -> SpecError:
    return SpecError(
        f"the reference {variant.reference} of {variant.name} {what}.",
        location=variant.location,
        hint="It must return arrays like the kernel's.",
    )
