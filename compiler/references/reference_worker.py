"""The process that calls references, which are user code, with JAX on the CPU.

Started by the warden as `main([REQUESTS, ANSWERS, PARENT], channel)`; the messages are in
`comparison` and `samples`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pallasc.compiler.inputs.isolation import enter, expose_variables
from pallasc.compiler.references.compare import (
    array_of,
    compare_arrays,
    read_array,
    settle_tolerance,
)
from pallasc.compiler.references.comparison import ArrayFile, Compare, Compared, Comparison
from pallasc.compiler.references.input_values import random_bytes
from pallasc.compiler.references.samples import Sample, Sampled, positions_of
from pallasc.compiler.references.user_calls import leaves_of, run_reference
from pallasc.compiler.workers.channel import Channel
from pallasc.compiler.workers.messages import serve
from pallasc.errors import SpecError
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.artifacts.signature import array_bytes
from pallasc.specs.bundle.reference import Reference, pack_reference
from pallasc.specs.bundle.reference import Sampled as SampledOutput
from pallasc.specs.spec import Variant


def main(arguments: list[str], channel: Channel) -> int:
    """Serve requests until there are no more."""
    return serve(arguments[0], channel, {Compare: _compare, Sample: _sample})


def _compare(request: Compare) -> Compared:
    """Compare each output."""
    launched = request.launched
    inputs = {file.array.path: _read(launched.folder, file) for file in launched.inputs}
    bindings = [file.array for file in launched.outputs]
    pairs = zip(launched.outputs, _expected(request, inputs, bindings), strict=True)
    return Compared(
        outputs=tuple(
            _compare_output(request.variant, output, array, launched.folder)
            for output, array in pairs
        )
    )


def _sample(request: Sample) -> Sampled:
    """Return some elements of each output."""
    inputs = {array.path: _drawn(array, request.seed) for array in request.inputs}
    expected = _expected(request, inputs, request.outputs)
    # One pair of tolerances serves all outputs: the widest.
    limits = [settle_tolerance(request.variant.tolerance, a.dtype) for a in request.outputs]
    reference = Reference(
        seed=request.seed,
        rtol=max((rtol for rtol, _ in limits), default=0.0),
        atol=max((atol for _, atol in limits), default=0.0),
        outputs=tuple(
            _sampled(array, output, request.seed)
            for array, output in zip(expected, request.outputs, strict=True)
        ),
    )
    return Sampled(data=pack_reference(reference))


def _expected(
    request: Compare | Sample, inputs: Mapping[str, Any], outputs: Sequence[Binding]
) -> list[Any]:
    """Return the results of a reference.

    Raises:
        SpecError: it cannot be run, or its results have other shapes than the kernel's.
    """
    variant = request.variant
    expose_variables(request.env)
    enter(variant.base_dir)
    found = leaves_of(run_reference(variant, inputs))
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


def _read(folder: Path, file: ArrayFile) -> Any:
    return read_array(folder / file.name, file.array.dtype, file.array.shape, file.array.layout)


def _compare_output(variant: Variant, output: ArrayFile, expected: Any, folder: Path) -> Comparison:
    rtol, atol = settle_tolerance(variant.tolerance, output.array.dtype)
    return compare_arrays(_read(folder, output), expected, rtol=rtol, atol=atol)


def _drawn(array: Binding, seed: int) -> Any:
    """Return an input as `pallasc run` makes it."""
    data = random_bytes(array.dtype, array_bytes(array), seed=seed, name=array.path)
    return array_of(np.frombuffer(data, np.uint8), array.dtype, array.shape, array.layout)


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
