"""Launch for arrays shorter than the variant's: inputs padded with zeros, results cut.

Everything is enqueued in the stream of the launch: zeros, copies of the inputs, the launch, copies
of the results. Only inputs that are too short and results that are cut are copied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pallasc.errors import ArgumentError
from pallasc.runtime.device.devices import Device, Driver, active
from pallasc.runtime.device.memory import align, temporary
from pallasc.runtime.matching.padded import Length, Padding
from pallasc.specs.arrays import parse_dtype
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.artifacts.signature import Signature

_DEVICE_MEMORY = 2
"""`CU_MEMORYTYPE_DEVICE`."""


@dataclass(frozen=True, slots=True)
class Strip:
    """A padded copy of an array, as rows that start with the rows of the caller's array.

    Attributes:
        rows: number of rows: the product of the dimensions before the padded one.
        given_bytes: size of a row of the caller's array.
        own_bytes: size of a row of the copy.
        index: index that cuts the copy to the caller's shape, for numpy arrays.
        shape, dtype: of the copy.
    """

    rows: int
    given_bytes: int
    own_bytes: int
    index: tuple[slice, ...]
    shape: tuple[int, ...]
    dtype: str

    @property
    def size_bytes(self) -> int:
        """Size of the copy."""
        return self.rows * self.own_bytes


class Prepared:
    """How launches for arrays of some types are padded.

    Args:
        name: the kernel.
        signature: the variant's signature.
        padding: the dimensions in which the variant's arrays are longer than the caller's.

    Attributes:
        signature: the signature that the caller sees.

    Raises:
        ArgumentError: an array that is updated in place would have to be copied.
    """

    def __init__(self, name: str, signature: Signature, padding: Padding) -> None:
        for number in padding.inputs:
            if number in signature.updated:
                path = signature.inputs[number].path
                raise ArgumentError(
                    f"{name}: {path} is updated in place, and would have to be padded, which only "
                    "copies can be.",
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
        self.signature = replace(
            signature,
            outputs=tuple(_cut(own, padding.outputs) for own in signature.outputs),
            results=tuple(_cut(own, padding.outputs) for own in signature.results),
        )

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
            launch: launches for arrays of the variant at these addresses.

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

    def on_host(
        self,
        inputs: Sequence[Any],
        results: Sequence[Any],
        empty: Callable[[tuple[int, ...], str], Any],
        launch: Callable[[Sequence[Any], Sequence[Any]], None],
    ) -> None:
        """Launch for numpy arrays.

        Args:
            inputs: the caller's arrays.
            results: the caller's arrays for the results.
            empty: returns a new array with a shape and dtype.
            launch: launches for arrays of the variant.
        """
        arrays = [*inputs, *results]
        for number, strip in self._strips.items():
            arrays[number] = empty(strip.shape, strip.dtype)
            if number < self._inputs:
                arrays[number][...] = 0
                arrays[number][strip.index] = inputs[number]
        launch(arrays[: self._inputs], arrays[self._inputs :])
        for number, strip in self._strips.items():
            if number >= self._inputs:
                results[number - self._inputs][...] = arrays[number][strip.index]


def _strip(binding: Binding, own: Length) -> Strip:
    dimension, length = own
    inner_bits = math.prod(binding.shape[dimension + 1 :]) * parse_dtype(binding.dtype).bits
    rows = math.prod(binding.shape[:dimension])
    cut = (*(slice(None) for _ in range(dimension)), slice(length))
    own_bytes = binding.size_bytes // rows if rows else 0
    return Strip(rows, length * inner_bits // 8, own_bytes, cut, binding.shape, binding.dtype)


def _cut(binding: Binding, outputs: Any) -> Binding:
    own = outputs.get(binding.path)
    if own is None:
        return binding
    shape = list(binding.shape)
    shape[own.dimension] = own.length
    return replace(binding, shape=tuple(shape))


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
