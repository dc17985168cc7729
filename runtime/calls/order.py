"""The order of one launch with the work that its arrays are in, before it and after it.

Frameworks have a current stream, arrays with `__cuda_array_interface__` name one, device arrays of
our own know all their uses. Whatever is not in the launch's stream waits on both sides.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pallasc.errors import ArgumentError
from pallasc.runtime.calls.routes import is_capturing
from pallasc.runtime.device.devices import Device
from pallasc.runtime.device.streams import is_same_stream, wait_for
from pallasc.runtime.device.uses import Uses, number_of, record, wait_for_moments
from pallasc.runtime.matching.checks import Passed


class Order:
    """What a launch waits for, and what waits for it.

    Args:
        name: the kernel.
        device: where it runs.
        stream: where it is put.
        is_given: the caller names the stream, and orders it with frameworks' current ones.
        passed: the arrays.
        written: numbers of those that the launch writes.
    """

    def __init__(
        self,
        name: str,
        device: Device,
        stream: int,
        passed: Sequence[Passed],
        written: Collection[int],
        *,
        is_given: bool,
    ) -> None:
        self._name = name
        self._device = device
        self._stream = stream
        self._is_given = is_given
        own = [] if is_given else _current_streams(passed, device.ordinal)
        named = [one.view.stream for one in passed if one.view.stream is not None]
        self._others = [
            one for one in dict.fromkeys((*own, *named)) if not is_same_stream(one, stream)
        ]
        is_written = [place in written for place in range(len(passed))]
        self._uses = tracked_uses([one.view.uses for one in passed], is_written)
        self._number: int | None = None

    def before(self) -> None:
        """Let the stream wait for the work that arrays come from.

        Raises:
            ArgumentError: it is captured, and cannot wait.
        """
        if (self._others or self._uses) and is_capturing(self._device, self._stream):
            if self._is_given:
                self._others, self._uses = [], []  # the caller orders what a graph does not see
            elif self._others:
                raise ArgumentError(
                    f"{self._name}: an array belongs to stream {self._others[0]:#x}, and the "
                    f"launch to stream {self._stream:#x}, which is being captured and cannot wait "
                    "for it.",
                    hint="Let all arrays be of one stream, or pass stream=.",
                )
        for other in self._others:
            wait_for(self._device, self._stream, other)
        if self._uses:
            number = self._number = number_of(self._device, self._stream)
            moments = [
                one for uses, writes in self._uses for one in uses.before(number, writes=writes)
            ]
            wait_for_moments(self._device, self._stream, set(moments))

    def after(self) -> None:
        """Let the others wait for the launch, and note it with its arrays.

        Raises:
            DriverError: the driver cannot.
        """
        for other in self._others:
            wait_for(self._device, other, self._stream)
        note_uses(self._device, self._stream, self._number, self._uses)


def tracked_uses(
    uses: Sequence[Uses | None], is_written: Sequence[bool]
) -> list[tuple[Uses, bool]]:
    """Return the uses of arrays that know them, and whether a launch writes each."""
    return [(one, writes) for one, writes in zip(uses, is_written, strict=False) if one is not None]


def mark_written(passed: Sequence[Passed], written: Collection[int]) -> None:
    """Tell frameworks that count the writes to an array of those of a launch."""
    for number in sorted(written):
        passed[number].adapter.mark_written((passed[number].array,))


def note_uses(
    device: Device, stream: int, number: int | None, uses: Sequence[tuple[Uses, bool]]
) -> None:
    """Note what is in a stream by now as a use of memory; in a capture nothing is used yet."""
    moment = record(device, stream, number) if uses else None
    if moment is not None:
        for one, writes in uses:
            one.note(moment, writes=writes)


def _current_streams(passed: Sequence[Passed], ordinal: int) -> list[int]:
    """Return the current streams of the frameworks that arrays are of."""
    adapters = dict.fromkeys(one.adapter for one in passed)
    return [one.stream(ordinal) for one in adapters if one.has_pool]
