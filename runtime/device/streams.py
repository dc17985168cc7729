"""Streams, the order of work in them, and memory in stream order.

Uses of a block of memory are recorded as events, not as streams: a stream may be destroyed before
another stream waits for its work, and a new stream may get the same handle. Streams are identified
by the driver's stream IDs, which are never reused.

Constants are never freed: a captured graph may still read them after the kernel is gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from numbers import Number
from operator import index
from typing import Any

from pallasc.errors import ArgumentError, DeviceError, PallascError
from pallasc.runtime.device.devices import (
    Device,
    Driver,
    active,
    current_device,
    is_capturing,
    is_legacy_blocked,
    open_driver,
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
    """Check that a stream, not a default one, belongs to the primary context of a device.

    Raises:
        ArgumentError: it belongs to another device or context.
        DriverError: the stream does not exist.
    """
    with active(device) as driver:
        what = f"stream {stream:#x} cannot be used on {device}"
        context = driver.call("cuStreamGetCtx", driver.bindings.CUstream(stream), what=what)
    if isinstance(context, tuple):  # from CUDA 12.5 on: (context, green context)
        context = context[0]
    if int(context) != int(device.context):
        is_here = _context_device(driver, context) == device.ordinal
        raise ArgumentError(
            f"stream {stream:#x} belongs to a different {'context' if is_here else 'device'} "
            f"than the arrays, which are on {device}.",
            hint=PRIMARY_CONTEXT if is_here else "Pass a stream of that device, or none.",
        )


def _context_device(driver: Driver, context: Any) -> int:
    driver.bindings.cuCtxPushCurrent(context)
    try:
        return current_device()
    finally:
        driver.bindings.cuCtxPopCurrent()


_NON_BLOCKING = 1


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
    with active(device) as driver, _moment(driver, producer, what) as event:
        driver.call("cuStreamWaitEvent", driver.bindings.CUstream(stream), event, 0, what=what)


@contextmanager
def across_contexts(device: Device, stream: int) -> Iterator[None]:
    """Order a default stream of a device's context with the current context's default stream.

    Work enqueued in the device's stream within the block runs after the work enqueued so far in the
    current context's stream, and before later work in that stream. Both streams have the same
    handle, since each context has a separate default stream.

    Raises:
        DriverError: the driver failed.
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


# ---- uses of memory: its last write and the reads since then, in any stream

_DISABLE_TIMING = 2
_LEGACY_NUMBER = -1
_MOST_READS = 16
_SUCCESS = 0


class Moment:
    """The work in a stream up to one moment.

    Attributes:
        device: the stream's device.
        number: the stream's ID, see `number_of`.
        event: a driver event, reused when nothing refers to the moment any more.
    """

    __slots__ = ("_spare", "device", "event", "number")

    def __init__(self, device: Device, number: int, event: Any, spare: list[Any]) -> None:
        self.device = device
        self.number = number
        self.event = event
        self._spare = spare

    def __del__(self) -> None:
        # Recording an event again does not change what a stream already waits for (cuEventRecord).
        self._spare.append(self.event)


def number_of(device: Device, stream: int) -> int:
    """Return a stream ID that is unique on its device, and never reused.

    Raises:
        DriverError: the stream does not exist.
    """
    if stream < 2:
        return _LEGACY_NUMBER
    with active(device) as driver:
        what = f"stream {stream:#x} cannot be used"
        return int(driver.call("cuStreamGetId", stream, what=what))


def record(device: Device, stream: int, number: int | None = None) -> Moment | None:
    """Return the moment of the work enqueued so far in a stream; None during a capture.

    Captured work belongs to a graph, and does not run in the stream.

    Args:
        device: the stream's device.
        stream: the stream's handle.
        number: the stream's ID, if known.

    Raises:
        DriverError: the stream does not exist.
    """
    with active(device) as driver:
        what = "stream work cannot be recorded"
        if stream >= 2 and int(driver.call("cuStreamIsCapturing", stream, what=what)):
            return None
        number = number_of(device, stream) if number is None else number
        spare = state.spare_events.setdefault(device.ordinal, [])
        try:
            event = spare.pop()
        except IndexError:
            event = driver.call("cuEventCreate", _DISABLE_TIMING, what=what)
        moment = Moment(device, number, event, spare)
        driver.call("cuEventRecord", event, stream, what=what)
        return moment


def wait_for_moments(device: Device, stream: int, moments: Collection[Moment]) -> None:
    """Make a stream wait for moments of other streams.

    Raises:
        ArgumentError: the stream is being captured, and a moment's work has not finished.
        DriverError: the stream does not exist.
    """
    if not moments:
        return
    with active(device) as driver:
        handle = driver.bindings.CUstream(stream)
        what = f"stream {stream:#x} cannot wait"
        if stream >= 2 and int(driver.call("cuStreamIsCapturing", handle, what=what)):
            raise ArgumentError(
                f"an array is still used in another stream, but stream {stream:#x} is being "
                "captured and cannot wait for that use.",
                hint="Synchronize before the capture, or use one stream for all arrays.",
            )
        for moment in moments:
            driver.call("cuStreamWaitEvent", handle, moment.event, 0, what=what)


