"""Streams: handles of whatever frameworks call a stream, and order between two of them."""

from __future__ import annotations

from numbers import Number
from operator import index
from typing import Any

from pallasc.errors import ArgumentError
from pallasc.runtime.devices import Device, active

DEFAULT_STREAMS = 2
"""Handles up to this are no streams of their own: 0 and 1 the default one, 2 the thread's."""

_MOST = 2**64 - 1


def stream_handle(stream: Any) -> int:
    """Return the handle of a stream: of torch, cupy, cuda.core, cuda.bindings, or a number.

    Raises:
        ArgumentError: it is none of them.
    """
    if type(stream) is int and 0 <= stream <= _MOST:
        return stream
    try:
        handle = _told(stream)
    except (TypeError, ValueError, OverflowError, AttributeError):
        handle = None
    if type(handle) is not int or not 0 <= handle <= _MOST:
        raise ArgumentError(
            f"stream must be a CUDA stream, not {stream!r}.",
            hint="Pass a stream of torch or cupy, what has __cuda_stream__, or a handle as an int.",
        )
    return handle


def _told(stream: Any) -> Any:
    """Return what a stream says its handle is."""
    is_numpy = type(stream).__module__ == "numpy"
    if is_numpy or isinstance(stream, Number | str | bytes | bytearray):
        return None if isinstance(stream, bool) else index(stream)
    for attribute in ("cuda_stream", "ptr"):
        value = getattr(stream, attribute, None)
        if value is not None:
            return value
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        _version, handle = protocol() if callable(protocol) else protocol
        return handle if isinstance(handle, bool) else int(handle)
    return int(stream)


def is_same_stream(stream: int, other: int) -> bool:
    """Tell whether two handles mean one stream: 0 and 1 both are the default one."""
    return (stream or 1) == (other or 1)


def wait_for(device: Device, stream: int, producer: int) -> None:
    """Let a stream wait for what is in another one by now.

    Raises:
        DriverError: one of them does not exist.
    """
    what = f"stream {stream:#x} cannot wait for stream {producer:#x}"
    with active(device) as driver:
        bindings = driver.bindings
        event = driver.call("cuEventCreate", 2, what=what)  # CU_EVENT_DISABLE_TIMING
        try:
            driver.call("cuEventRecord", event, bindings.CUstream(producer), what=what)
            driver.call("cuStreamWaitEvent", bindings.CUstream(stream), event, 0, what=what)
        finally:
            bindings.cuEventDestroy(event)
