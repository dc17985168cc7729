"""Launches for arrays that are shorter than a variant's: inputs are padded, results are cut.

`pad` of a tuned kernel names the dimensions in which the variant's array may be longer than the
caller's array. The spec promises that padding with zeros does not change the remaining values.

Everything is enqueued in the stream of the launch: zeros, copies of the inputs, the launch, copies
of the results. Only inputs that are too short and results that are cut are copied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct, structs

from pallasc.errors import ArgumentError
from pallasc.runtime.device.devices import Device, Driver, active
from pallasc.runtime.device.streams import align, temporary
from pallasc.runtime.matching.candidates import ArrayType, Candidate
from pallasc.specs.arrays import parse_dtype
from pallasc.specs.artifacts.plan import Binding, LaunchPlan

# ---- the smallest variant that holds the arrays


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

    A dimension's length may be a multiple or fraction of its parameter. The lengths in the call
    must all correspond to the same value of the parameter.
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
    """Return True if a cut along a dimension is at byte boundaries, also for packed types."""
    return math.prod(shape[dimension + 1 :]) * parse_dtype(dtype).bits % 8 == 0


# ---- launches

_DEVICE_MEMORY = 2
"""`CU_MEMORYTYPE_DEVICE`."""


class Strip(Struct, frozen=True):
    """A padded copy of an array, as rows that start with the rows of the caller's array.

    Attributes:
        rows: number of rows: the product of the dimensions before the padded one.
        given_bytes: size of a row of the caller's array.
        own_bytes: size of a row of the copy.
    """

    rows: int
    given_bytes: int
    own_bytes: int

    @property
    def size_bytes(self) -> int:
        """Size of the copy."""
        return self.rows * self.own_bytes


class Prepared:
    """The padding of launches for arrays of some types.

    Args:
        name: the kernel.
        signature: the variant's signature.
        padding: the dimensions in which the variant's arrays are longer than the caller's.

    Attributes:
        signature: the signature that the caller sees.

    Raises:
        ArgumentError: an array that is updated in place would have to be copied.
    """

    def __init__(self, name: str, signature: LaunchPlan, padding: Padding) -> None:
        for number in padding.inputs:
            if number in signature.updated:
                path = signature.inputs[number].path
                raise ArgumentError(
                    f"{name}: {path} would have to be padded, but only copies are padded, and this "
                    "array is updated in place.",
                    hint=f"Pass {path} in a shape that a variant takes.",
                )
        self._name = name
        lengths = dict(padding.inputs)
        for number, result in enumerate(signature.results, len(signature.inputs)):
            if result.path in padding.outputs:
                lengths[number] = padding.outputs[result.path]
        passed = signature.passed
        self._strips = {number: _strip(passed[number], own) for number, own in lengths.items()}
        self._inputs = len(signature.inputs)
        self._size_bytes = sum(align(strip.size_bytes) for strip in self._strips.values())
        outputs = tuple(_cut(own, padding.outputs) for own in signature.outputs)
        self.signature = structs.replace(signature, outputs=outputs)

    def enqueue(
        self,
        device: Device,
        stream: int,
        pointers: Sequence[int],
        launch: Callable[[list[int]], None],
    ) -> None:
        """Enqueue a launch and its copies in a stream.

        Args:
            device: the GPU.
            stream: the stream.
            pointers: addresses of the caller's inputs and results.
            launch: launches the variant, for arrays at the given addresses.

        Raises:
            ArgumentError, DeviceError: as for a call of the kernel.
        """
        what = f"{self._name} needs {self._size_bytes} bytes to pad its arrays"
        with temporary(device, self._size_bytes, stream, what) as base:
            places = list(pointers)
            for number, strip in self._strips.items():
                places[number], base = base, base + align(strip.size_bytes)
            with active(device) as driver:
                for number, strip in self._strips.items():
                    if number < self._inputs:
                        _lengthen(driver, strip, places[number], pointers[number], stream)
            launch(places)
            with active(device) as driver:
                for number, strip in self._strips.items():
                    if number >= self._inputs:
                        _copy_rows(driver, strip, pointers[number], places[number], stream, False)


def _strip(binding: Binding, own: Length) -> Strip:
    dimension, length = own
    inner_bits = math.prod(binding.shape[dimension + 1 :]) * parse_dtype(binding.dtype).bits
    rows = math.prod(binding.shape[:dimension])
    return Strip(rows, length * inner_bits // 8, binding.size_bytes // rows if rows else 0)


def _cut(binding: Binding, outputs: Any) -> Binding:
    own = outputs.get(binding.path)
    if own is None:
        return binding
    shape = list(binding.shape)
    shape[own.dimension] = own.length
    return structs.replace(binding, shape=tuple(shape))


def _lengthen(driver: Driver, strip: Strip, target: int, source: int, stream: int) -> None:
    """Copy an array and append zeros to each of its rows."""
    if strip.rows == 1:
        first, count = target + strip.given_bytes, strip.own_bytes - strip.given_bytes
    else:
        first, count = target, strip.size_bytes
    if count:
        what = "an array cannot be padded"
        driver.call("cuMemsetD8Async", first, 0, count, stream, what=what)
    _copy_rows(driver, strip, target, source, stream, True)


def _copy_rows(
    driver: Driver, strip: Strip, target: int, source: int, stream: int, is_padding: bool
) -> None:
    """Copy the start of each row, from the caller's array or into it."""
    what = f"{'an array cannot be padded' if is_padding else 'a result cannot be cut'}"
    if not strip.rows * strip.given_bytes:
        return
    if strip.rows == 1:
        driver.call("cuMemcpyDtoDAsync", target, source, strip.given_bytes, stream, what=what)
        return
    copy = driver.bindings.CUDA_MEMCPY2D()
    device_memory = driver.bindings.CUmemorytype(_DEVICE_MEMORY)
    copy.srcMemoryType = copy.dstMemoryType = device_memory
    copy.srcDevice, copy.dstDevice = source, target
    pitches = strip.given_bytes, strip.own_bytes
    copy.srcPitch, copy.dstPitch = pitches if is_padding else pitches[::-1]
    copy.WidthInBytes, copy.Height = strip.given_bytes, strip.rows
    driver.call("cuMemcpy2DAsync", copy, stream, what=what)
