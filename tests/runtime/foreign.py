"""Arrays as other packages have them, over memory of the stand-in: CuPy's, Numba's, DLPack's."""

import ctypes
import struct
import sys
from typing import Any

import made
import numpy as np
import pytest

from pallasc.runtime.adapters.device_arrays import make_capsule
from pallasc.runtime.adapters.numpy_arrays import numpy_dtype, short_dtype
from pallasc.runtime.matching import arrays
from pallasc.specs.arrays import strides_of

CUDA = 2
"""DLPack's number of the devices."""

_VERSIONED = b"dltensor_versioned"


class CudaArray:
    """An array with `__cuda_array_interface__` alone; `changes` are fields that it says instead."""

    def __init__(self, tensor: made.Tensor, **changes: Any) -> None:
        self.tensor = tensor
        self.told = {
            "shape": tensor.shape,
            "typestr": numpy_dtype(tensor.dtype).str,
            "data": (tensor.pointer, False),
            "strides": None,
            "stream": None,
            "version": 3,
            **changes,
        }

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {key: value for key, value in self.told.items() if value != "missing"}


class DlpackArray:
    """An array with `__dlpack__` alone.

    Args:
        tensor: its memory.
        version: what it exports where it is asked for a version, None for an old producer.
        flags: of such an export; 1 is read-only, 2 a copy.
        kind: of device, as the capsule says it.
    """

    def __init__(
        self,
        tensor: made.Tensor,
        *,
        version: tuple[int, int] | None = None,
        flags: int = 0,
        kind: int = CUDA,
    ) -> None:
        self.tensor, self.version, self.flags, self.kind = tensor, version, flags, kind
        self.streams: list[Any] = []
        self.kept: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.tensor.device_number

    def __dlpack__(self, **options: Any) -> Any:
        if self.version is None and "max_version" in options:
            raise TypeError("unexpected keyword argument 'max_version'")
        self.streams.append(options.get("stream"))
        tensor = self.tensor
        capsule = make_capsule(
            tensor, tensor.pointer, tensor.shape, tensor.dtype, tensor.device_number
        )
        address = _pointer(capsule, b"dltensor")
        ctypes.c_int32.from_address(address + 8).value = self.kind
        return capsule if self.version is None else self._versioned(address, capsule)

    def _versioned(self, address: int, capsule: Any) -> Any:
        """Return a capsule with a `DLManagedTensorVersioned` around the same tensor."""
        head = struct.pack("<IIQQQ", *self.version, 0, 0, self.flags)
        whole = head + ctypes.string_at(address, 48)
        held = ctypes.create_string_buffer(whole, len(whole))
        self.kept.append((held, capsule))
        kinds = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        new = _function("New", ctypes.py_object, *kinds)
        return new(ctypes.addressof(held), _VERSIONED, None)


def _pointer(capsule: Any, name: bytes) -> int:
    get = _function("GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    return int(get(capsule, name))


def _function(name: str, result: Any, *arguments: Any) -> Any:
    """Return a function of Python for capsules."""
    prototype = ctypes.PYFUNCTYPE(result, *arguments)
    return prototype((f"PyCapsule_{name}", ctypes.pythonapi))


class Cupy:
    """As much of CuPy 14 as the adapter uses, by the same names."""

    def __init__(self, framework: made.Framework) -> None:
        module = self

        class Device:
            def __init__(self, number: int) -> None:
                self.id = number

            def __enter__(self) -> None:
                module.entered.append(self.id)

            def __exit__(self, *_: Any) -> None: ...

        class Stream:
            def __init__(self, ptr: int = 0) -> None:
                self.ptr = ptr

            def __enter__(self) -> None:
                module.streams.append(self.ptr)

            def __exit__(self, *_: Any) -> None: ...

        class Pointer:
            def __init__(self, tensor: made.Tensor) -> None:
                self.ptr, self.device_id = tensor.pointer, tensor.device_number

        class Flags:
            def __init__(self, contiguous: bool) -> None:
                self.c_contiguous = contiguous

        class ndarray:
            def __init__(self, tensor: made.Tensor, steps: Any = None) -> None:
                self.tensor = tensor
                self.data = Pointer(tensor)
                self.dtype, self.shape = numpy_dtype(tensor.dtype), tensor.shape
                self.flags = Flags(tensor.contiguous and steps is None)
                self.itemsize = self.dtype.itemsize
                gaps = 1 if tensor.contiguous else 2
                dense = [gaps * step for step in strides_of(tensor.shape)]
                self.strides = tuple(step * self.itemsize for step in steps or dense)

        ndarray.__module__ = "cupy"
        self.entered: list[int] = []
        self.streams: list[int] = []
        self.current = 0
        self.ndarray = ndarray
        self.framework = framework
        self.cuda = self
        self.Device, self.ExternalStream = Device, Stream
        self.get_current_stream = lambda device: Stream(self.current)

    def array(self, text: str, **options: Any) -> Any:
        """Return an array in memory of the stand-in."""
        return self.ndarray(self.framework.tensor(text, **options))

    def empty(self, shape: Any, dtype: Any) -> Any:
        return self.ndarray(self.framework.empty(shape, dtype=short_dtype(np.dtype(dtype))))


def install_cupy(framework: made.Framework, patch: pytest.MonkeyPatch) -> Cupy:
    """Let the runtime find the module above under CuPy's name."""
    cupy = Cupy(framework)
    patch.setitem(sys.modules, "cupy", cupy)
    arrays._adapter.cache_clear()
    return cupy
