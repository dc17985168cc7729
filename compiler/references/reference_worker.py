"""The process that runs references with JAX on the CPU, separate from the launching process.

Started by the warden as `main([REQUESTS, ANSWERS, PARENT], channel)`; the messages are those of
`comparison`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pallasc.compiler.inputs.isolation import enter, expose_variables
from pallasc.compiler.references.compare import compare_arrays, read_array, settle_tolerance
from pallasc.compiler.references.comparison import ArrayFile, Compare, Compared, Comparison
from pallasc.compiler.references.user_calls import leaves_of, run_reference
from pallasc.compiler.workers.channel import Channel
from pallasc.compiler.workers.serving import serve
from pallasc.errors import SpecError
from pallasc.specs.spec import Variant


def main(arguments: list[str], channel: Channel) -> int:
    """Serve requests until there are no more."""
    return serve(arguments[0], channel, Compare, _compare)


def _compare(request: Compare) -> Compared:
    """Compare each output.

    Raises:
        SpecError: the reference cannot be run, or its results have other shapes.
    """
    variant, launched = request.variant, request.launched
    expose_variables(request.env)
    enter(variant.base_dir)
    inputs = {file.array.path: _read(launched.folder, file) for file in launched.inputs}
    outputs = launched.outputs
    expected = leaves_of(run_reference(variant, inputs))
    if len(expected) != len(outputs):
        raise _wrong(variant, f"gives {len(expected)} arrays, and the kernel {len(outputs)}")
    return Compared(
        outputs=tuple(
            _compare_output(variant, output, array, launched.folder)
            for output, array in zip(outputs, expected, strict=True)
        )
    )


def _read(folder: Path, file: ArrayFile) -> Any:
    return read_array(folder / file.name, file.array.dtype, file.array.shape, file.array.layout)


def _compare_output(variant: Variant, output: ArrayFile, expected: Any, folder: Path) -> Comparison:
    array = output.array
    if tuple(expected.shape) != array.shape:
        raise _wrong(
            variant,
            f"gives {array.path} the shape {list(expected.shape)}, and the kernel "
            f"{list(array.shape)}",
        )
    rtol, atol = settle_tolerance(variant.tolerance, array.dtype)
    return compare_arrays(_read(folder, output), expected, rtol=rtol, atol=atol)


def _wrong(variant: Variant, what: str) -> SpecError:
    return SpecError(
        f"the reference {variant.reference} of {variant.name} {what}.",
        location=variant.location,
        hint="It must return arrays like the kernel's.",
    )
