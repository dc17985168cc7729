"""Streams, the order of work in them, and memory in stream order.

Uses of a block of memory are recorded as events, not as streams: a stream may be destroyed before
another stream waits for its work, and a new stream may get the same handle. Streams are identified
by the driver's stream IDs, which are never reused. Each stream has one event, recorded again after
each use, so a wait for a use may also include later work of the stream.

Constants are never freed: a captured graph may still read them after the kernel is gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from numbers import Number
from operator import index
from typing import Any

from pallasc.errors import ArgumentError, DeviceError, PallascError
from pallasc.runtime.device.devices import (
    Device,
    Driver,
    active,
    is_capturing,
    is_legacy_blocked,
    outside_captures,
    state,
)
from pallasc.specs.artifacts.plan import LaunchPlan

DEFAULT_STREAMS = 2
"""Maximum handle of a default stream: 0 and 1 are the context's, 2 is the thread's."""

LEGACY_STREAM = 1
"""The other handle of the context's default stream: `CU_STREAM_LEGACY`."""

PRIMARY_CONTEXT = (
    "Kernels run in a GPU's primary context, like torch, cupy and JAX: use that context."
)
"""Remedy if something belongs to another context."""

_MOST = 2**64 - 1


def stream_handle(stream: Any) -> int:
    """Return the handle of a stream: from torch, cupy, cuda.core, cuda.bindings, or a number.

    Raises:
        ArgumentError: `stream` is anything else.
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
            hint="Pass a torch or cupy stream, an object with __cuda_stream__, or an int handle.",
        )
    return handle


def _handle_of(stream: Any) -> Any:
    for attribute in ("cuda_stream", "ptr"):  # torch's __cuda_stream__ is slow
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
    """Check that a stream that is not a default stream belongs to a device's primary context.

    Raises:
        ArgumentError: the stream belongs to another device or context.
        DriverError: the stream does not exist.
    """
    with active(device) as driver:
        what = f"stream {stream:#x} cannot be used on {device}"
        context = driver.call("cuStreamGetCtx", driver.bindings.CUstream(stream), what=what)
    if isinstance(context, tuple):  # from CUDA 12.5 on: (context, green context)
        context = context[0]
    if int(context) != int(device.context):
        raise ArgumentError(
            f"stream {stream:#x} belongs to a different device or context than the arrays, which "
            f"are on {device}.",
            hint="Pass a stream of that device's primary context, or none.",
        )


_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_DISABLE_TIMING = 2  # CU_EVENT_DISABLE_TIMING


def own_stream(device: Device) -> int:
    """Return a stream of a device for work that the caller waits for; it is never destroyed.

    The default stream is no alternative: it cannot be used while other streams are being captured.
    """
    stream = state.streams.get(device.ordinal)
    if stream is None:
        with state.lock, active(device) as driver, outside_captures(driver):
            stream = state.streams.get(device.ordinal)
            if stream is None:
                what = f"a stream of {device} cannot be created"
                stream = int(driver.call("cuStreamCreate", _NON_BLOCKING, what=what))
                state.streams[device.ordinal] = stream
    return stream


def wait_for(device: Device, stream: int, producer: int) -> None:
    """Make a stream wait for the work enqueued so far in another stream.

    Raises:
        DriverError: a stream does not exist.
    """
    what = f"stream {stream:#x} cannot wait for stream {producer:#x}"
    with active(device) as driver:
        event = driver.call("cuEventCreate", _DISABLE_TIMING, what=what)
        try:
            driver.call("cuEventRecord", event, driver.bindings.CUstream(producer), what=what)
            driver.call("cuStreamWaitEvent", driver.bindings.CUstream(stream), event, 0, what=what)
        finally:
            driver.bindings.cuEventDestroy(event)


# ---- uses of memory: its last write and the reads since then, in any stream

_DEFAULT_NUMBER = -1
_MOST_READS = 16
_SUCCESS = 0


class Tail:
    """The end of a stream's latest work with memory whose uses are tracked.

    Attributes:
        device: the stream's device.
        number: the stream's ID, see `number_of`.
        event: an event, recorded after the work, and reused when nothing refers to the tail.
    """

    __slots__ = ("__weakref__", "_spare", "device", "event", "number")

    def __init__(self, device: Device, number: int, event: Any, spare: list[Any]) -> None:
        self.device, self.number, self.event = device, number, event
        self._spare = spare

    def __del__(self) -> None:
        # Recording an event again does not change what a stream already waits for (cuEventRecord).
        self._spare.append(self.event)


def number_of(device: Device, stream: int) -> int:
    """Return a stream ID that is unique on its device, and never reused.

    Raises:
        DriverError: the stream does not exist.
    """
    if stream < DEFAULT_STREAMS:
        return _DEFAULT_NUMBER
    with active(device) as driver:
        what = f"stream {stream:#x} cannot be used"
        return int(driver.call("cuStreamGetId", stream, what=what))


def default_tail(device: Device) -> Tail:
    """Return the tail of a device's default stream, which lives as long as the process."""
    if device.ordinal not in state.default_tails:
        with state.lock:
            state.default_tails.setdefault(device.ordinal, _tail(device, _DEFAULT_NUMBER))
    tail: Tail = state.default_tails[device.ordinal]
    return tail