def _unfinished(moments: Sequence[Moment]) -> list[Moment]:
    """Return the moments whose work may not have finished; all are of one device."""
    with active(moments[0].device) as driver, outside_captures(driver):
        ask = driver.bindings.cuEventQuery
        return [moment for moment in moments if int(ask(moment.event)[0]) != _SUCCESS]


class Uses:
    """The work enqueued by pallasc that uses one block of memory."""

    __slots__ = ("_reads", "_write")

    def __init__(self) -> None:
        self._write: Moment | None = None
        self._reads: dict[int, Moment] = {}

    def before(self, number: int | None, *, writes: bool) -> list[Moment]:
        """Return the unfinished uses in other streams that work in a stream has to wait for.

        Args:
            number: the stream's ID; None for no particular stream.
            writes: the work writes, so it waits for reads as well as for the last write.
        """
        write = self._write
        others = [] if write is None or write.number == number else [write]
        if writes and self._reads:
            # A copy, because another thread may add a read meanwhile.
            reads = list(self._reads.values())
            others += [moment for moment in reads if moment.number != number]
        if not others:
            return others
        unfinished = _unfinished(others)
        if len(unfinished) < len(others):
            self._forget(set(others).difference(unfinished))
        return unfinished

    def note(self, moment: Moment, *, writes: bool) -> None:
        """Add work that has waited for the uses that `before` returned."""
        if writes:
            self._write, self._reads = moment, {}
        elif self._write is not moment:
            if len(self._reads) >= _MOST_READS:
                reads = list(self._reads.values())
                self._forget(set(reads).difference(_unfinished(reads)))
            self._reads[moment.number] = moment

    def settle(self) -> None:
        """Record that all work has finished."""
        self._write, self._reads = None, {}

    def _forget(self, done: Collection[Moment]) -> None:
        if self._write in done:
            self._write = None
        self._reads = {
            number: moment for number, moment in self._reads.items() if moment not in done
        }


def work_stream(device: Device, uses: Uses, *, writes: bool) -> int:
    """Return pallasc's stream after making it wait for the uses and for the default stream."""
    stream = own_stream(device)
    wait_for_moments(device, stream, uses.before(None, writes=writes))
    # Other libraries may use memory in the default stream. It cannot be used while a stream that it
    # waits for is being captured, but then all of its work was enqueued before the capture.
    with active(device) as driver, outside_captures(driver):
        is_blocked = is_legacy_blocked(driver)
    moment = None if is_blocked else record(device, 0)
    if moment is not None:
        wait_for_moments(device, stream, [moment])
    return stream


class Order:
    """Stream order of a launch: the work it waits for, and the streams that wait for it.

    Args:
        name: the kernel.
        device: the GPU it runs on.
        stream: the launch's stream.
        others: the arrays' own streams; they and the launch's stream wait for each other.
        uses: for each array that tracks its uses: the uses, and whether the launch writes it.
        is_given: the caller specified the stream.
    """

    def __init__(
        self,
        name: str,
        device: Device,
        stream: int,
        others: Sequence[int],
        uses: Sequence[tuple[Uses, bool]],
        *,
        is_given: bool,
    ) -> None:
        self._name, self._device, self._stream = name, device, stream
        self._others, self._uses, self._is_given = others, uses, is_given
        self._number: int | None = None

    def before(self) -> None:
        """Make the stream wait for the work that produced the arrays.

        Raises:
            ArgumentError: the stream is being captured and cannot wait.
        """
        moments = self._unfinished()
        if not moments and not self._others:
            return
        if is_capturing(self._device, self._stream):
            if self._is_given:
                self._others, self._uses = [], []  # the caller must order other work
            elif self._others:
                raise ArgumentError(
                    f"{self._name}: an array belongs to stream {self._others[0]:#x}, but the "
                    f"launch is in stream {self._stream:#x}, which is being captured and cannot "
                    "wait for other streams.",
                    hint="Use one stream for all arrays, or pass stream=.",
                )
        for other in self._others:
            wait_for(self._device, self._stream, other)
        if self._uses:
            wait_for_moments(self._device, self._stream, moments)

    def _unfinished(self) -> set[Moment]:
        """Return the unfinished uses of the arrays in other streams."""
        if not self._uses:
            return set()
        number = self._number = number_of(self._device, self._stream)
        return {
            moment
            for memory, writes in self._uses
            for moment in memory.before(number, writes=writes)
        }

    def after(self) -> None:
        """Make the other streams wait for the launch, and record it in the uses of its arrays.

        Raises:
            DriverError: the driver failed.
        """
        for other in self._others:
            wait_for(self._device, other, self._stream)
        moment = record(self._device, self._stream, self._number) if self._uses else None
        if moment is not None:  # None: the launch was captured into a graph
            for memory, writes in self._uses:
                memory.note(moment, writes=writes)


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
