"""Whatever has `__cuda_array_interface__`: Numba and others.

The interface, version 3: https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pallasc.errors import ArgumentError, DriverError
from pallasc.runtime.adapters.arrays import ArrayView, is_row_major
from pallasc.runtime.adapters.device_arrays import OwnMemory
from pallasc.runtime.adapters.dlpack import DlpackAdapter
from pallasc.runtime.devices import device_of

_KINDS = {"b": "bool", "i": "i", "u": "u", "f": "f", "c": "c"}


class CudaArrayAdapter(OwnMemory):
    """Arrays with `__cuda_array_interface__`; results come in device arrays of our own."""

    name = "an array with __cuda_array_interface__"

    def __init__(self) -> None:
        self._by_dlpack = DlpackAdapter()

    def view(self, array: Any) -> ArrayView:
        """Return what the interface says of an array.

        Raises:
            ArgumentError: the interface has a field that the runtime does not know.
        """
        told = _told(array)
        if told is None:
            return self._by_dlpack.view(array)
        pointer, is_read_only = told["data"]
        dtype, unit = read_typestr(told["typestr"])
        shape = tuple(told["shape"])
        return ArrayView(
            pointer=int(pointer or 0),
            dtype=dtype,
            shape=shape,
            is_contiguous=is_row_major(shape, told.get("strides"), unit),
            device=_device(int(pointer or 0)),
            is_writable=not is_read_only,
            stream=told.get("stream"),
        )

    def view_in_order(self, array: Any) -> ArrayView:
        """Return the same; where only DLPack has it, the default stream waits for its producer.

        Raises:
            ArgumentError: as `view` does.
        """
        if _told(array) is None:
            return self._by_dlpack.view_in_order(array)
        return self.view(array)


def _told(array: Any) -> Mapping[str, Any] | None:
    """Return what the interface says, None where the array has DLPack only.

    Raises:
        ArgumentError: there is neither, a field is missing, or the array has a mask.
    """
    try:
        told: Mapping[str, Any] = array.__cuda_array_interface__
    except AttributeError as error:
        if hasattr(array, "__dlpack__"):
            return None
        raise ArgumentError(f"__cuda_array_interface__ cannot be read: {error}.") from error
    for field in ("data", "typestr", "shape"):
        if told.get(field) is None:
            raise ArgumentError(f"__cuda_array_interface__ has no {field!r}.")
    if told.get("mask") is not None:
        raise ArgumentError("an array with a mask cannot be passed: pass a dense copy.")
    return told


def _device(pointer: int) -> int:
    try:
        return device_of(pointer)
    except DriverError as error:
        raise ArgumentError(f"no GPU has memory at {pointer:#x}, where it says it lies.") from error


def read_typestr(typestr: str) -> tuple[str, int]:
    """Return short name and bytes of an element: `f32`, 4 for `<f4`.

    Raises:
        ArgumentError: it is none that the interface can say.
    """
    kind, size = _KINDS.get(typestr[1:2]), typestr[2:]
    if kind is None or not size.isdecimal() or typestr[0] == ">":
        raise ArgumentError(
            f"__cuda_array_interface__ says the dtype {typestr!r}, which stands for none.",
            hint="Pass bf16 and fp8 through DLPack or as arrays of torch or cupy.",
        )
    return (kind if kind == "bool" else f"{kind}{8 * int(size)}"), int(size)


def make_adapter() -> CudaArrayAdapter:
    """Return the adapter."""
    return CudaArrayAdapter()
