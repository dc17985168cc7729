"""The process that calls references, which are user code, with JAX on the CPU.

The warden starts it as `main(REQUESTS, ANSWERS)`; the messages are in
`comparison`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pallasc.compiler.inputs.recorders import enter, expose_variables
from pallasc.compiler.lowering.diagnose import frames, user_place
from pallasc.compiler.lowering.entry import (
    abstract,
    array_arguments,
    bind,
    import_function,
    static_arguments,
    takes,
)
from pallasc.compiler.lowering.jax_versions import without_locations
from pallasc.compiler.references.arrays import numpy_dtype, random_bytes
from pallasc.compiler.references.comparison import (
    ArrayFile,
    Compare,
    Compared,
    Sample,
    Sampled,
    bound_array,
    compare_arrays,
    positions_of,
    settle_tolerance,
)
from pallasc.compiler.workers.messages import serve
from pallasc.errors import SpecError, summary_of
from pallasc.specs.arrays import parse_dtype
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.bundle.tuned import Reference, pack_reference
from pallasc.specs.bundle.tuned import Sampled as SampledOutput
from pallasc.specs.spec import Variant
from pallasc.specs.spelling import an


def main(requests: int, replies: int) -> int:
    """Serve requests until there are no more."""
    return serve(requests, replies, {Compare: _compare, Sample: _sample})


def _compare(request: Compare) -> Compared:
    """Run the reference and compare each output."""
    variant, launched = request.variant, request.launched
    inputs = {file.array.path: _read(launched.folder, file) for file in launched.inputs}
    bindings = [file.array for file in launched.outputs]
    compared = []
    for output, expected in zip(
        launched.outputs, _expected(request, inputs, bindings), strict=True
    ):
        rtol, atol = settle_tolerance(variant.tolerance, output.array.dtype)
        actual = _read(launched.folder, output)
        compared.append(compare_arrays(actual, expected, rtol=rtol, atol=atol))
    return Compared(outputs=tuple(compared))


def _read(folder: Path, file: ArrayFile) -> Any:
    return bound_array(file.array, (folder / file.name).read_bytes())


def _sample(request: Sample) -> Sampled:
    """Return some elements of each output, for the inputs that `pallasc run` makes."""
    inputs = {}
    for array in request.inputs:
        data = random_bytes(array.dtype, array.size_bytes, seed=request.seed, name=array.path)
        inputs[array.path] = bound_array(array, data)
    expected = _expected(request, inputs, request.outputs)
    # All outputs use one pair of tolerances: the largest.
    limits = [settle_tolerance(request.variant.tolerance, a.dtype) for a in request.outputs]
    pairs = zip(expected, request.outputs, strict=True)
    reference = Reference(
        seed=request.seed,
        rtol=max((rtol for rtol, _ in limits), default=0.0),
        atol=max((atol for _, atol in limits), default=0.0),
        outputs=tuple(_sampled(array, output, request.seed) for array, output in pairs),
    )
    return Sampled(data=pack_reference(reference))


def _sampled(array: Any, output: Binding, seed: int) -> SampledOutput:
    """Return some elements of a result.

    Raises:
        SpecError: the elements are complex.
    """
    if array.dtype.kind == "c":
        raise SpecError(f"{output.path} is complex, which reference values cannot be.")
    positions = positions_of(output.path, array.size, seed)
    elements = array.reshape(-1)
    return SampledOutput(tuple(positions), tuple(float(elements[each]) for each in positions))


def _expected(
    request: Compare | Sample, inputs: Mapping[str, Any], outputs: Sequence[Binding]
) -> list[Any]:
    """Return the results of a reference.

    Raises:
        SpecError: it cannot be run, or the shapes of its results differ from the kernel's.
    """
    variant = request.variant
    expose_variables(request.env)
    enter(variant.base_dir)
    found = run_reference(variant, inputs)
    given, expected = [tuple(a.shape) for a in found], [output.shape for output in outputs]
    if given != expected:
        raise SpecError(
            f"the reference {variant.reference} of {variant.name} gives arrays of the shapes "
            f"{_shapes(given)}, and the kernel {_shapes(expected)}.",
            location=variant.location,
            hint="It must return arrays like the kernel's.",
        )
    return found


def _shapes(shapes: Sequence[Sequence[int]]) -> str:
    return ", ".join(str(list(shape)) for shape in shapes) or "none"


def kernel_call(variant: Variant, inputs: Mapping[str, Any]) -> Callable[[], Any]:
    """Return a call of a variant's function with these arrays, passed as in the spec.

    Args:
        variant: the variant.
        inputs: numpy arrays by path, in the order of the kernel's signature.

    Raises:
        SpecError: the function cannot be imported.
    """
    import jax

    function, positional, named = _call_of(variant, variant.entry, inputs)
    # Under `jit`, as in compilation: `core_map` and references in a memory space need a trace.
    compiled = jax.jit(lambda args, kwargs: function(*args, **kwargs))
    return lambda: compiled(positional, named)


def run_reference(variant: Variant, inputs: Mapping[str, Any]) -> list[Any]:
    """Return the arrays that a variant's reference returns, in the order of the kernel's results.

    The reference is called with the kernel's arrays and the static arguments for which it has
    parameters.

    Args:
        variant: the variant.
        inputs: numpy arrays by path, in the order of the kernel's signature.

    Raises:
        SpecError: it cannot be imported, fails, or returns something that is not an array.
    """
    import jax

    function, positional, named = _call_of(variant, str(variant.reference), inputs)
    try:
        with without_locations():
            result = jax.block_until_ready(function(*positional, **named))
    except Exception as error:
        place = user_place(frames(error)) or variant.location
        raise SpecError(
            f"the reference {variant.reference} of {variant.name} failed: {summary_of(error)}",
            location=place,
        ) from error
    arrays = leaves_of(result)
    for array in arrays:
        if array.dtype.kind in "OUS" and array.size:
            raise SpecError(
                f"the reference {variant.reference} of {variant.name} returns "
                f"{an(type(array.flat[0]).__name__)}, which is no array.",
                location=variant.location,
                hint="It must return arrays like the kernel's.",
            )
    return arrays


def _call_of(
    variant: Variant, entry: str, inputs: Mapping[str, Any]
) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
    """Return a function with its static arguments, and its arrays by position and by name.

    References get only the static arguments that they have parameters for.
    """
    import jax

    # This must happen before JAX creates any array.
    if any(array.dtype.itemsize >= 8 and array.dtype != "complex64" for array in inputs.values()):
        jax.config.update("jax_enable_x64", True)
    try:
        function = import_function(entry, variant.base_dir)
        is_kernel = entry == variant.entry
        taken = {k: v for k, v in variant.static.items() if is_kernel or takes(function, k)}
        function = partial(function, **static_arguments(taken, variant.base_dir))
        trees = array_arguments(variant.args, variant.base_dir)
        if isinstance(trees, list):
            in_order = iter(inputs.values())
            return function, [_filled(tree, "", lambda _: next(in_order)) for tree in trees], {}
        named = {name: _filled(tree, name, inputs.__getitem__) for name, tree in trees.items()}
        return function, [], named
    except SpecError as error:
        error.location = error.location or variant.location
        raise


def _filled(tree: Any, path: str, array_at: Callable[[str], Any]) -> Any:
    """Return an argument with JAX arrays, in JAX's flattening order."""
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
