"""Arrays of numpy, which are copied to the GPU and back, and of CuPy; numpy dtypes."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from pallasc.errors import ArgumentError, SpecError
from pallasc.runtime.device.devices import current_device
from pallasc.runtime.matching.arrays import Access, Adapter, ArrayView, no_array
from pallasc.specs.arrays import DTYPES, parse_dtype
from pallasc.specs.spelling import an


class NumpyAdapter(Adapter):
    """Numpy arrays, on the host."""

    name = "a numpy array"
    is_copied = True

    def view(self, array: Any) -> ArrayView:
        """Return a view of an array for the runtime; its address is on the host.

        Raises:
            ArgumentError: `array` is a numpy scalar, has a mask, or has a dtype that is packed on
                the device.
        """
        import numpy

        if not isinstance(array, numpy.ndarray):
            raise ArgumentError(
                f"{an(type(array).__name__)} is not an array.", hint="Pass numpy.asarray of it."
            )
        if isinstance(array, numpy.ma.MaskedArray):
            raise ArgumentError("an array with a mask cannot be passed: pass its filled().")
        _check_unpacked(short_dtype(array.dtype))
        return ArrayView(
            pointer=int(array.ctypes.data),
            dtype=short_dtype(array.dtype),
            shape=tuple(array.shape),
            is_contiguous=bool(array.flags.c_contiguous),
            device=None,
            is_writable=bool(array.flags.writeable),
            strides=element_strides(array),
        )

    def empty(self, shape: tuple[int, ...], dtype: str, device: int, stream: int | None) -> Any:
        """Return a new array on the host."""
        import numpy

        return numpy.empty(shape, dtype=numpy_dtype(dtype))


class CupyAdapter(Adapter):
    """CuPy arrays, in device memory and ordered by CuPy's current stream."""

    name = "a cupy array"
    has_pool = True

    def __init__(self) -> None:
        import cupy

        self._cupy: Any = cupy

    def access(self, kind: type) -> Access:
        """Return how the C extension handles arrays of a type; results are CuPy arrays."""
        kinds = tuple({kind: None, self._cupy.ndarray: None})
        return replace(super().access(kind), kinds=kinds)

    def view(self, array: Any) -> ArrayView:
        """Return a view of an array for the runtime.

        Raises:
            ArgumentError: `array` is another CuPy object.
        """
        if not isinstance(array, self._cupy.ndarray):
            raise no_array(array)
        return ArrayView(
            int(array.data.ptr),
            short_dtype(array.dtype),
            tuple(array.shape),
            bool(array.flags.c_contiguous),
            int(array.data.device_id),
            strides=element_strides(array),
        )

    def stream(self, device: int) -> int:
        """Return the handle of the current stream on a device."""
        return int(self._cupy.cuda.get_current_stream(device).ptr)

    def empty(self, shape: tuple[int, ...], dtype: str, device: int, stream: int | None) -> Any:
        """Return a new array whose memory belongs to the stream."""
        cuda, kind = self._cupy.cuda, numpy_dtype(dtype)
        with ExitStack() as stack:
            if current_device() != device:
                stack.enter_context(cuda.Device(device))
            if stream is not None:
                stack.enter_context(cuda.ExternalStream(stream))
            return self._cupy.empty(shape, dtype=kind)


@lru_cache(maxsize=256)
def short_dtype(dtype: Any) -> str:
    """Return the short name of a numpy dtype, or numpy's own name if there is none."""
    if not getattr(dtype, "isnative", True):
        return str(dtype)
    name = str(getattr(dtype, "name", dtype))
    try:
        return sys.intern("bool" if name == "bool" else parse_dtype(name).name)
    except SpecError:
        return name


def element_strides(array: Any) -> tuple[int, ...] | None:
    """Return the strides of a numpy or cupy array in elements, None if it is row-major."""
    if array.flags.c_contiguous:
        return None
    return tuple(stride // array.itemsize for stride in array.strides)


def _check_unpacked(name: str) -> None:
    """Check that a dtype is not packed on the device, because numpy stores it in whole bytes.

    Raises:
        ArgumentError: the dtype is packed.
    """
    if name in DTYPES and DTYPES[name].bits < 8:
        raise ArgumentError(
            f"numpy stores one {name} per byte, and the device packs several.",
            hint="Use a framework with DLPack for it.",
        )


def numpy_dtype(dtype: str) -> Any:
    """Return the numpy dtype for a short name.

    Raises:
        ArgumentError: numpy has none, and `ml_dtypes` has none or is not installed.
    """
    import numpy

    name = "bool" if dtype == "bool" else parse_dtype(dtype).jax_name
    _check_unpacked(dtype)
    try:
        return numpy.dtype(name)
    except TypeError:
        pass
    try:
        import ml_dtypes

        return numpy.dtype(getattr(ml_dtypes, name))
    except (ImportError, AttributeError) as error:
        raise ArgumentError(
            f"numpy has no dtype {name} of its own.", hint="Run pip install ml_dtypes."
        ) from error
