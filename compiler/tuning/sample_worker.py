"""The process that calls references for a job, with JAX on the CPU.

Started by the warden as `main([REQUESTS, ANSWERS, PARENT], channel)`; the messages are those of
`samples`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pallasc.compiler.inputs.isolation import enter, expose_variables
from pallasc.compiler.references.compare import array_of, settle_tolerance
from pallasc.compiler.references.input_values import random_bytes
from pallasc.compiler.references.user_calls import leaves_of, run_reference
from pallasc.compiler.tuning.samples import Sample, Sampled, positions_of
from pallasc.compiler.workers.channel import Channel
from pallasc.compiler.workers.serving import serve
from pallasc.errors import SpecError
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.artifacts.signature import array_bytes
from pallasc.specs.bundle.reference import Reference, pack_reference
from pallasc.specs.bundle.reference import Sampled as SampledOutput
from pallasc.specs.spec import Variant


def main(arguments: list[str], channel: Channel) -> int:
    """Serve requests until there are no more."""
    return serve(
        arguments[0],
        channel,
        Sample,
        lambda request: Sampled(data=pack_reference(_reference(request))),
    )


def _reference(request: Sample) -> Reference:
    """Return the reference values of a variant.

    Raises:
        SpecError: the reference cannot be run, or its results are not like the kernel's.
    """
    variant = request.variant
    expose_variables(request.env)
    enter(variant.base_dir)
    inputs = {array.path: _drawn(array, request.seed) for array in request.inputs}
    found = leaves_of(run_reference(variant, inputs))
    _check_shapes(variant, found, request.outputs)
    # One pair of tolerances serves all outputs: the widest.
    limits = [settle_tolerance(variant.tolerance, array.dtype) for array in request.outputs]
    return Reference(
        seed=request.seed,
        rtol=max((rtol for rtol, _ in limits), default=0.0),
        atol=max((atol for _, atol in limits), default=0.0),
        outputs=tuple(
            _sampled(array, output, request.seed)
            for array, output in zip(found, request.outputs, strict=True)
        ),
    )


def _drawn(array: Binding, seed: int) -> Any:
    """Return an input as `pallasc run` makes it."""
    import numpy as np

    data = random_bytes(array.dtype, array_bytes(array), seed=seed, name=array.path)
    return array_of(np.frombuffer(data, np.uint8), array.dtype, array.shape, array.layout)


def _check_shapes(variant: Variant, found: Sequence[Any], outputs: Sequence[Binding]) -> None:
    """Check that results are like the kernel's.

    Raises:
        SpecError: their number, or a shape, differs.
    """
    given = [tuple(array.shape) for array in found]
    expected = [output.shape for output in outputs]
    if given != expected:
        raise SpecError(
            f"the reference {variant.reference} of {variant.name} gives arrays of the shapes "
            f"{_shapes(given)}, and the kernel {_shapes(expected)}.",
            location=variant.location,
            hint="It must return arrays like the kernel's.",
        )


def _shapes(shapes: Sequence[Sequence[int]]) -> str:
    return ", ".join(str(list(shape)) for shape in shapes)


def _sampled(array: Any, output: Binding, seed: int) -> SampledOutput:
    """Return some elements of a result.

    Raises:
        SpecError: they are complex.
    """
    if array.dtype.kind == "c":
        raise SpecError(f"{output.path} is complex, which reference values cannot be.")
    positions = positions_of(output.path, array.size, seed)
    elements = array.reshape(-1)
    return SampledOutput(tuple(positions), tuple(float(elements[each]) for each in positions))
