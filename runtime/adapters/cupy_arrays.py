"""Arrays of CuPy."""

from __future__ import annotations

from typing import Any

from pallasc.runtime.adapters.arrays import ArrayView
from pallasc.runtime.adapters.numpy_dtypes import numpy_dtype, short_dtype


class CupyAdapter:
    """Arrays of CuPy, in device memory and in the order of its current stream."""

    name = "a cupy array"
    has_pool = True

    def __init__(self) -> None:
        import cupy

        self._cupy: Any = cupy

    def view(self, array: Any) -> ArrayView:
        """Return what the runtime needs to know of an array."""
        return ArrayView(
            pointer=int(array.data.ptr),
            dtype=short_dtype(array.dtype),
            shape=tuple(array.shape),
            is_contiguous=bool(array.flags.c_contiguous),
            device=int(array.device.id),
        )

    def stream(self, device: int) -> int:
        """Return the handle of the current stream on a device."""
        with self._cupy.cuda.Device(device):
            return int(self._cupy.cuda.get_current_stream().ptr)

    def empty(self, shape: tuple[int, ...], dtype: str, device: int, stream: int | None) -> Any:
        """Return a new array; its memory belongs to the stream."""
        cuda = self._cupy.cuda
        kind = numpy_dtype(dtype)
        with cuda.Device(device):
            if stream is None:
                return self._cupy.empty(shape, dtype=kind)
            with cuda.ExternalStream(stream):
                return self._cupy.empty(shape, dtype=kind)


def make_adapter() -> CupyAdapter:
    """Return the adapter; cupy is imported already where one of its arrays is at hand."""
    return CupyAdapter()
