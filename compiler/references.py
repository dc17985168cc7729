"""Run the references of specs: functions of the user that compute a kernel's expected results.

A separate process (`main`) calls references with JAX on the CPU. It serves two requests: `Compare`
compares the outputs of a launch with a reference; `Sample` returns some elements of a reference's
results, to store them with a tuned point (a combination of parameter values). Points that differ
only in tuned parameters share a reference, which is called once.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

from pallasc.compiler.arrays import (
    Comparison,
    bound_array,
    compare_arrays,
    numpy_dtype,
    random_bytes,
    settle_tolerance,
)
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
from pallasc.compiler.lowering.jax_versions import source_locations
from pallasc.compiler.toolchain.setup import declared_values, settled
from pallasc.compiler.workers.messages import Reply, Request, Task, serve
from pallasc.compiler.workers.pool import Pool
from pallasc.errors import PallascError, SpecError, summary_of
from pallasc.specs.arrays import parse_dtype
from pallasc.specs.artifacts.plan import Binding, LaunchPlan
from pallasc.specs.bundle.tuned import MOST_VALUES, Reference, pack_reference, parse_reference
from pallasc.specs.bundle.tuned import Sampled as SampledOutput
from pallasc.specs.spec import Variant

Arrays = tuple[tuple[Binding, bytes], ...]
"""Arrays with their bytes as in device memory."""


class Compared(Reply, frozen=True, kw_only=True):
    """The comparison of each output."""

    outputs: tuple[Comparison, ...]


class Compare(Request, frozen=True, kw_only=True):
    """Compare a launch's outputs with the variant's reference.

    `env` has the environment variables that the variant declares.
    """

    reply: ClassVar[type[Reply]] = Compared
    variant: Variant
    inputs: Arrays
    outputs: Arrays
    env: Mapping[str, str | None] = {}


PROGRAM = "pallasc.compiler.references"
Launch = Callable[[int], tuple[Arrays, Arrays]]
"""Launches the variant with this number, and returns its inputs and outputs."""


def compare(
    variants: Sequence[Variant], launch: Launch
) -> Iterator[tuple[int, tuple[Comparison, ...]]]:
    """Launch and compare variants one after another; yield each one's number and comparisons.

    Args:
        variants: variants that have a reference.
        launch: see `Launch`.

    Raises:
        PallascError: a launch or a reference fails.
    """

    def request(number: int) -> Compare:
        variant, (inputs, outputs) = variants[number], launch(number)
        env = declared_values(variant.env)
        return Compare(variant=variant, env=env, inputs=inputs, outputs=outputs)

    tasks = [_task(n, variant, partial(request, n)) for n, variant in enumerate(variants)]
    for number, reply in _replies(tasks):
        yield number, reply.require(Compared).outputs


def _task(number: int, variant: Variant, request: Request | Callable[[], Request]) -> Task:
    environment = ("", variant.base_dir, tuple(declared_values(variant.env).items()))
    doing = f"the process that runs the reference of {variant.id}"
    return Task(number, environment, request, doing)


def _replies(tasks: Sequence[Task], **limits: Any) -> Iterator[tuple[int, Reply]]:
    """Yield the number and the reply of each task, in the order of completion."""
    if not tasks:
        return
    with Pool(1, settled(os.environ), program=PROGRAM, tick_s=None, **limits) as pool:
        for _, task, reply in pool.run(tasks):
            if task is not None and reply is not None:
                yield task.label, reply


SEED = 0
"""Seed of the inputs: the default of `pallasc run`."""
LONGEST_S = 120
"""Time limit of one reference in seconds; a reference that exceeds it gives no values."""

_MOST_BYTES = 4 << 30
"""Maximum size of a reference's inputs; JAX needs several times as much memory on the CPU."""


class Sampled(Reply, frozen=True, kw_only=True):
    """The bytes of the reference values, as stored in a bundle."""

    data: bytes


class Sample(Request, frozen=True, kw_only=True):
    """Return elements of the results of a variant's reference; `env` is as in `Compare`."""

    reply: ClassVar[type[Reply]] = Sampled
    variant: Variant
    inputs: tuple[Binding, ...]
    outputs: tuple[Binding, ...]
    env: Mapping[str, str | None] = {}


class Samples(NamedTuple):
    """Reference values of a variant as bytes, or None and the reason why there are none."""

    data: bytes | None
    why: str = ""


def positions_of(path: str, size: int) -> list[int]:
    """Return the indices of the elements of an output to compare, ascending; all if there are few.

    Args:
        path: path of the output; outputs with different paths get different indices.
        size: number of elements of the output.
    """
    if size <= MOST_VALUES:
        return list(range(size))
    return sorted(random.Random(f"{SEED} {path}").sample(range(size), MOST_VALUES))


