"""Messages for arrays and parameters that no variant takes; they list the nearest variants."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pallasc.errors import ArgumentError
from pallasc.runtime.matching.candidates import ArrayType, Candidate, array_type, has_params
from pallasc.specs.arrays import array_text, strides_of
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.bundle.manifest import Array
from pallasc.specs.spelling import nearest, suggestion, values_text

MOST_LISTED = 5
"""Maximum number of variants that one message lists."""

_OTHER_DTYPE = 4.0
_OTHER_RANK = 16.0


def nearest_to_arrays(
    candidates: Sequence[Candidate], arrays: Sequence[ArrayType]
) -> list[Candidate]:
    """Return variants sorted by how similar their arrays are to these, the most similar first."""
    return sorted(candidates, key=lambda candidate: _distance(candidate.arrays, arrays))


def no_variant_for(
    name: str, candidates: Sequence[Candidate], arrays: Sequence[ArrayType]
) -> ArgumentError:
    """Return the error for arrays that no variant takes on any GPU."""
    by_arrays = {candidate.arrays: candidate for candidate in reversed(candidates)}
    nearest = nearest_to_arrays(list(by_arrays.values())[::-1], arrays)
    texts = [f"{candidate.id}{_differences(candidate, arrays)}" for candidate in nearest]
    return ArgumentError(
        f"{name} has no variant for {', '.join(array_text(*array) for array in arrays)}.",
        hint=_hint(texts, len(candidates)),
    )


def no_variant_with(
    name: str, candidates: Sequence[Candidate], params: Mapping[str, object]
) -> ArgumentError:
    """Return the error for parameters that no variant has, or for values that none of them has."""
    known = dict.fromkeys(key for candidate in candidates for key in candidate.params)
    for key in params:
        if key not in known:
            near = nearest(key, known)
            listed = f" {_values(near, candidates, params[key])}" if near is not None else ""
            return ArgumentError(
                f"{name} has no parameter {key!r}.",
                hint=f"{suggestion(key, known, otherwise='Its parameters')}{listed}"
                if known
                else "It has no parameters.",
            )
    listed = ", ".join(f"{key}={value!r}" for key, value in params.items())
    return ArgumentError(
        f"{name} has no variant with {listed}.", hint=_values_hint(candidates, params)
    )


def _values_hint(candidates: Sequence[Candidate], params: Mapping[str, object]) -> str:
    """Return the values that each parameter can have together with the other given parameters."""
    lines = []
    for key, value in params.items():
        others = {other: params[other] for other in params if other != key}
        fitting = [candidate for candidate in candidates if has_params(candidate, others)]
        if fitting:
            with_others = ", ".join(f"{other}={given!r}" for other, given in others.items())
            head = f"With {with_others}: " if others else ""
            lines.append(f"{head}{_values(key, fitting, value)}")
    return "\n  ".join(lines or [_values(key, candidates, params[key]) for key in params])


def _values(key: str, candidates: Sequence[Candidate], asked: object) -> str:
    values = [candidate.params[key] for candidate in candidates if key in candidate.params]
    return f"Values of {key}: {values_text(values, asked, text=repr)}."


def wrong_array(
    name: str, bindings: Sequence[Array | Binding], arrays: Sequence[ArrayType]
) -> ArgumentError:
    """Return the error for arrays that a kernel with only one set of array types does not take."""
    binding, (dtype, shape, *layout) = next(
        (binding, array)
        for binding, array in zip(bindings, arrays, strict=True)
        if array_type(*array) != array_type(binding.dtype, binding.shape, binding.layout)
    )
    taken = array_text(binding.dtype, binding.shape, binding.layout)
    if dtype != binding.dtype:
        return ArgumentError(
            f"{name}: {binding.path} has dtype {dtype}, and the kernel takes {taken}.",
            hint="Convert the array, or compile a variant for its dtype.",
        )
    if tuple(shape) != tuple(binding.shape):
        return ArgumentError(
            f"{name}: {binding.path} has shape {list(shape)}, and the kernel takes {taken}.",
            hint="Compile a variant for this shape.",
        )
    return wrong_layout(name, binding, strides_of(shape, *layout))


def wrong_layout(name: str, binding: Binding | Array, strides: Sequence[int]) -> ArgumentError:
    """Return the error for an array whose strides show another order of elements."""
    expected = strides_of(binding.shape, binding.layout)
    taken = array_text(binding.dtype, binding.shape, binding.layout)
    if binding.layout is None:
        return ArgumentError(
            f"{name}: {binding.path} is not contiguous: its elements have gaps or another order.",
            hint=f"It has strides {list(strides)}, and {taken} has {list(expected)}: pass a "
            "contiguous copy, or compile a variant for its layout.",
        )
    return ArgumentError(
        f"{name}: {binding.path} has strides {list(strides)}, and the kernel takes {taken} with "
        f"strides {list(expected)}.",
        hint="Pass an array whose elements lie in that order, or compile a variant for this one.",
    )


def read_only(name: str, binding: Binding) -> ArgumentError:
    """Return the error for a read-only array that would be written."""
    return ArgumentError(f"{name}: {binding.path} may not be written, it is read-only.")


def not_contiguous(name: str, binding: Binding) -> ArgumentError:
    """Return the error for an array with gaps."""
    return ArgumentError(
        f"{name}: {binding.path} is not contiguous: its elements have gaps or another order.",
        hint="Pass a contiguous copy.",
    )


def place(device: int | None) -> str:
    """Return the name of an array's device in messages."""
    return "the host" if device is None else f"GPU {device}"


def cut(lines: Sequence[str]) -> list[str]:
    """Return the first lines of a list, and the number of lines left out."""
    more = len(lines) - MOST_LISTED
    return [*lines[:MOST_LISTED], *([f"… and {more} more"] if more > 0 else [])]


def _hint(texts: Sequence[str], count: int) -> str:
    """Return a hint that lists the first of these texts, for a kernel with `count` variants."""
    listed = texts[:MOST_LISTED]
    if len(listed) == count == 1:
        return f"It has {listed[0]}."
    head = "It has:" if len(listed) == count else f"The nearest of its {count} variants:"
    return "\n    ".join([head, *listed])


def _differences(candidate: Candidate, arrays: Sequence[ArrayType]) -> str:
    inputs = candidate.facts.inputs
    if len(inputs) != len(arrays):
        return f", which takes {len(inputs)} arrays, not {len(arrays)}"
    differences = [
        f"{binding.path} is {array_text(*taken)}"
        for binding, taken, array in zip(inputs, candidate.arrays, arrays, strict=True)
        if taken != tuple(array)
    ]
    return f", where {', '.join(differences)}"


def _distance(own: Sequence[ArrayType], given: Sequence[ArrayType]) -> float:
    pairs = zip(own, given, strict=False)
    counts = abs(len(own) - len(given))
    return counts * 2 * _OTHER_RANK + sum(_difference(*pair) for pair in pairs)


def _difference(own: ArrayType, given: ArrayType) -> float:
    dtypes = _OTHER_DTYPE if own[0] != given[0] else 0.0
    dtypes += 1.0 if own[2:] != given[2:] else 0.0
    if len(own[1]) != len(given[1]):
        return dtypes + _OTHER_RANK
    sizes = zip(own[1], given[1], strict=True)
    return dtypes + sum((abs(math.log2(a + 1) - math.log2(b + 1)) for a, b in sizes), 0.0)
