"""Inputs of a variant, results of its reference, and comparison of results with the reference.

All levels use this module, so that they start from the same numbers. It imports numpy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pallasc.checks.findings import (
    NOTHING_COMPARED,
    OTHER_KIND,
    UNINITIALIZED,
    WRONG_NUMBERS,
    Finding,
    Rule,
)
from pallasc.checks.levels import Options, Subject
from pallasc.compiler.arrays import (
    array_of,
    compare_arrays,
    epsilon,
    names_by_device,
    random_bytes,
    read_input,
    settle_tolerance,
)
from pallasc.compiler.references import run_reference
from pallasc.errors import Location, SpecError
from pallasc.specs.arrays import ArraySpec, parse_dtype
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.spec import Tolerance, Variant

_NO_TOLERANCE = (
    "The difference may come from another order of summation. Name a tolerance in the spec."
)


def input_arrays(subject: Subject, options: Options) -> list[dict[str, Any]]:
    """Return the inputs of each device as numpy arrays by path, in the order of the signature.

    Inputs come from the files in `options`; the others are the random numbers of `pallasc run`.
    With several devices, each device has different numbers, and the first dimension of an array in
    a file is the device.

    Raises:
        SpecError: a file cannot be read.
        ArgumentError: a file holds an array of another shape or dtype.
    """
    bindings = subject.plan.inputs
    arrays = {b.path: _of_devices(subject, b, options) for b in bindings}
    count = max(subject.plan.device_count, 1)
    return [{path: own[device] for path, own in arrays.items()} for device in range(count)]


def _of_devices(subject: Subject, binding: Binding, options: Options) -> Sequence[Any]:
    dtype, shape, path = binding.dtype, binding.shape, binding.path
    count = subject.plan.device_count
    if (file := options.inputs.get(path)) is not None:
        shape = (count, *shape) if count > 1 else shape
        data = read_input(file, path, dtype, shape, subject.id)
        array = array_of(np.frombuffer(data, np.uint8), dtype, shape)
        return list(array) if count > 1 else [array]
    size = ArraySpec(dtype, shape).nbytes
    names = names_by_device(path, count)
    drawn = [random_bytes(dtype, size, seed=options.seed, name=name) for name in names]
    return [array_of(np.frombuffer(d, np.uint8), dtype, shape, binding.layout) for d in drawn]


def stacked(inputs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Stack the inputs of several devices into arrays whose first dimension is the device."""
    return {path: np.stack([own[path] for own in inputs]) for path in inputs[0]}


def expected_results(
    variant: Variant, outputs: Sequence[Binding], inputs: Sequence[Mapping[str, Any]]
) -> list[list[Any]]:
    """Call the reference of a variant and return its results: a list of arrays for each device.

    With several devices, the reference is called once. The first dimension of its arguments and
    results is the device.

    Raises:
        SpecError: the reference fails, or its results differ from the kernel's in number or shape.
    """
    count = len(inputs)
    results = run_reference(variant, stacked(inputs) if count > 1 else inputs[0])
    shapes = [list(result.shape) for result in results]
    front = [count] if count > 1 else []
    needed = [[*front, *output.shape] for output in outputs]
    if shapes != needed:
        of_all = f" (the first dimension is the {count} devices)" if count > 1 else ""
        raise SpecError(
            f"the reference {variant.reference} of {variant.name} returns arrays of shapes "
            f"{shapes}; the kernel returns {needed}{of_all}.",
            location=variant.location,
            hint="The reference must return arrays of the same shapes as the kernel.",
        )
    return [[result[d] for result in results] for d in range(count)] if count > 1 else [results]