def sample_references(
    points: Sequence[tuple[Variant, LaunchPlan]], *, memory_bytes: int | None = None
) -> list[Samples]:
    """Return the reference values of points, in the order of the points.

    Args:
        points: variants and their launch plans, in any order.
        memory_bytes: memory limit of the process; None for no limit.
    """
    found: dict[int, Samples] = {}
    leaders: dict[object, int] = {}
    tasks: list[Task] = []
    for number, (variant, plan) in enumerate(points):
        if leaders.setdefault(_same(variant), number) != number:
            continue
        if why := _why_none(variant, plan):
            found[number] = Samples(None, why)
        else:
            request = Sample(
                variant=variant,
                inputs=plan.inputs,
                outputs=plan.outputs,
                env=declared_values(variant.env),
            )
            tasks.append(_task(number, variant, request))
    for number, reply in _replies(tasks, timeout_s=LONGEST_S, memory_bytes=memory_bytes):
        found[number] = _settled(reply, points[number][1])
    return [found[leaders[_same(variant)]] for variant, _ in points]


def _same(variant: Variant) -> object:
    """Return a key that is equal for variants with the same reference.

    The key leaves out the target and the tuned parameters.
    """
    over = variant.tuning.over if variant.tuning else ()
    params = tuple((name, value) for name, value in variant.params if name not in over)
    return variant.name, variant.base_dir, params


def _why_none(variant: Variant, plan: LaunchPlan) -> str:
    """Return why there are no reference values, "" if there may be some."""
    if variant.reference is None:
        return "the spec names no reference"
    if variant.mesh:
        return "it runs on several devices"
    if sum(plan.buffers[each.buffer].size for each in plan.inputs) > _MOST_BYTES:
        return f"its inputs take more than {_MOST_BYTES >> 30} GiB"
    return ""


def _settled(reply: Reply, plan: LaunchPlan) -> Samples:
    try:
        data = reply.require(Sampled).data
        parse_reference(data, [output.shape for output in plan.outputs])
    except PallascError as error:
        return Samples(None, error.message)
    return Samples(data)


# ---- the process that calls references


def main(requests: int, replies: int) -> int:
    """Serve requests until there are no more."""
    return serve(requests, replies, {Compare: _compare, Sample: _sample})


def _compare(request: Compare) -> Compared:
    """Run the reference and compare each output."""
    inputs = {array.path: bound_array(array, data) for array, data in request.inputs}
    expected = _expected(request, inputs, [array for array, _ in request.outputs])
    compared = []
    for (array, data), wanted in zip(request.outputs, expected, strict=True):
        rtol, atol = settle_tolerance(request.variant.tolerance, array.dtype)
        compared.append(compare_arrays(bound_array(array, data), wanted, rtol=rtol, atol=atol))
    return Compared(outputs=tuple(compared))


def _sample(request: Sample) -> Sampled:
    """Return some elements of each output, for the inputs that `pallasc run` makes."""
    inputs = {}
    for array in request.inputs:
        data = random_bytes(array.dtype, array.size_bytes, seed=SEED, name=array.path)
        inputs[array.path] = bound_array(array, data)
    expected = _expected(request, inputs, request.outputs)
    # All outputs use one pair of tolerances: the largest.
    limits = [settle_tolerance(request.variant.tolerance, a.dtype) for a in request.outputs]
    pairs = zip(expected, request.outputs, strict=True)
    reference = Reference(
        seed=SEED,
        rtol=max((rtol for rtol, _ in limits), default=0.0),
        atol=max((atol for _, atol in limits), default=0.0),
        outputs=tuple(_sampled(array, output) for array, output in pairs),
    )
    return Sampled(data=pack_reference(reference))


def _sampled(array: Any, output: Binding) -> SampledOutput:
    """Return some elements of a result.

    Raises:
        SpecError: the elements are complex.
    """
    if array.dtype.kind == "c":
        raise SpecError(f"{output.path} is complex, which reference values cannot be.")
    positions = positions_of(output.path, array.size)
    elements = array.reshape(-1)
    return SampledOutput(tuple(positions), tuple(float(elements[each]) for each in positions))


def _expected(
    request: Compare | Sample, inputs: Mapping[str, Any], outputs: Sequence[Binding]
) -> list[Any]:
    """Return the results of a reference.

    Raises:
        SpecError: the reference fails, or the shapes of its results differ from the kernel's.
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
    # `core_map` and JAX's refs in a memory space work only while a function is traced.
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
        SpecError: the reference cannot be imported, or fails.
    """
    import jax

    function, positional, named = _call_of(variant, str(variant.reference), inputs)
    try:
        with source_locations(enabled=False):
            result = jax.block_until_ready(function(*positional, **named))
    except Exception as error:
        place = user_place(frames(error)) or variant.location
        raise SpecError(
            f"the reference {variant.reference} of {variant.name} failed: {summary_of(error)}",
            location=place,
        ) from error
    return leaves_of(result)


def _call_of(
    variant: Variant, entry: str, inputs: Mapping[str, Any]
) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
    """Return a function with its static arguments bound, and its arrays by position and by name.

    A reference gets only the static arguments that it has parameters for.
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
