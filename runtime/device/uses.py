"""Uses of a block of memory: its last write and the reads since then, in any stream.

Uses are recorded as events, not as streams: a stream may be destroyed before its work is waited
for, and a new one may get its handle. Streams are distinguished by the driver's stream IDs, which
are never reused.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from pallasc.errors import ArgumentError
from pallasc.runtime.device import process_state
from pallasc.runtime.device.devices import (
    Device,
    active,
    is_capturing,
    is_legacy_blocked,
    outside_captures,
)
from pallasc.runtime.device.streams import own_stream, wait_for

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
    """Return the moment of the work enqueued so far in a stream, None if it is being captured.

    While a stream is captured, it holds no work.

    Args:
        device: the stream's device.
        stream: its handle.
        number: its ID, if known.

    Raises:
        DriverError: the stream does not exist.
    """
    with active(device) as driver:
        what = "work in a stream cannot be noted"
        if stream >= 2 and int(driver.call("cuStreamIsCapturing", stream, what=what)):
            return None
        number = number_of(device, stream) if number is None else number
        spare = process_state.now.spare_events.setdefault(device.ordinal, [])
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
        ArgumentError: it is being captured, and work that it has to wait for has not finished.
        DriverError: the stream does not exist.
    """
    if not moments:
        return
    with active(device) as driver:
        handle = driver.bindings.CUstream(stream)
        what = f"stream {stream:#x} cannot wait"
        if stream >= 2 and int(driver.call("cuStreamIsCapturing", handle, what=what)):
            raise ArgumentError(
                f"an array is still used in another stream, and stream {stream:#x} is being "
                "captured and cannot wait for that.",
                hint="Synchronize before the capture, or use one stream for all arrays.",
            )
        for moment in moments:
            driver.call("cuStreamWaitEvent", handle, moment.event, 0, what=what)


def _unfinished(moments: Sequence[Moment]) -> list[Moment]:
    """Return those moments of one device whose work may not have finished."""
    with active(moments[0].device) as driver, outside_captures(driver):
        ask = driver.bindings.cuEventQuery
        return [moment for moment in moments if int(ask(moment.event)[0]) != _SUCCESS]


def wait_for_default(device: Device, stream: int) -> None:
    """Make one of our streams wait for the default stream, in which other libraries may use memory.

    The default stream cannot be used while a stream that it waits for is being captured. In that
    case all of its work was enqueued before the capture.
    """
    with active(device) as driver, outside_captures(driver):
        if is_legacy_blocked(driver):
            return
    moment = record(device, 0)
    if moment is not None:
        wait_for_moments(device, stream, [moment])


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


def note_uses(
    device: Device, stream: int, number: int | None, uses: Sequence[tuple[Uses, bool]]
) -> None:
    """Record the work enqueued so far in a stream as uses of memory, unless it is being captured.

    Raises:
        DriverError: the stream does not exist.
    """
    moment = record(device, stream, number) if uses else None
    if moment is not None:
        for memory, writes in uses:
            memory.note(moment, writes=writes)


def work_stream(device: Device, uses: Uses, *, writes: bool) -> int:
    """Return one of our streams, made to wait for the uses of memory and for the default stream."""
    stream = own_stream(device)
    wait_for_moments(device, stream, uses.before(None, writes=writes))
    wait_for_default(device, stream)
    return stream


class Order:
    """Stream order of a launch: the work it waits for, and the streams that wait for it.

    Args:
        name: the kernel.
        device: the GPU it runs on.
        stream: the launch's stream.
        others: streams that arrays come from; they and the launch's stream wait for each other.
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
        self._name = name
        self._device = device
        self._stream = stream
        self._others = others
        self._uses = uses
        self._is_given = is_given
        self._number: int | None = None

    def before(self) -> None:
        """Make the stream wait for the work that produced the arrays.

        Raises:
            ArgumentError: it is being captured, and cannot wait.
        """
        moments = self._unfinished()
        if not moments and not self._others:
            return
        if is_capturing(self._device, self._stream):
            if self._is_given:
                self._others, self._uses = [], []  # the caller orders what a graph does not see
            elif self._others:
                raise ArgumentError(
                    f"{self._name}: an array belongs to stream {self._others[0]:#x}, and the "
                    f"launch to stream {self._stream:#x}, which is being captured and cannot wait "
                    "for it.",
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
            DriverError: the driver cannot.
        """
        for other in self._others:
            wait_for(self._device, other, self._stream)
        note_uses(self._device, self._stream, self._number, self._uses)
