"""Streams: handles of whatever frameworks call a stream, and order between two of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from numbers import Number
from operator import index
from typing import Any

from pallasc.errors import ArgumentError
from pallasc.runtime.device import process_state
from pallasc.runtime.device.devices import Device, active, outside_captures
from pallasc.runtime.device.driver import Driver, open_driver

DEFAULT_STREAMS = 2
"""Handles up to this are default streams: 0 and 1 that of the context, 2 that of the thread."""

_MOST = 2**64 - 1


def stream_handle(stream: Any) -> int:
    """Return the handle of a stream: of torch, cupy, cuda.core, cuda.bindings, or a number.

    Raises:
        ArgumentError: it is something else.
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


def capture_number(device: Device, stream: int) -> int:
    """Return the number of the capture that a stream takes part in, 0 where it does in none."""
    with active(device) as driver:
        ask = driver.bindings.cuStreamGetCaptureInfo
        code, *told = ask(driver.bindings.CUstream(stream))
    status, number = told[:2]
    return int(number) if int(code) == 0 and int(status) else 0


_NON_BLOCKING = 1


def own_stream(device: Device) -> int:
    """Return a stream of a device for work that the caller waits for; it is never destroyed.

    The default stream would not do: it cannot be used while streams of others are captured.
    """
    state = process_state.now
    stream = state.streams.get(device.ordinal)
    if stream is None:
        with state.lock, active(device) as driver, outside_captures(driver):
            stream = state.streams.get(device.ordinal)
            if stream is None:
                what = f"a stream of {device} cannot be made"
                stream = int(driver.call("cuStreamCreate", _NON_BLOCKING, what=what))
                state.streams[device.ordinal] = stream
    return stream


def is_same_stream(stream: int, other: int) -> bool:
    """Tell whether two handles mean one stream: 0 and 1 are both the default stream."""
    return (stream or 1) == (other or 1)


def wait_for(device: Device, stream: int, producer: int) -> None:
    """Let a stream wait for what is in another stream by now.

    Raises:
        DriverError: a stream does not exist.
    """
    what = f"stream {stream:#x} cannot wait for stream {producer:#x}"
    with active(device) as driver, _moment(driver, producer, what) as event:
        driver.call("cuStreamWaitEvent", driver.bindings.CUstream(stream), event, 0, what=what)


@contextmanager
def across_contexts(device: Device, stream: int) -> Iterator[None]:
    """Order a default stream of a device's context with that of the context that is current.

    What is put into the former meanwhile runs after what is in the latter by now, and before what
    gets there later. Both have the same handle: each context has a default stream of its own.

    Raises:
        DriverError: the driver cannot.
    """
    driver = open_driver()
    handle = driver.bindings.CUstream(stream)
    what = f"stream {stream:#x} of two contexts of {device} cannot be ordered"
    with _moment(driver, stream, what) as event, active(device):
        driver.call("cuStreamWaitEvent", handle, event, 0, what=what)
    try:
        yield
    finally:
        with ExitStack() as stack:
            with active(device):
                event = stack.enter_context(_moment(driver, stream, what))
            driver.call("cuStreamWaitEvent", handle, event, 0, what=what)


@contextmanager
def _moment(driver: Driver, stream: int, what: str) -> Iterator[Any]:
    """Give an event for what is in a stream of the current context by now."""
    event = driver.call("cuEventCreate", 2, what=what)  # CU_EVENT_DISABLE_TIMING
    try:
        driver.call("cuEventRecord", event, driver.bindings.CUstream(stream), what=what)
        yield event
    finally:
        driver.bindings.cuEventDestroy(event)
