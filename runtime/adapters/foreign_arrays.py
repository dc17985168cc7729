"""Arrays of any other library, through `__cuda_array_interface__` or `__dlpack__`.

The interface, version 3: https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

from pallasc.errors import ArgumentError, DriverError
from pallasc.runtime.adapters.device_arrays import (
    CPU,
    CUDA,
    CUDA_MANAGED,
    CudaArrayInterface,
    OwnMemory,
    read_capsule,
)
from pallasc.runtime.device.devices import device_of, open_driver
from pallasc.runtime.matching.arrays import FOREIGN_ERRORS, ArrayView, is_row_major
from pallasc.specs.spelling import an

# ---- DLPack

_NO_SYNCHRONISATION, _DEFAULT_STREAM = -1, 1

# From this version on, a capsule states whether its array is writable.
_VERSION = (1, 0)


class DlpackAdapter(OwnMemory):
    """Arrays with `__dlpack__`; results are pallasc device arrays."""

    name = "an array with __dlpack__"

    def view(self, array: Any) -> ArrayView:
        """Return a view of an array through DLPack, without asking the producer to synchronize.

        Raises:
            ArgumentError: it cannot be exported, or is in memory that kernels cannot reach.
        """
        return self._view(array, None)

    def view_in_order(self, array: Any) -> ArrayView:
        """Return a view of an array through DLPack; the default stream waits for its producer.

        Raises:
            ArgumentError: it cannot be exported, or is in memory that kernels cannot reach.
        """
        return self._view(array, _DEFAULT_STREAM)

    def _view(self, array: Any, stream: int | None) -> ArrayView:
        try:
            kind, ordinal = array.__dlpack_device__()
            where = int(kind), int(ordinal)
        except FOREIGN_ERRORS as error:
            raise ArgumentError(f"__dlpack_device__() failed: {_text(error)}.") from error
        if where[0] not in (CPU, CUDA, CUDA_MANAGED):
            raise ArgumentError(f"it is on a DLPack device of kind {where[0]}, which is not a GPU.")
        if where[0] == CPU:
            return read_capsule(self._export(array), None)
        capsule = self._export(array, stream=stream or _NO_SYNCHRONISATION)
        return read_capsule(capsule, where[1], stream)

    def _export(self, array: Any, **options: Any) -> Any:
        """Return a capsule, a versioned one if the producer supports it."""
        try:
            try:
                return array.__dlpack__(max_version=_VERSION, **options)
            except TypeError:
                return array.__dlpack__(**options)
        except FOREIGN_ERRORS as error:
            raise ArgumentError(
                f"__dlpack__() failed: {_text(error)}.",
                hint="DLPack takes neither sparse arrays nor arrays that require gradients.",
            ) from error


def _text(error: Exception) -> str:
    """Return an error's class and the first line of its message."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0].rstrip('.')}"


# ---- __cuda_array_interface__

_KINDS = {"b": "bool", "i": "i", "u": "u", "f": "f", "c": "c"}
_FIELDS = ("data", "typestr", "shape")


class CudaArrayAdapter(OwnMemory):
    """Arrays with `__cuda_array_interface__`; results are pallasc device arrays."""

    name = "an array with __cuda_array_interface__"

    def __init__(self) -> None:
        self._by_dlpack = DlpackAdapter()

    def view(self, array: Any) -> ArrayView:
        """Return a view of an array, read through the interface.

        Raises:
            ArgumentError: the interface has a field value that the runtime does not know.
        """
        interface = _interface(array)
        return self._by_dlpack.view(array) if interface is None else _view(interface)

    def view_in_order(self, array: Any) -> ArrayView:
        """Like `view`, but if an array has only DLPack, the default stream waits for its producer.

        Raises:
            ArgumentError: as for `view`.
        """
        interface = _interface(array)
        return self._by_dlpack.view_in_order(array) if interface is None else _view(interface)


