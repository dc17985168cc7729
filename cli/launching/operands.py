"""The arrays of one launch: what goes in, where it lies on the GPU, what comes out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pallasc.errors import ArgumentError

if TYPE_CHECKING:
    from pallasc.runtime.adapters.device_arrays import DeviceArray
    from pallasc.runtime.device.devices import Device
    from pallasc.specs.artifacts.plan import Binding
    from pallasc.specs.artifacts.signature import Signature


@dataclass(frozen=True, slots=True)
class Value:
    """An array on the host.

    Attributes:
        binding: which array it is.
        data: its bytes, as they lie in device memory.
        source: the file it was read from, None where there is none.
    """

    binding: Binding
    data: bytes
    source: Path | None = None


def make_inputs(
    signature: Signature, *, seed: int, files: Mapping[str, Path], name: str, devices: int = 1
) -> list[Value]:
    """Return the inputs, in order: from files, random where none is given.

    Where there are several devices, an array has one dimension more in front, the device.

    Args:
        signature: what the kernel takes.
        seed: chooses the random numbers.
        files: path of the array: file.
        name: what the kernel is called in messages.
        devices: how many run the kernel together.

    Raises:
        SpecError: a file cannot be read.
        ArgumentError: it holds another array, or the kernel takes no array of that path.
    """
    from pallasc.compiler.references.arrays import named_with_devices, read_input

    check_names(files, [array.path for array in signature.inputs], name)
    values = []
    for array, size in zip(signature.inputs, signature.sizes_bytes, strict=False):
        file = files.get(array.path)
        whole = of_devices(array, devices)
        if file is None:
            data = _random(array, size, seed, devices)
        else:
            what = named_with_devices(name, devices)
            data = read_input(file, array.path, array.dtype, whole.shape, what)
            data = _laid_out(data, whole)
        values.append(Value(whole, data, file))
    return values


def of_devices(binding: Binding, count: int) -> Binding:
    """Return the arrays of several devices as one, with one dimension more in front: the device."""
    if count <= 1:
        return binding  # without numpy
    from pallasc.emulator import arrays

    return arrays.of_devices(binding, count)


def _random(binding: Binding, size: int, seed: int, devices: int) -> bytes:
    """Return random bytes of an array, other ones on each device."""
    from pallasc.compiler.references.arrays import names_by_device, random_bytes

    drawn = [
        random_bytes(binding.dtype, size, seed=seed, name=name)
        for name in names_by_device(binding.path, max(devices, 1))
    ]
    if len(drawn) == 1:
        return drawn[0]
    from pallasc.emulator.arrays import join_bytes

    return join_bytes(drawn, binding)


def _laid_out(data: bytes, binding: Binding) -> bytes:
    """Return the bytes of a row-major array in the layout that a kernel takes.

    Raises:
        ToolError: that needs numpy, which is not installed.
    """
    if binding.layout is None:
        return data
    from pallasc.compiler.references.arrays import bytes_in_layout

    return bytes_in_layout(data, binding.shape, binding.layout)


def check_names(files: Iterable[str], paths: Collection[str], name: str) -> None:
    """Check that a kernel takes the arrays that files are given for.

    Args:
        files: the paths of those arrays.
        paths: those of all its inputs.
        name: what the kernel is called in messages.

    Raises:
        ArgumentError: it takes no array of some path.
    """
    from pallasc.specs.spelling import suggestion

    for path in files:
        if path not in paths:
            hint = suggestion(path, paths, otherwise="Its arrays")
            raise ArgumentError(f"{name} has no input {path!r}.", hint=hint)


class Operands:
    """Inputs and results of one launch in the memory of a GPU.

    Args:
        signature: what the kernel takes and gives.
        inputs: the inputs, in order.
        device: where.

    Raises:
        OutOfMemoryError: there is no room for them.
    """

    def __init__(self, signature: Signature, inputs: list[Value], device: Device) -> None:
        from pallasc.runtime.adapters.device_arrays import DeviceArray

        self._signature = signature
        self._inputs: list[DeviceArray] = []
        for value in inputs:
            array = DeviceArray(value.binding.shape, value.binding.dtype, device.ordinal)
            array.copy_from(value.data)
            self._inputs.append(array)
        self._results = [
            DeviceArray(array.shape, array.dtype, device.ordinal) for array in signature.results
        ]

    @property
    def pointers(self) -> list[int]:
        """Addresses of the inputs, then of the results."""
        return [array.pointer for array in (*self._inputs, *self._results)]

    def read_outputs(self) -> list[Value]:
        """Return what the kernel gives, in order; waits for the default stream.

        Raises:
            DriverError: it cannot be read, or an earlier launch failed.
        """
        arrays = {"input": self._inputs, "result": self._results}
        return [
            Value(binding, arrays[source][number].to_bytes())
            for binding, (source, number) in zip(
                self._signature.outputs, self._signature.sources, strict=True
            )
        ]
