"""DLPack's C exchange API for tensors of the tests' framework, written with ctypes.

The extension looks at arrays through this API alone, so that with it the tests of the runtime go
through the extension where it was built, as arrays of torch do.
"""

import ctypes
from collections.abc import Callable
from typing import Any

from pallasc.runtime.matching.arrays import dlpack_code
from pallasc.specs.arrays import parse_dtype, strides_of


class DLTensor(ctypes.Structure):
    """`DLTensor` of dlpack.h."""

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


_View = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))
_Stream = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)
)


class ExchangeAPI(ctypes.Structure):
    """`DLPackExchangeAPI`, of version 1.3."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("from_object", ctypes.c_void_p),
        ("to_object", ctypes.c_void_p),
        ("view", _View),
        ("current_stream", _Stream),
    )


def capsule(api: ExchangeAPI) -> Any:
    """Return the capsule that types of arrays have as `__dlpack_c_exchange_api__`."""
    new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    name = b"dlpack_exchange_api"
    _kept.append((api, name))
    return new(("PyCapsule_New", ctypes.pythonapi))(ctypes.addressof(api), name, None)


_kept: list[Any] = []


def exchange(stream: Callable[[int], int], *, major: int = 1) -> Any:
    """Return the capsule for `made.Tensor`; `stream` returns the current stream of a device."""

    def view(tensor: Any, out: Any) -> int:
        try:
            look(tensor, out.contents)
        except Exception:  # it cannot leave a function that C calls
            return -1
        return 0

    def look(tensor: Any, seen: Any) -> None:
        code = dlpack_code(tensor.dtype)
        strides = tensor.strides or strides_of(tensor.shape, None)
        if not tensor.contiguous:
            strides = tuple(2 * stride for stride in strides)
        sizes = ctypes.c_int64 * len(tensor.shape)
        tensor.viewed = sizes(*tensor.shape), sizes(*strides)
        seen.data, seen.byte_offset = tensor.pointer, 0
        seen.device_type = 1 if tensor.device_number < 0 else 2
        seen.device_id = max(0, tensor.device_number)
        seen.ndim, seen.code, seen.lanes = len(tensor.shape), code, 1
        seen.bits = parse_dtype(tensor.dtype).bits
        seen.shape = ctypes.cast(tensor.viewed[0], ctypes.POINTER(ctypes.c_int64))
        seen.strides = ctypes.cast(tensor.viewed[1], ctypes.POINTER(ctypes.c_int64))

    def current_stream(_: int, device: int, out: Any) -> int:
        out[0] = stream(device)
        return 0

    return capsule(
        ExchangeAPI(major, 3, None, None, None, None, _View(view), _Stream(current_stream))
    )
