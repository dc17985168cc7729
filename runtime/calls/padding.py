"""Launch for arrays shorter than the variant's: copies with zeros behind them, results cut.

All of it goes into the stream of the launch: zeros, the copies of the inputs, the launch, the
copies of the results. Only inputs that are shorter and results that are cut are copied.
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
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.artifacts.signature import Signature
from pallasc.specs.dtypes import parse_dtype

_DEVICE_MEMORY = 2
"""`CU_MEMORYTYPE_DEVICE`."""


@dataclass(frozen=True, slots=True)
class Strip:
    """An array in memory of ours: rows, of each of which the caller has the beginning.

    Attributes:
        rows: how many; the dimensions before the one that is longer.
        given_bytes: of a row of the caller's array.
        own_bytes: of a row of ours.
        index: what cuts ours to the caller's, for arrays of numpy.
        shape, dtype: those of ours.
    """

    rows: int
    given_bytes: int
    own_bytes: int
    index: tuple[slice, ...]
    shape: tuple[int, ...]
    dtype: str

    @property
    def size_bytes(self) -> int:
        """Bytes of our array."""
        return self.rows * self.own_bytes


class Prepared:
    """How launches for arrays of some types are padded.

    Args:
        name: the kernel.
        signature: what the variant takes and gives.
        padding: what is longer than the caller's.

    Attributes:
        signature: what the caller gives and gets.

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
        """Put a launch and its copies into a stream.

        Args:
            device: the GPU.
            stream: where.
            pointers: where the caller's inputs and results start.
            launch: launches for arrays of the variant at these addresses.

        Raises:
            ArgumentError, DeviceError: as a call of the kernel does.
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
        """Launch for arrays of numpy.

        Args:
            inputs: the caller's arrays.
            results: the caller's arrays for the results.
            empty: returns a new array of a shape and dtype.
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
    """Copy an array and put zeros behind each of its rows."""
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
    """Copy the beginning of each row, from the caller's array or into it."""
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