def _interface(array: Any) -> CudaArrayInterface | None:
    """Return the interface's fields, None if the array has only DLPack.

    Raises:
        ArgumentError: the array has neither, a field is missing, or the array has a mask.
    """
    try:
        interface: CudaArrayInterface = array.__cuda_array_interface__
    except FOREIGN_ERRORS as error:
        if hasattr(array, "__dlpack__"):
            return None
        raise ArgumentError(f"__cuda_array_interface__ cannot be read: {error}.") from error
    if type(interface) is not dict and not isinstance(interface, Mapping):
        raise ArgumentError(
            f"__cuda_array_interface__ is {an(type(interface).__name__)}, not a mapping."
        )
    if interface.get("mask") is not None:
        raise ArgumentError("an array with a mask cannot be passed: pass a dense copy.")
    return interface


def _view(interface: CudaArrayInterface) -> ArrayView:
    """Return the array that the interface's fields describe.

    Raises:
        ArgumentError: a field is missing, or has a value that the interface does not allow.
    """
    try:
        address, is_read_only = interface["data"]
        pointer = int(address or 0)
        strides = interface.get("strides")
        dtype, shape, own = _layout(
            interface["typestr"],
            tuple(interface["shape"]),
            None if strides is None else tuple(strides),
        )
        stream = interface.get("stream")
        producer = None if stream is None else int(stream)
        if not 0 <= pointer < 1 << 64 or (producer or 1) < 1:
            raise ValueError("an address or stream is out of range")
    except FOREIGN_ERRORS as error:
        raise _wrong_field(interface) from error
    if pointer == 0 and 0 not in shape:
        raise ArgumentError("__cuda_array_interface__ gives address 0 for an array with elements.")
    if producer == 0:
        raise ArgumentError(
            "__cuda_array_interface__ gives stream 0, which the interface does not allow."
        )
    return ArrayView(
        pointer, dtype, shape, own is None, _device(pointer), not is_read_only, producer, own
    )


def _wrong_field(interface: Mapping[str, object]) -> ArgumentError:
    missing = next((field for field in _FIELDS if interface.get(field) is None), None)
    if missing is not None:
        return ArgumentError(f"__cuda_array_interface__ has no {missing!r}.")
    listed = ", ".join(
        f"{field}={interface.get(field)!r}" for field in (*_FIELDS, "strides", "stream")
    )
    return ArgumentError(f"__cuda_array_interface__ is invalid: {listed}.")


@lru_cache(maxsize=1024)
def _layout(
    typestr: str, shape: tuple[int, ...], strides: tuple[int, ...] | None
) -> tuple[str, tuple[int, ...], tuple[int, ...] | None]:
    """Return dtype and shape, and the strides in elements if the array is not row-major.

    Raises:
        ArgumentError: the interface has no such dtype.
        TypeError, ValueError: a size is not a number, or is negative.
    """
    dtype, unit = read_typestr(typestr)
    sizes = tuple(size.__index__() for size in shape)
    if any(size < 0 for size in sizes):
        raise ValueError("a size is negative")
    if strides is None or is_row_major(sizes, strides, unit):
        return dtype, sizes, None
    return dtype, sizes, tuple(stride // unit for stride in strides)


@cache
def _attribute_of_pointer() -> tuple[Any, Any]:
    """Return the driver's function for pointer attributes, and the attribute of the device."""
    bindings = open_driver().bindings
    attribute = bindings.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return bindings.cuPointerGetAttribute, attribute


def _device(pointer: int) -> int:
    ask, attribute = _attribute_of_pointer()
    code, ordinal = ask(attribute, pointer)
    if not code and pointer:
        return int(ordinal)
    try:
        return device_of(pointer)
    except DriverError as error:
        raise ArgumentError(f"no GPU has memory at its address, {pointer:#x}.") from error


def read_typestr(typestr: str) -> tuple[str, int]:
    """Return an element's short dtype name and size in bytes: `f32`, 4 for `<f4`.

    Raises:
        ArgumentError: the interface has no such dtype.
    """
    kind, size = _KINDS.get(typestr[1:2]), typestr[2:]
    is_known = kind is not None and size.isdecimal() and size != "0"
    if not is_known or typestr[0] == ">" or (kind == "bool" and size != "1"):
        raise ArgumentError(
            f"__cuda_array_interface__ has no dtype {typestr!r}.",
            hint="Pass bf16 and fp8 through DLPack or as arrays of torch or cupy.",
        )
    return sys.intern("bool" if kind == "bool" else f"{kind}{8 * int(size)}"), int(size)
