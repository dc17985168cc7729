"""DLPack capsules: reading those of others, and making our own.

Structures and codes of DLPack 0.8 (`dlpack.h`). A capsule that is read is not consumed: its own
destructor gives the memory back. One that is made keeps its array until its consumer calls the
deleter, or until the capsule goes unused.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from pallasc.errors import ArgumentError
from pallasc.runtime.adapters.arrays import ArrayView, is_row_major
from pallasc.specs.dtypes import parse_dtype

CPU, CUDA, CUDA_MANAGED = 1, 2, 13

# DLDataTypeCode -> letters of the short name; floats of eight bits and fewer have a code each.
_CODES = {0: "i", 1: "u", 2: "f", 4: "bf", 5: "c"}
_BOOL = 6
_SMALL_FLOATS = {
    7: "f8e3m4", 8: "f8e4m3", 9: "f8e4m3b11fnuz", 10: "f8e4m3fn", 11: "f8e4m3fnuz", 12: "f8e5m2",
    13: "f8e5m2fnuz", 14: "f8e8m0fnu", 15: "f6e2m3fn", 16: "f6e3m2fn", 17: "f4e2m1fn",
}  # fmt: skip
_NAME = b"dltensor"


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


def read_capsule(capsule: Any, device: int | None) -> ArrayView:
    """Return what a capsule says of its array.

    Raises:
        ArgumentError: it is none of DLPack, or of a later version.
    """
    try:
        address = _functions()["pointer of object"](capsule, _NAME)
    except ValueError as error:
        raise ArgumentError(f"__dlpack__ returns {capsule!r}, no unused DLPack tensor.") from error
    tensor = _Tensor.from_address(address)
    shape = tuple(tensor.shape[n] for n in range(tensor.ndim))
    strides = tuple(tensor.strides[n] for n in range(tensor.ndim)) if tensor.strides else None
    return ArrayView(
        pointer=(tensor.data or 0) + tensor.byte_offset,
        dtype=_short_dtype(tensor.code, tensor.bits, tensor.lanes),
        shape=shape,
        is_contiguous=is_row_major(shape, strides, 1),
        device=device,
    )


def make_capsule(
    owner: object, pointer: int, shape: tuple[int, ...], dtype: str, device: int
) -> Any:
    """Return a capsule for a dense array on a GPU, which keeps `owner`.

    Raises:
        ArgumentError: DLPack has no code for the dtype.
    """
    functions = _functions()
    sizes = (ctypes.c_int64 * max(1, len(shape)))(*shape)
    managed = _Managed()
    tensor = managed.tensor
    tensor.data, tensor.device_type, tensor.device_id = pointer, CUDA, device
    tensor.ndim, tensor.shape = len(shape), ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
    tensor.code, tensor.bits, tensor.lanes = _code(dtype), parse_dtype(dtype).bits, 1
    managed.deleter = ctypes.cast(functions["delete"], ctypes.c_void_p)
    address = ctypes.addressof(managed)
    _exported[address] = (owner, sizes, managed)
    return functions["new"](address, _NAME, ctypes.cast(functions["destroy"], ctypes.c_void_p))


# What capsules that are out in the world refer to, by the address of their structure.
_exported: dict[int, Any] = {}


@cache
def _functions() -> dict[str, Any]:
    """Return Python's functions for capsules, and the two that a capsule of ours calls."""
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
        "pointer of object": ctypes.PYFUNCTYPE(pointer, ctypes.py_object, text)(
            ("PyCapsule_GetPointer", api)
        ),
        "new": ctypes.PYFUNCTYPE(ctypes.py_object, pointer, text, pointer)(("PyCapsule_New", api)),
        "delete": ctypes.CFUNCTYPE(None, pointer)(delete),
        "destroy": ctypes.PYFUNCTYPE(None, pointer)(destroy),
    }


def _short_dtype(code: int, bits: int, lanes: int) -> str:
    if code == _BOOL and bits == 8 and lanes == 1:
        return "bool"
    if lanes == 1 and code in _CODES:
        return f"{_CODES[code]}{bits}"
    if lanes == 1 and code in _SMALL_FLOATS:
        return _SMALL_FLOATS[code]
    return f"DLPack type {code} of {bits} bits in {lanes} lanes"


def _code(dtype: str) -> int:
    if dtype == "bool":
        return _BOOL
    for codes in (_SMALL_FLOATS, _CODES):
        for code, name in codes.items():
            if dtype == name or (codes is _CODES and dtype.rstrip("0123456789") == name):
                return code
    raise ArgumentError(f"DLPack has no code for {dtype}.")
