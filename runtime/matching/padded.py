"""Find the smallest variant that holds a call's arrays when they are padded.

`pad` of a tuned kernel names the dimensions in which the variant's array may be longer than the
call's. Inputs are padded with zeros, and outputs are cut; the spec promises that this does not
change the remaining values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pallasc.runtime.matching.candidates import ArrayType, Candidate
from pallasc.specs.arrays import parse_dtype


class Length(NamedTuple):
    """The length of an array's dimension in a call."""

    dimension: int
    length: int


class Padding(NamedTuple):
    """Padding of a call's arrays for a variant.

    Attributes:
        types: the variant's inputs.
        inputs: for each padded input, by number, the length in the call.
        outputs: for each output that is cut, by path, the length in the call.
    """

    types: tuple[ArrayType, ...]
    inputs: Mapping[int, Length]
    outputs: Mapping[str, Length]


def smallest(candidates: Iterable[Candidate], types: tuple[ArrayType, ...]) -> Padding | None:
    """Return the padding for the smallest variant that holds the arrays, None if none does."""
    found: dict[tuple[ArrayType, ...], Padding] = {}
    for candidate in candidates:
        if candidate.arrays not in found:
            padding = _fit(candidate, types)
            if padding is not None:
                found[candidate.arrays] = padding
    return min(found.values(), key=_size, default=None)


def _size(padding: Padding) -> tuple[int, str]:
    return sum(math.prod(array[1]) for array in padding.types), str(padding.types)


def _fit(candidate: Candidate, types: tuple[ArrayType, ...]) -> Padding | None:
    """Return the padding of the arrays for a variant, None if it does not hold them.

    A dimension may be a multiple of the parameter or a part of it, the same in all arrays.
    """
    tuning = candidate.tuning
    if tuning is None or not tuning.pad or len(types) != len(candidate.arrays):
        return None
    places = {path: (name, at) for name, own in tuning.pad.items() for path, at in own.items()}
    real: dict[str, int] = {}
    inputs: dict[int, Length] = {}
    pairs = zip(candidate.facts.inputs, candidate.arrays, types, strict=True)
    for number, (array, own, given) in enumerate(pairs):
        name, dimension = places.get(array.path, ("", -1))
        if own == given and not name:
            continue
        length = _length(own, given, dimension)
        if length is None:
            return None
        value, whole = candidate.params[name], own[1][dimension]
        if type(value) is not int or length * value % whole:
            return None
        if real.setdefault(name, length * value // whole) != length * value // whole:
            return None
        if own != given:
            inputs[number] = Length(dimension, length)
    outputs: dict[str, Length] = {}
    for output in candidate.facts.outputs:
        name, dimension = places.get(output.path, ("", -1))
        value = candidate.params.get(name)
        if name not in real or type(value) is not int or real[name] == value:
            continue
        cut, rest = divmod(real[name] * output.shape[dimension], value)
        if rest or not _is_in_bytes(output.dtype, output.shape, dimension):
            return None
        outputs[output.path] = Length(dimension, cut)
    return Padding(candidate.arrays, inputs, outputs)


def _length(own: ArrayType, given: ArrayType, dimension: int) -> int | None:
    """Return a dimension's length in a call, None if the arrays differ in anything else."""
    if len(own) != 2 or len(given) != 2 or own[0] != given[0] or len(own[1]) != len(given[1]):
        return None
    pairs = enumerate(zip(own[1], given[1], strict=True))
    if any(ours != theirs for at, (ours, theirs) in pairs if at != dimension):
        return None
    length: int = given[1][dimension]
    fits = 0 < length <= own[1][dimension] and _is_in_bytes(own[0], own[1], dimension)
    return length if fits else None


def _is_in_bytes(dtype: str, shape: tuple[int, ...], dimension: int) -> bool:
    """Return True if an array can be cut at a byte boundary: packed types may not be."""
    return math.prod(shape[dimension + 1 :]) * parse_dtype(dtype).bits % 8 == 0