def _tail(device: Device, number: int) -> Tail:
    key = device.ordinal, number
    tail: Tail | None = state.tails.get(key)
    if tail is not None:
        return tail
    spare = state.spare_events.setdefault(device.ordinal, [])
    try:
        event = spare.pop()
    except IndexError:
        with active(device) as driver:
            what = "an event cannot be created"
            event = driver.call("cuEventCreate", _DISABLE_TIMING, what=what)
    made: Tail = state.tails.setdefault(key, Tail(device, number, event, spare))
    return made


def record(device: Device, stream: int) -> Tail | None:
    """Record the work enqueued so far in a stream, and return the tail; None during a capture.

    Captured work becomes part of a graph instead of running in the stream.

    Raises:
        DriverError: the stream does not exist.
    """
    with active(device) as driver:
        what = "stream work cannot be recorded"
        if stream >= DEFAULT_STREAMS and is_capturing(device, stream):
            return None
        tail = _tail(device, number_of(device, stream))
        driver.call("cuEventRecord", tail.event, stream, what=what)
        return tail


def wait_for_tails(device: Device, stream: int, tails: Collection[Tail]) -> None:
    """Make a stream wait for the recorded work of other streams.

    Raises:
        ArgumentError: the stream is being captured, and there is such work.
        DriverError: the stream does not exist.
    """
    if not tails:
        return
    if stream >= DEFAULT_STREAMS and is_capturing(device, stream):
        raise ArgumentError(
            f"an array is still used in another stream, but stream {stream:#x} is being captured "
            "and cannot wait for that use.",
            hint="Synchronize before the capture, or use one stream for all arrays.",
        )
    with active(device) as driver:
        for tail in tails:
            handle, what = driver.bindings.CUstream(stream), f"stream {stream:#x} cannot wait"
            driver.call("cuStreamWaitEvent", handle, tail.event, 0, what=what)


def _unfinished(tails: Iterable[Tail]) -> list[Tail]:
    """Return the tails whose work may not have finished; all are of one device."""
    found = list(tails)
    if not found:
        return found
    with active(found[0].device) as driver, outside_captures(driver):
        ask = driver.bindings.cuEventQuery
        return [tail for tail in found if int(ask(tail.event)[0]) != _SUCCESS]


class Uses:
    """The work enqueued by pallasc that uses one block of memory, at first none.

    Args:
        device: the device with the memory.

    Attributes:
        default_order: how the default stream may use the memory without waiting: 2 to write and
            read it, 1 to read it, 0 not at all. `runtime/native/python.c` reads it.
    """

    __slots__ = ("_reads", "_write", "default_order")

    def __init__(self, device: Device) -> None:
        self.settle(device)

    def settle(self, device: Device) -> None:
        """Record that all work has finished."""
        # The C extension launches in the default stream without calling `note`.
        self._write = default_tail(device)
        self._reads: dict[int, Tail] = {}
        self.default_order = 2

    def before(self, number: int | None, *, writes: bool) -> list[Tail]:
        """Return the unfinished uses in other streams for which work in a stream has to wait.

        Args:
            number: the stream's ID; None for no particular stream.
            writes: the work writes, so it waits for reads as well as for the last write.
        """
        tails = [self._write, *(list(self._reads.values()) if writes else ())]
        return _unfinished(tail for tail in tails if tail.number != number)

    def note(self, tail: Tail, *, writes: bool) -> None:
        """Add work that has waited for the uses that `before` returned."""
        is_default = tail.number == _DEFAULT_NUMBER
        if writes:
            self._write, self._reads = tail, {}
            self.default_order = 2 if is_default else 0
        elif self._write is not tail:
            if len(self._reads) >= _MOST_READS:
                reads = dict(self._reads)
                # The C extension adds reads in the default stream without calling `note`.
                kept = {reads.get(_DEFAULT_NUMBER), *_unfinished(reads.values())}
                self._reads = {number: own for number, own in reads.items() if own in kept}
            self._reads[tail.number] = tail
            self.default_order = 1 if is_default else min(1, self.default_order)


def work_stream(device: Device, uses: Uses, *, writes: bool) -> int:
    """Return pallasc's stream after making it wait for the uses and for the default stream."""
    stream = own_stream(device)
    wait_for_tails(device, stream, uses.before(None, writes=writes))
    # Other libraries may use memory in the default stream. The default stream cannot be used while
    # a stream that it waits for is being captured, but then its work is older than the capture.
    with active(device) as driver, outside_captures(driver):
        is_blocked = is_legacy_blocked(driver)
    tail = None if is_blocked else record(device, 0)
    if tail is not None:
        wait_for_tails(device, stream, [tail])
    return stream


