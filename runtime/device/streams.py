"""Streams: their handles in every framework, their contexts, and order between two of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from numbers import Number
from operator import index
from typing import Any

from pallasc.errors import ArgumentError
from pallasc.runtime.device import process_state
from pallasc.runtime.device.devices import (
    Device,
    Driver,
    active,
    current_context,
    current_device,
    open_driver,
    outside_captures,
)

DEFAULT_STREAMS = 2
"""Handles up to this are default streams: 0 and 1 that of the context, 2 that of the thread."""

LEGACY_STREAM = 1
"""The other handle of the context's default stream: `CU_STREAM_LEGACY`."""

PRIMARY_CONTEXT = (
    "Kernels run in the primary context of a GPU, that of torch, cupy and JAX: use that."
)
"""What to do where something is of another context."""

_MOST = 2**64 - 1


def stream_handle(stream: Any) -> int:
    """Return the handle of a stream: of torch, cupy, cuda.core, cuda.bindings, or a number.

    Raises:
        ArgumentError: it is something else.
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
    """Return what a stream says its handle is."""
    for attribute in ("cuda_stream", "ptr"):  # first: asking torch's takes a launch's time else
        value = getattr(stream, attribute, None)
        if value is not None:
            return value
    is_numpy = type(stream).__module__ == "numpy"
    if is_numpy or isinstance(stream, Number | str | bytes | bytearray):
        # Old versions of numpy take their booleans for integers.
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
        DriverError: there is no such stream.
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
    """Return the device of a context."""
    driver.bindings.cuCtxPushCurrent(context)
    try:
        return current_device()
    finally:
        driver.bindings.cuCtxPopCurrent()


def capture_number(device: Device, stream: int) -> int:
    """Return the number of the capture that a stream takes part in, 0 where it does in none."""
    with active(device) as driver:
        ask = driver.bindings.cuStreamGetCaptureInfo
        # How many values follow the first two differs between versions of cuda-bindings.
        code, *values = ask(driver.bindings.CUstream(stream))
    status, number = values[:2]
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


Call = Callable[..., tuple[Any, ...]]
"""Puts work into a stream, and returns the driver's answer."""


def in_context(device: Device, call: Call) -> Call:
    """Return a call that runs in a device's context, and restores the thread's own after it."""
    driver = open_driver()
    push = partial(driver.bindings.cuCtxPushCurrent, device.context)
    pop, success = driver.bindings.cuCtxPopCurrent, driver.success

    def run(*arguments: int) -> tuple[Any, ...]:
        pushed: tuple[Any, ...] = push()
        if pushed[0] is not success:
            return pushed
        try:
            return call(*arguments)
        finally:
            pop()

    return run


def beside_contexts(device: Device, stream: int, call: Call) -> Call:
    """Return a call like `in_context`, for threads that may have a context of their own.

    Each context has a default stream of its own: where the program has made a context of this GPU
    current, its default stream and that of the device's context wait for each other.
    """
    inside = in_context(device, call)
    if stream > DEFAULT_STREAMS:
        return inside
    own = int(device.context)

    def run(*arguments: int) -> tuple[Any, ...]:
        context = current_context()
        if context in (0, own):
            return call(*arguments) if context else inside(*arguments)
        with across_contexts(device, stream):
            return inside(*arguments)

    return run


@contextmanager
def _moment(driver: Driver, stream: int, what: str) -> Iterator[Any]:
    """Give an event for what is in a stream of the current context by now."""
    event = driver.call("cuEventCreate", 2, what=what)  # CU_EVENT_DISABLE_TIMING
    try:
        driver.call("cuEventRecord", event, driver.bindings.CUstream(stream), what=what)
        yield event
    finally:
        driver.bindings.cuEventDestroy(event)
