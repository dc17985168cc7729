"""The smallest framework there can be, for launches where torch is not installed."""

from __future__ import annotations

from functools import cache
from typing import Any

from pallasc.runtime.adapters.device_arrays import DeviceArray
from pallasc.runtime.device.devices import current_device, get_device, open_driver
from pallasc.runtime.matching import arrays
from pallasc.runtime.matching.arrays import Adapter, ArrayView, Dialect


class Array:
    """An array with the attributes that arrays of frameworks have."""

    def __init__(self, shape: tuple[int, ...], dtype: str, device: int) -> None:
        self.memory = DeviceArray(shape, dtype, device)
        self.pointer, self.shape = self.memory.pointer, self.memory.shape
        self.dtype, self.device, self.contiguous = self.memory.dtype, device, True


class Framework(Adapter):
    """What the runtime asks of a framework."""

    name = "an array"

    def empty(
        self, shape: Any, dtype: str = "f32", device: int = 0, stream: int | None = None
    ) -> Array:
        """Return a new array."""
        return Array(tuple(shape), dtype, device)

    def view(self, array: Array) -> ArrayView:
        """Return what the runtime needs to know of an array."""
        return ArrayView(array.pointer, array.dtype, array.shape, True, array.device)

    def dialect(self) -> Dialect:
        """Return how generated code asks an array."""
        return Dialect(
            kind=Array,
            other_kinds=frozenset(),
            dtypes={name: name for name in ("f16", "f32")},
            dtype="{x}.dtype",
            shape="{x}.shape",
            layout="{x}.shape == {shape} and {x}.contiguous",
            device="{x}.device",
            pointer="{x}.pointer",
            stream="_stream({d})",
            current_device="_current_device()",
            new="_new({shape}, {dtype}, {x}.device)",
            new_in=None,
            values={
                "_stream": self.stream,
                "_current_device": current_device,
                "_new": self.empty,
            },
        )


@cache
def install() -> Framework:
    """Make the framework known to the runtime, and its device current, as frameworks do."""
    driver = open_driver()
    context = get_device(current_device()).context
    driver.call("cuCtxSetCurrent", context, what="the GPU cannot be made current")
    made = Framework()
    arrays._by_type[Array] = made
    return made
