"""Streams: their handles in every framework, their contexts, and ordering between two of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from numbers import Number
from operator import index
from typing import Any

from pallasc.errors import ArgumentError
from pallasc.runtime.device import process_state
from pallasc.runtime.device.devices import (
    Device,
    Driver,
    active,
    current_device,
    open_driver,
    outside_captures,
)

DEFAULT_STREAMS = 2
"""Maximum handle of a default stream: 0 and 1 are the context's, 2 is the thread's."""

LEGACY_STREAM = 1
"""The other handle of the context's default stream: `CU_STREAM_LEGACY`."""

PRIMARY_CONTEXT = (
    "Kernels run in the primary context of a GPU, that of torch, cupy and JAX: use that."
)
"""Remedy if something belongs to another context."""

_MOST = 2**64 - 1


def stream_handle(stream: Any) -> int:
    """Return the handle of a stream: from torch, cupy, cuda.core, cuda.bindings, or a number.

    Raises:
        ArgumentError: it is anything else.
    """
    if type(stream) is int and 0 <= stream <= _MOST:
        return stream
    try:
        handle = _handle_of(stream)
    except (TypeError, ValueError, OverflowError, AttributeError):
        handle = None
    if type(handle) is not int or not 0 <= handle <= _MOST:
        raise ArgumentError(
            f"stream must be a CUDA stream, not {stream!r}.",
            hint="Pass a stream of torch or cupy, what has __cuda_stream__, or a handle as an int.",
        )
    return handle


def _handle_of(stream: Any) -> Any:
    for attribute in ("cuda_stream", "ptr"):  # first: torch's __cuda_stream__ takes a launch's time
        value = getattr(stream, attribute, None)
        if value is not None:
            return value
    is_numpy = type(stream).__module__ == "numpy"
    if is_numpy or isinstance(stream, Number | str | bytes | bytearray):
        # Old versions of numpy accept their booleans as integers.
        return None if type(stream).__name__ in ("bool", "bool_") else index(stream)
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        _version, handle = protocol() if callable(protocol) else protocol
        return handle if isinstance(handle, bool) else int(handle)
    return int(stream)


def check_stream(stream: int, device: Device) -> None:
    """Check that a stream, not a default one, belongs to the primary context of a device.

    Raises:
        ArgumentError: it belongs to another device or context.
        DriverError: the stream does not exist.
    """
    with active(device) as driver:
        what = f"stream {stream:#x} cannot be used on {device}"
        context = driver.call("cuStreamGetCtx", driver.bindings.CUstream(stream), what=what)
    if isinstance(context, tuple):  # with the green context, from CUDA 12.5 on
        context = context[0]
    if int(context) != int(device.context):
        is_here = _context_device(driver, context) == device.ordinal
        raise ArgumentError(
            f"stream {stream:#x} belongs to a different {'context' if is_here else 'device'} "
            f"from the arrays, which lie on {device}.",
            hint=PRIMARY_CONTEXT if is_here else "Pass a stream of that device, or none.",
        )


def _context_device(driver: Driver, context: Any) -> int:
    driver.bindings.cuCtxPushCurrent(context)
    try:
        return current_device()
    finally:
        driver.bindings.cuCtxPopCurrent()


def capture_number(device: Device, stream: int) -> int:
    """Return the ID of the capture that a stream is part of, 0 if it is not being captured."""
    with active(device) as driver:
        ask = driver.bindings.cuStreamGetCaptureInfo
        # The number of values after the first two differs between versions of cuda-bindings.
        code, *values = ask(driver.bindings.CUstream(stream))
    status, number = values[:2]
    return int(number) if int(code) == 0 and int(status) else 0


_NON_BLOCKING = 1


def own_stream(device: Device) -> int:
    """Return a stream of a device for work that the caller waits for; it is never destroyed.

    The default stream is no alternative: it cannot be used while other streams are being captured.
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


def wait_for(device: Device, stream: int, producer: int) -> None:
    """Make a stream wait for the work enqueued so far in another stream.

    Raises:
        DriverError: a stream does not exist.
    """
    what = f"stream {stream:#x} cannot wait for stream {producer:#x}"
    with active(device) as driver, _moment(driver, producer, what) as event:
        driver.call("cuStreamWaitEvent", driver.bindings.CUstream(stream), event, 0, what=what)


@contextmanager
def across_contexts(device: Device, stream: int) -> Iterator[None]:
    """Order a default stream of a device's context with the current context's default stream.

    Work enqueued in the device's stream within the block runs after the work enqueued so far in the
    current context's stream, and before its later work. Both streams have the same handle, since
    each context has a separate default stream.

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
    """Yield an event for the work enqueued so far in a stream of the current context."""
    event = driver.call("cuEventCreate", 2, what=what)  # CU_EVENT_DISABLE_TIMING
    try:
        driver.call("cuEventRecord", event, driver.bindings.CUstream(stream), what=what)
        yield event
    finally:
        driver.bindings.cuEventDestroy(event)
