"""CuPy arrays."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from pallasc.runtime.adapters.numpy_arrays import element_strides, numpy_dtype, short_dtype
from pallasc.runtime.device.devices import current_device
from pallasc.runtime.matching.arrays import Access, Adapter, ArrayView, no_array


class CupyAdapter(Adapter):
    """CuPy arrays, in device memory and ordered by CuPy's current stream."""

    name = "a cupy array"
    has_pool = True

    def __init__(self) -> None:
        import cupy

        self._cupy: Any = cupy

    def access(self, kind: type) -> Access:
        """Return how the C extension handles arrays of a type; results are of CuPy's own."""
        kinds = tuple({kind: None, self._cupy.ndarray: None})
        return replace(super().access(kind), kinds=kinds)

    def view(self, array: Any) -> ArrayView:
        """Return a view of an array for the runtime.

        Raises:
            ArgumentError: it is another CuPy object.
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
