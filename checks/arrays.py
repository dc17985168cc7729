"""Inputs of a variant, what its reference makes of them, and how results differ from that.

For levels that execute; they agree in the numbers that they start from. Imports numpy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pallasc.checks.findings import Finding
from pallasc.checks.rules import UNINITIALIZED, WRONG_NUMBERS
from pallasc.checks.subject import Options, Subject
from pallasc.compiler.references.compare import array_of, compare_arrays, settle_tolerance
from pallasc.compiler.references.input_values import random_bytes
from pallasc.compiler.references.npy import names_in, read_named
from pallasc.compiler.references.user_calls import leaves_of, run_reference
from pallasc.errors import ArgumentError, Location, SpecError
from pallasc.specs.arrays import ArraySpec
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.dtypes import parse_dtype
from pallasc.specs.spec import Tolerance, Variant
from pallasc.specs.spelling import suggestion


def input_arrays(subject: Subject, options: Options) -> dict[str, Any]:
    """Return the inputs of a variant as numpy arrays by path, in the order of its signature.

    They are those of the file of `options`, and otherwise the random numbers of `pallasc run`.

    Raises:
        SpecError: the file cannot be read.
        ArgumentError: it holds another array, or one that the kernel does not take.
    """
    bindings = subject.plan.inputs
    named = _names(subject, options)
    return {binding.path: _array(subject.id, binding, options, named) for binding in bindings}


def _names(subject: Subject, options: Options) -> list[str]:
    if options.inputs is None:
        return []
    named, known = names_in(options.inputs), [binding.path for binding in subject.plan.inputs]
    for name in named:
        if name not in known:
            raise ArgumentError(
                f"{subject.id} takes no array {name!r}, which {options.inputs} holds.",
                hint=suggestion(name, known, otherwise="It takes"),
            )
    return named


def _array(name: str, binding: Binding, options: Options, named: Sequence[str]) -> Any:
    dtype, shape, path = binding.dtype, binding.shape, binding.path
    if options.inputs is not None and path in named:
        data = read_named(options.inputs, path, dtype, shape, f"{name}: {path}")
        return array_of(np.frombuffer(data, np.uint8), dtype, shape)
    data = random_bytes(dtype, ArraySpec(dtype, shape).nbytes, seed=options.seed, name=path)
    return array_of(np.frombuffer(data, np.uint8), dtype, shape, binding.layout)


def expected_results(
    variant: Variant, outputs: Sequence[Binding], inputs: Mapping[str, Any]
) -> list[Any]:
    """Return what the reference of a variant gives, an array for each result.

    Raises:
        SpecError: it fails, or gives other results than the kernel.
    """
    results = leaves_of(run_reference(variant, inputs))
    shapes = [list(result.shape) for result in results]
    if shapes != [list(output.shape) for output in outputs]:
        raise SpecError(
            f"the reference {variant.reference} of {variant.name} gives arrays of the shapes "
            f"{shapes}, and the kernel {[list(output.shape) for output in outputs]}.",
            location=variant.location,
            hint="It must return arrays like the kernel's.",
        )
    return results


def difference(
    output: Binding,
    got: Any,
    expected: Any,
    tolerance: Tolerance | None,
    *,
    location: Location | None = None,
) -> Finding | None:
    """Return what is wrong with a result, None if it is as near to the reference as it must be.

    Args:
        output: which result.
        got: what the kernel gave, a numpy array.
        expected: what the reference gave.
        tolerance: that of the variant.
        location: the place that the finding is told at, such as that of the kernel.
    """
    rtol, atol = settle_tolerance(tolerance, output.dtype)
    compared: dict[str, Any] = compare_arrays(got, expected, rtol=rtol, atol=atol)
    first = compared["first"]
    if first is None:
        return None
    index = ", ".join(map(str, first["index"]))
    element = f"{output.path or 'the result'}[{index}]"
    count, of = compared["mismatches"], compared["count"]
    if _is_unwritten(output.dtype, got, expected, tuple(first["index"])):
        return Finding(
            rule=UNINITIALIZED.name,
            message=f"{element} is {first['got']}, as memory is that nothing has written; the "
            f"reference gives {first['wanted']}. {count:,} of {of:,} elements differ",
            location=location,
        )
    return Finding(
        rule=WRONG_NUMBERS.name,
        message=f"{element} is {first['got']}, and the reference gives {first['wanted']}; "
        f"{count:,} of {of:,} elements differ by more than rtol {rtol:g} and atol {atol:g}",
        location=location,
    )


def _is_unwritten(dtype: str, got: Any, expected: Any, index: tuple[int, ...]) -> bool:
    """Tell whether an element holds what memory holds before anything is written there."""
    if dtype == "bool" or parse_dtype(dtype).bits < 8:
        return False
    if dtype[0] in "iu":
        largest = np.iinfo(got.dtype).max
        return bool(got[index] == largest and expected[index] != largest)
    return bool(np.isnan(got[index]) and not np.isnan(expected[index]))
