"""Arrays of numpy: copied to the GPU and back, for first steps and tests."""

from __future__ import annotations

from typing import Any

from pallasc.errors import ArgumentError
from pallasc.runtime.adapters.numpy_dtypes import (
    check_unpacked,
    element_strides,
    numpy_dtype,
    short_dtype,
)
from pallasc.runtime.matching.arrays import Adapter, ArrayView
from pallasc.specs.spelling import an


class NumpyAdapter(Adapter):
    """Arrays of numpy, on the host."""

    name = "a numpy array"
    is_copied = True

    def view(self, array: Any) -> ArrayView:
        """Return what the runtime needs to know of an array; its address is on the host.

        Raises:
            ArgumentError: it is a scalar of numpy, has a mask, or a dtype that is packed elsewhere.
        """
        import numpy

        if not isinstance(array, numpy.ndarray):
            raise ArgumentError(
                f"{an(type(array).__name__)} is not an array.", hint="Pass numpy.asarray of it."
            )
        if isinstance(array, numpy.ma.MaskedArray):
            raise ArgumentError("an array with a mask cannot be passed: pass its filled().")
        check_unpacked(array.dtype)
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


def make_adapter() -> NumpyAdapter:
    """Return the adapter."""
    return NumpyAdapter()
