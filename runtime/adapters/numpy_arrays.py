"""Arrays of numpy: copied to the GPU and back, for first steps and tests."""

from __future__ import annotations

from typing import Any

from pallasc.runtime.adapters.arrays import ArrayView
from pallasc.runtime.adapters.numpy_dtypes import numpy_dtype, short_dtype


class NumpyAdapter:
    """Arrays of numpy, on the host."""

    name = "a numpy array"

    def view(self, array: Any) -> ArrayView:
        """Return what the runtime needs to know of an array; its address is on the host."""
        return ArrayView(
            pointer=int(array.ctypes.data),
            dtype=short_dtype(array.dtype),
            shape=tuple(array.shape),
            is_contiguous=bool(array.flags.c_contiguous),
            device=None,
            is_writable=bool(array.flags.writeable),
        )

    def stream(self, device: int) -> int:
        """Return the default stream."""
        return 0

    def empty(self, shape: tuple[int, ...], dtype: str, device: int, stream: int | None) -> Any:
        """Return a new array on the host."""
        import numpy

        return numpy.empty(shape, dtype=numpy_dtype(dtype))


def make_adapter() -> NumpyAdapter:
    """Return the adapter."""
    return NumpyAdapter()