@contextmanager
def in_order(
    name: str,
    device: Device,
    stream: int,
    others: Sequence[int],
    uses: Sequence[tuple[Uses, bool]],
    *,
    is_given: bool,
) -> Iterator[None]:
    """Order a launch, enqueued within the block, with work in other streams.

    Args:
        name: the kernel.
        device: the GPU it runs on.
        stream: the launch's stream.
        others: the arrays' own streams; they and the launch's stream wait for each other.
        uses: for each array that tracks its uses: the uses, and whether the launch writes it.
        is_given: True if the caller specified the stream.

    Raises:
        ArgumentError: the stream is being captured and cannot wait.
        DriverError: the driver failed.
    """
    number = number_of(device, stream) if uses else None
    tails = {tail for own, writes in uses for tail in own.before(number, writes=writes)}
    if (others or tails) and is_capturing(device, stream):
        if is_given:
            others, uses, tails = (), (), set()  # the caller must order other work
        elif others:
            raise ArgumentError(
                f"{name}: an array belongs to stream {others[0]:#x}, but the launch is in stream "
                f"{stream:#x}, which is being captured and cannot wait for other streams.",
                hint="Use one stream for all arrays, or pass stream=.",
            )
    for other in others:
        wait_for(device, stream, other)
    wait_for_tails(device, stream, tails)
    try:
        yield
    except PallascError:
        with suppress(PallascError):  # some of several steps may be enqueued
            _follow(device, stream, others, uses)
        raise
    _follow(device, stream, others, uses)


def _follow(
    device: Device, stream: int, others: Sequence[int], uses: Sequence[tuple[Uses, bool]]
) -> None:
    """Make the other streams wait for a launch, and record it in the uses of its arrays."""
    for other in others:
        wait_for(device, other, stream)
    tail = record(device, stream) if uses else None
    if tail is not None:  # None: the launch was captured into a graph
        for own, writes in uses:
            own.note(tail, writes=writes)


# ---- pallasc's own memory: constants once per device, temporaries in stream order

ALIGNMENT = 256
"""Alignment that Mosaic assumes for every buffer."""


def align(size_bytes: int) -> int:
    """Return a size rounded up to the alignment of buffers."""
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


def lay_out(plan: LaunchPlan) -> tuple[list[tuple[int, int]], int]:
    """Return the workspace offset of each temporary of a plan, and the total size."""
    offsets, at = [], 0
    for number, buffer in enumerate(plan.buffers):
        if buffer.role == "temporary":
            offsets.append((number, at))
            at += align(buffer.size)
    return offsets, at


def upload(device: Device, digest: str, data: bytes, what: str) -> int:
    """Return the address of a device's only copy of these bytes, copying them on first use.

    Raises:
        OutOfMemoryError: there is not enough device memory.
        DriverError: the copy fails.
    """
    key = (device.ordinal, digest)
    with state.lock:
        address = state.constants.get(key)
        if address is None:
            stream = own_stream(device)
            with active(device) as driver, outside_captures(driver):
                address = state.constants[key] = _copy(driver, data, stream, what)
    return address


def _copy(driver: Driver, data: bytes, stream: int, what: str) -> int:
    address = int(driver.call("cuMemAlloc", max(1, len(data)), what=what))
    try:
        if data:
            driver.call("cuMemcpyHtoDAsync", address, data, len(data), stream, what=what)
            driver.call("cuStreamSynchronize", stream, what=what)
    except PallascError:
        driver.bindings.cuMemFree(address)
        raise
    return address


@contextmanager
def temporary(device: Device, size_bytes: int, stream: int, what: str) -> Iterator[int]:
    """Provide device memory for the work enqueued in a stream within the `with` block.

    Raises:
        OutOfMemoryError: there is not enough device memory.
    """
    if not device.has_pools and is_capturing(device, stream):
        raise DeviceError(
            f"{what}; {device} has no memory pools, and stream {stream:#x} is being captured.",
            hint="Pass torch or cupy arrays: these libraries allocate the temporaries.",
        )
    with active(device) as driver:
        if device.has_pools:
            address = int(driver.call("cuMemAllocAsync", max(1, size_bytes), stream, what=what))
        else:
            with outside_captures(driver):
                address = int(driver.call("cuMemAlloc", max(1, size_bytes), what=what))
    try:
        yield address
    finally:
        with active(device):
            if device.has_pools:
                driver.bindings.cuMemFreeAsync(address, stream)
            else:  # some virtual GPUs cannot free memory in stream order
                with outside_captures(driver):
                    driver.bindings.cuStreamSynchronize(stream)
                    driver.bindings.cuMemFree(address)
