"""Whatever has `__dlpack__`: read through the structures of DLPack 0.8 (`dlpack.h`).

The capsule is not consumed: its own destructor gives the memory back once the launch is in the
stream.
"""

from __future__ import annotations

import ctypes
from typing import Any

from pallasc.errors import ArgumentError
from pallasc.runtime.adapters.arrays import ArrayView, is_row_major
from pallasc.runtime.adapters.device_arrays import OwnMemory

CPU, _CUDA, _CUDA_MANAGED = 1, 2, 13

# DLDataTypeCode -> letters of the short name; eight-bit floats have a code each.
_CODES = {0: "i", 1: "u", 2: "f", 4: "bf", 5: "c"}
_BOOL = 6
_SMALL_FLOATS = {
    7: "f8e3m4", 8: "f8e4m3", 9: "f8e4m3b11fnuz", 10: "f8e4m3fn", 11: "f8e4m3fnuz", 12: "f8e5m2",
    13: "f8e5m2fnuz", 14: "f8e8m0fnu", 15: "f6e2m3fn", 16: "f6e3m2fn", 17: "f4e2m1fn",
}  # fmt: skip


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


class DlpackAdapter(OwnMemory):
    """Arrays with `__dlpack__`; results come in device arrays of our own."""

    name = "an array with __dlpack__"

    def view(self, array: Any) -> ArrayView:
        """Return what DLPack says of an array.

        The producer is asked for no synchronisation: the launch goes into the stream that the
        caller names, or the default one, where the producer's work is as a rule.

        Raises:
            ArgumentError: it lies where no kernel reaches.
        """
        kind, ordinal = array.__dlpack_device__()
        if int(kind) not in (CPU, _CUDA, _CUDA_MANAGED):
            raise ArgumentError(f"an array lies on a DLPack device of kind {int(kind)}, no GPU.")
        on_gpu = int(kind) != CPU
        capsule = array.__dlpack__(stream=-1) if on_gpu else array.__dlpack__()
        return read_capsule(capsule, int(ordinal) if on_gpu else None)


def read_capsule(capsule: Any, device: int | None) -> ArrayView:
    """Return what a capsule says of its array.

    Raises:
        ArgumentError: it is none of DLPack, or of a later version.
    """
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    try:
        address = get(capsule, b"dltensor")
    except ValueError as error:
        raise ArgumentError(f"__dlpack__ returns {capsule!r}, no unused DLPack tensor.") from error
    tensor = _Tensor.from_address(address)
    shape = tuple(tensor.shape[n] for n in range(tensor.ndim))
    strides = tuple(tensor.strides[n] for n in range(tensor.ndim)) if tensor.strides else None
    return ArrayView(
        pointer=(tensor.data or 0) + tensor.byte_offset,
        dtype=_dtype(tensor.code, tensor.bits, tensor.lanes),
        shape=shape,
        is_contiguous=is_row_major(shape, strides, 1),
        device=device,
    )


def _dtype(code: int, bits: int, lanes: int) -> str:
    if code == _BOOL and bits == 8 and lanes == 1:
        return "bool"
    if lanes == 1 and code in _CODES:
        return f"{_CODES[code]}{bits}"
    if lanes == 1 and code in _SMALL_FLOATS:
        return _SMALL_FLOATS[code]
    return f"DLPack type {code} of {bits} bits in {lanes} lanes"


def make_adapter() -> DlpackAdapter:
    """Return the adapter."""
    return DlpackAdapter()
