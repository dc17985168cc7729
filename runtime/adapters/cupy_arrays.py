"""CuPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pallasc.errors import ArgumentError
from pallasc.runtime.adapters.numpy_arrays import element_strides, numpy_dtype, short_dtype
from pallasc.runtime.device.devices import current_device
from pallasc.runtime.matching.arrays import Adapter, ArrayView, Dialect, NewArray, no_array
from pallasc.specs.arrays import DTYPES, strides_of


class CupyAdapter(Adapter):
    """CuPy arrays, in device memory and ordered by CuPy's current stream."""

    name = "a cupy array"
    has_pool = True

    def __init__(self) -> None:
        import cupy

        self._cupy: Any = cupy
        self._dtypes: dict[str, Any] = {}
        for name in DTYPES:
            with suppress(ArgumentError):
                self._dtypes[name] = numpy_dtype(name)

    def dialect(self) -> Dialect:
        """Return the expressions that generated code uses for these arrays."""
        ndarray = self._cupy.ndarray
        contiguous = "_c_contiguous" if hasattr(ndarray, "_c_contiguous") else "flags.c_contiguous"
        return Dialect(
            kind=ndarray,
            other_kinds=frozenset(),
            dtypes=self._dtypes,
            dtype="{x}.dtype",
            shape="{x}.shape",
            layout=f"{{x}}.{contiguous} and {{x}}.shape == {{shape}}",
            strided="{x}.shape == {shape} and _strides({x}) == {strides}",
            device="{x}.data.device_id",
            pointer="{x}.data.ptr",
            stream="_stream({d})",
            current_device="_current_device()",
            new="_new({shape}, {dtype}, {x}.data.device_id)",
            new_in=self._new_in,
            values={
                "_stream": self.stream,
                "_current_device": current_device,
                "_strides": element_strides,
                "_new": self._empty,
            },
        )

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
        kind = numpy_dtype(dtype)
        if stream is None:
            return self._empty(shape, kind, device)
        return self._new_in(stream, device, [(shape, strides_of(shape), kind)])[0]

    def _new_in(self, stream: int, device: int, arrays: Sequence[NewArray]) -> list[Any]:
        """Return new arrays whose memory belongs to a stream."""
        cuda = self._cupy.cuda
        with cuda.Device(device), cuda.ExternalStream(stream):
            return [self._cupy.empty(shape, dtype=dtype) for shape, _, dtype in arrays]

    def _empty(self, shape: tuple[int, ...], dtype: Any, device: int) -> Any:
        """Return a new array that belongs to the current stream."""
        if current_device() == device:
            return self._cupy.empty(shape, dtype=dtype)
        with self._cupy.cuda.Device(device):
            return self._cupy.empty(shape, dtype=dtype)


def make_adapter() -> CupyAdapter:
    """Return the adapter. cupy is already imported, since the caller has a cupy array."""
    return CupyAdapter()