def difference(
    output: Binding,
    got: Any,
    expected: Any,
    tolerance: Tolerance | None,
    *,
    location: Location | None = None,
) -> tuple[Finding, tuple[int, ...]] | None:
    """Return a finding and the first wrong element if a result differs from the reference.

    If it does not differ, return None.

    Args:
        output: the result that is compared.
        got: the kernel's result, a numpy array.
        expected: the reference's result.
        tolerance: the variant's tolerance.
        location: the location of the finding, such as the kernel's.
    """
    rtol, atol = settle_tolerance(tolerance, output.dtype)
    compared = compare_arrays(got, expected, rtol=rtol, atol=atol)
    first = compared.first
    if first is None:
        return None
    element = name_of_element(output, first.index)
    count, of = compared.mismatches, compared.count
    if _is_unwritten(output.dtype, got, expected, first.index):
        unwritten = Finding(
            rule=UNINITIALIZED.name,
            message=f"{element} is {first.got}, expected {first.wanted}: it was never "
            "written, or was computed from memory that was never written; "
            f"{count:,} of {of:,} elements differ",
            location=location,
            subject=output.path,
        )
        return unwritten, first.index
    close = tolerance is None and is_close(output.dtype, got, expected)
    wrong = Finding(
        rule=WRONG_NUMBERS.name,
        message=f"{element} is {first.got}, expected {first.wanted}; {count:,} of {of:,} "
        f"elements differ from the reference by more than rtol {rtol:g} and atol {atol:g}",
        severity="note" if close else "error",
        location=location,
        hint=_NO_TOLERANCE if close else "",
        subject=output.path,
    )
    return wrong, first.index


def name_of_element(output: Binding, index: Sequence[int]) -> str:
    """Return the name of an element of a result: `out[3, 0]`."""
    name = output.path or "result"
    return f"{name}[{', '.join(map(str, index))}]" if index else name


def remarks(
    outputs: Sequence[Binding],
    results: Sequence[Sequence[Any]],
    expected: Sequence[Sequence[Any]],
    location: Location | None,
) -> list[Finding]:
    """Return a note for each result whose comparison proves little, device by device.

    Such a result, and the reference's, are NaN everywhere, or the reference returns another kind of
    numbers. A different precision is not another kind: float32 is the usual reference for bfloat16.
    """
    found = []
    for device, pairs in enumerate(zip(results, expected, strict=True)):
        for output, got, right in zip(outputs, *pairs, strict=True):
            name = output.path or "the result"
            if got.size and (got != got).all() and (right != right).all():
                where = f" on device {device}" if device else ""
                message = (
                    f"all {got.size:,} elements of {name} are NaN, and so are those of the "
                    f"reference: this compares nothing{where}"
                )
                found.append(_note(NOTHING_COMPARED, message, output, location))
            dtype = parse_dtype(right.dtype.name).name
            if device == 0 and _kind(dtype) != _kind(output.dtype):
                message = (
                    f"the reference returns {dtype} for {name}, which is {output.dtype}: the "
                    "values are compared, whatever their kind"
                )
                found.append(_note(OTHER_KIND, message, output, location))
    return found


def _note(rule: Rule, message: str, output: Binding, location: Location | None) -> Finding:
    return Finding(
        rule=rule.name, message=message, severity="note", location=location, subject=output.path
    )


def _kind(dtype: str) -> str:
    return "bool" if dtype == "bool" else {"u": "i", "b": "f"}.get(dtype[0], dtype[0])


def is_close(dtype: str, got: Any, expected: Any) -> bool:
    """Return True if another order of summation may explain a difference: half the digits agree."""
    half = epsilon(dtype) ** 0.5
    return not compare_arrays(got, expected, rtol=half, atol=half).mismatches


def _is_unwritten(dtype: str, got: Any, expected: Any, index: tuple[int, ...]) -> bool:
    if dtype == "bool" or parse_dtype(dtype).bits < 8:
        return False
    if dtype[0] in "iu":
        largest = np.iinfo(got.dtype).max
        return bool(got[index] == largest and expected[index] != largest)
    return bool(np.isnan(got[index]) and not np.isnan(expected[index]))
