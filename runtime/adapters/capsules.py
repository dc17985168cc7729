"""Read DLPack capsules from other libraries, and create our own.

Structures and codes follow DLPack 1.0 (`dlpack.h`). Reading a capsule does not consume it: its
own destructor frees the memory. A capsule created here keeps its array alive until the consumer
calls the deleter, or until the capsule is destroyed unused.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

from pallasc.errors import ArgumentError
from pallasc.runtime.matching.arrays import ArrayView, is_row_major
from pallasc.runtime.matching.dlpack_types import dlpack_code, short_dtype
from pallasc.specs.arrays import parse_dtype

CPU, CUDA, CUDA_MANAGED = 1, 2, 13

_NAME, _VERSIONED = b"dltensor", b"dltensor_versioned"


class _Tensor(ctypes.Structure):
    """`DLTensor`, the first field of `DLManagedTensor`."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """`DLManagedTensor`."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


# `DLTensor` as one struct: data, device, layout (ndim, dtype), shape, strides, offset. Reading it
# through the fields of a ctypes structure takes five times as long.
_TENSOR = struct.Struct("<Qii8sQQQ")
# Fields before the tensor in `DLManagedTensorVersioned`: version, context, deleter, flags.
_HEAD = struct.Struct("<IIQQQ")
_READ_ONLY, _IS_COPY = 1, 2


def read_capsule(capsule: Any, device: int | None, stream: int | None = None) -> ArrayView:
    """Return the array that a capsule describes.

    Args:
        capsule: the result of `__dlpack__`, with or without a version.
        device: ordinal of the GPU that the array must be on, None for the host.
        stream: the stream that the producer's work was ordered in, None if no ordering was
            requested.

    Raises:
        ArgumentError: the capsule is not a DLPack capsule, has a later version, holds a copy, or
            its array is on another device.
    """
    functions = _functions()
    try:
        name = functions["name of object"](capsule)
        address = functions["pointer of object"](capsule, name)
    except ValueError:
        name = None
    is_writable = True
    if name == _VERSIONED:
        is_writable = _read_head(address)
        address += _HEAD.size
    elif name != _NAME:
        raise ArgumentError(f"__dlpack__ returns {capsule!r}, not an unused DLPack tensor.")
    data, kind, ordinal, layout, shape, strides, offset = _TENSOR.unpack_from(
        _bytes_at(_TENSOR.size)(address)
    )
    if (None if kind == CPU else ordinal) != device:
        place = "the host" if device is None else f"GPU {device}"
        raise ArgumentError(
            f"its DLPack tensor lies on device {ordinal} of kind {kind}, and __dlpack_device__ "
            f"says {place}."
        )
    size = 8 * int.from_bytes(layout[:4], "little")
    read = _bytes_at(size)
    dtype, sizes, own = _layout(layout, read(shape).raw, read(strides).raw if strides else None)
    return ArrayView(data + offset, dtype, sizes, own is None, device, is_writable, stream, own)


@cache
def _bytes_at(size: int) -> Callable[[int], Any]:
    """Return a function that reads `size` bytes at an address, in a third of `string_at`'s time."""
    return (ctypes.c_char * size).from_address


def _read_head(address: int) -> bool:
    """Return True if the array is writable."""
    major, minor, _, _, flags = _HEAD.unpack_from(_bytes_at(_HEAD.size)(address))
    if major > 1:
        raise ArgumentError(f"its DLPack tensor has version {major}.{minor}; pallasc reads 1.x.")
    if flags & _IS_COPY:
        raise ArgumentError("__dlpack__ gives a copy, which is gone before the kernel runs.")
    return not flags & _READ_ONLY


@lru_cache(maxsize=1024)
def _layout(
    layout: bytes, shape: bytes, strides: bytes | None
) -> tuple[str, tuple[int, ...], tuple[int, ...] | None]:
    """Return dtype and shape encoded by the bytes, and the strides if it is not row-major."""
    ndim, code, bits, lanes = struct.unpack("<iBBH", layout)
    sizes = struct.unpack(f"<{ndim}q", shape)
    steps = None if strides is None else struct.unpack(f"<{ndim}q", strides)
    own = None if is_row_major(sizes, steps, 1) else steps
    return short_dtype(code, bits, lanes), sizes, own


def make_capsule(
    owner: object, pointer: int, shape: tuple[int, ...], dtype: str, device: int
) -> Any:
    """Return a capsule for a dense array on a GPU; the capsule keeps `owner` alive.

    Raises:
        ArgumentError: DLPack has no code for the dtype.
    """
    functions = _functions()
    sizes = (ctypes.c_int64 * max(1, len(shape)))(*shape)
    managed = _Managed()
    tensor = managed.tensor
    tensor.data, tensor.device_type, tensor.device_id = pointer, CUDA, device
    tensor.ndim, tensor.shape = len(shape), ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
    code = dlpack_code(dtype)
    if code is None:
        raise ArgumentError(f"DLPack has no code for {dtype}.")
    tensor.code, tensor.bits, tensor.lanes = code, parse_dtype(dtype).bits, 1
    managed.deleter = ctypes.cast(functions["delete"], ctypes.c_void_p)
    address = ctypes.addressof(managed)
    _exported[address] = (owner, sizes, managed)
    return functions["new"](address, _NAME, ctypes.cast(functions["destroy"], ctypes.c_void_p))


# Objects that exported capsules refer to, by the address of their structure.
_exported: dict[int, Any] = {}


@cache
def _functions() -> dict[str, Any]:
    """Return Python's capsule functions, and the two that our own capsules call."""
    api, pointer, text = ctypes.pythonapi, ctypes.c_void_p, ctypes.c_char_p
    get = ctypes.PYFUNCTYPE(pointer, pointer, text)(("PyCapsule_GetPointer", api))
    is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, pointer, text)(("PyCapsule_IsValid", api))

    def delete(address: int) -> None:
        _exported.pop(address, None)

    def destroy(capsule: int) -> None:
        # A consumer renames the capsule and calls the deleter itself.
        if is_valid(capsule, _NAME):
            _exported.pop(get(capsule, _NAME), None)

    return {
        "name of object": ctypes.PYFUNCTYPE(text, ctypes.py_object)(("PyCapsule_GetName", api)),
        "pointer of object": ctypes.PYFUNCTYPE(pointer, ctypes.py_object, text)(
            ("PyCapsule_GetPointer", api)
        ),
        "new": ctypes.PYFUNCTYPE(ctypes.py_object, pointer, text, pointer)(("PyCapsule_New", api)),
        "delete": ctypes.CFUNCTYPE(None, pointer)(delete),
        "destroy": ctypes.PYFUNCTYPE(None, pointer)(destroy),
    }
