"""Launch what was matched: results allocated, work in other streams waited for, steps enqueued.

The stream is the one that is given; else that of the first array whose framework has a current
stream or which names its own, results among them; else the default one. Where others of the arrays
are of another stream, the launch and that stream wait for each other.

Arrays on the host are copied to the GPU and back, in a stream that is waited for. None of that
becomes part of a capture, in this thread or another, and captures go on.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

from pallasc.errors import ArgumentError, PallascError
from pallasc.runtime.calls.match import Call, Match, check_copied
from pallasc.runtime.calls.routes import BoundPlan, PlanKey, Route
from pallasc.runtime.device.devices import (
    Device,
    active,
    current_device,
    get_device,
    outside_captures,
)
from pallasc.runtime.device.driver import Driver
from pallasc.runtime.device.memory import align, temporary
from pallasc.runtime.device.streams import (
    DEFAULT_STREAMS,
    is_capturing,
    is_same_stream,
    own_stream,
    stream_handle,
    wait_for,
)
from pallasc.runtime.device.uses import Uses, note_uses, number_of, wait_for_moments
from pallasc.runtime.matching.arguments import MISSING, unflatten
from pallasc.runtime.matching.arrays import Passed, find_adapter


def launch(call: Call, match: Match) -> Any:
    """Launch; return the results in the structure of the compiled function.

    Raises:
        ArgumentError, DeviceError: as a call of the kernel does.
    """
    route, results = match.route, match.results
    if match.ordinal is None:
        if results is None:
            results = _allocate(call, match, current_device(), None)
        check_copied(route.name, route.signature.results, results)
        stream = None if call.stream is None else stream_handle(call.stream)
        launch_on_host(route, call.arrays, [result.array for result in results], stream)
    else:
        results = _launch_on_device(call, match, match.ordinal)
    if not call.allocates and call.out is not MISSING:
        return call.out
    leaves = [
        call.arrays[number] if source == "input" else results[number].array
        for source, number in route.signature.sources
    ]
    return unflatten(route.signature.output_tree, leaves)


def _launch_on_device(call: Call, match: Match, ordinal: int) -> Sequence[Passed]:
    """Launch on arrays of a GPU, and return the results."""
    route, inputs, results = match.route, match.inputs, match.results
    stream = _stream(call, [*inputs, *(results or [])], ordinal)
    route.program(ordinal, stream)  # what cannot run is refused before anything is allocated
    if results is None:
        results = _allocate(call, match, ordinal, stream)
    passed = [*inputs, *results]
    written = {*route.signature.updated, *range(len(inputs), len(passed))}
    order = _Order(route.name, get_device(ordinal), stream, passed, written, call.stream is None)
    order.before()
    workspace = _workspace(inputs, route.workspace_bytes, ordinal, stream)
    address = None if workspace is None else workspace.view.pointer
    try:
        route.enqueue(stream, ordinal, [array.view.pointer for array in passed], address)
    except PallascError:
        with suppress(PallascError):  # of several steps some may be in the stream
            order.after()
        _mark_written(passed, written)
        raise
    order.after()
    _mark_written(passed, written)
    return results


def _stream(call: Call, passed: Sequence[Passed], ordinal: int) -> int:
    if call.stream is not None:
        return stream_handle(call.stream)
    for array in passed:
        if (array.view.stream or 0) >= DEFAULT_STREAMS:
            return array.view.stream or 0
        if array.adapter.has_pool:
            return array.adapter.stream(ordinal)
    return 0


def _allocate(call: Call, match: Match, ordinal: int, stream: int | None) -> list[Passed]:
    """Return new memory for each result, from the framework of the first array."""
    inputs, results = match.inputs, match.route.signature.results
    if not inputs and results:
        raise ArgumentError(
            f"{match.route.name} takes no arrays, so nothing says which framework its results "
            "are for.",
            hint="Call into(out=...) with arrays of that framework.",
        )
    own = None if call.stream is None else stream
    arrays = [
        inputs[0].adapter.empty(result.shape, result.dtype, ordinal, own) for result in results
    ]
    adapters = [find_adapter(array, "a result") for array in arrays]
    return [
        Passed(array, adapter, adapter.view(array))
        for array, adapter in zip(arrays, adapters, strict=True)
    ]


def _workspace(
    inputs: Sequence[Passed], size_bytes: int, ordinal: int, stream: int
) -> Passed | None:
    """Return memory for temporaries from the framework at hand, None where it has no pool."""
    if size_bytes and inputs and inputs[0].adapter.has_pool:
        adapter = inputs[0].adapter
        array = adapter.empty((size_bytes,), "u8", ordinal, stream)
        return Passed(array, adapter, adapter.view(array))
    return None


class _Order:
    """What a launch waits for, and what waits for it.

    Frameworks have a current stream, arrays with `__cuda_array_interface__` name one, device arrays
    of our own know all their uses. Whatever is not in the launch's stream waits on both sides.

    Args:
        name: the kernel.
        device: where it runs.
        stream: where it is put.
        passed: the arrays.
        written: numbers of those that the launch writes.
        waits: for frameworks' current streams too, which a caller who names a stream orders.
    """

    def __init__(
        self,
        name: str,
        device: Device,
        stream: int,
        passed: Sequence[Passed],
        written: Collection[int],
        waits: bool,
    ) -> None:
        self._name = name
        self._device = device
        self._stream = stream
        self._is_given = not waits
        adapters = {array.adapter: None for array in passed} if waits else {}
        streams = [adapter.stream(device.ordinal) for adapter in adapters if adapter.has_pool]
        self._uses: list[tuple[Uses, bool]] = []
        for number, (_, _, view) in enumerate(passed):
            if view.stream is not None:
                streams.append(view.stream)
            if view.uses is not None:
                self._uses.append((view.uses, number in written))
        self._others = [
            other for other in dict.fromkeys(streams) if not is_same_stream(other, stream)
        ]
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
                moment
                for memory, writes in self._uses
                for moment in memory.before(number, writes=writes)
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


def _mark_written(passed: Sequence[Passed], written: Collection[int]) -> None:
    """Tell frameworks that count the writes to an array of those of a launch."""
    for number in sorted(written):
        passed[number].adapter.mark_written((passed[number].array,))


def launch_noted(
    route: Route,
    key: PlanKey,
    plan: BoundPlan,
    number: int,
    uses: Sequence[tuple[Uses, bool]],
    out: Any,
) -> Any:
    """Launch a plan with arrays that know their uses, note it with them, and return `out`.

    Args:
        route: whose plan it is.
        key: where, and with which arrays.
        plan: what is launched.
        number: the stream's, see `number_of`.
        uses: of each array, and whether it is written.
        out: what is returned.

    Raises:
        DriverError: as `Route.retry` does.
    """
    device = get_device(key[1] if key[1] >= 0 else ~key[1])
    try:
        route.launch_plan(key, plan)
    except PallascError:
        with suppress(PallascError):  # of several steps some may be in the stream
            note_uses(device, key[0], number, uses)
        raise
    note_uses(device, key[0], number, uses)
    return out


# ---- arrays on the host


def launch_on_host(
    route: Route, inputs: Sequence[Any], results: Sequence[Any], stream: int | None = None
) -> None:
    """Run a route on arrays of numpy, on the current device; wait until they are written.

    Args:
        route: what is run.
        inputs: the arrays, in order.
        results: arrays for the results.
        stream: where; a stream of ours where it is None.

    Raises:
        ArgumentError, DeviceError: as a call of the kernel does.
    """
    device = get_device(current_device())
    program = route.program(device.ordinal)
    handle = own_stream(device) if stream is None else _outside_capture(route, device, stream)
    arrays = [*inputs, *results]
    sizes = [align(array.nbytes) for array in arrays]
    total = sum(sizes) + route.workspace_bytes
    what = f"{route.name} needs {total} bytes on {device}"
    with (
        active(device) as driver,
        outside_captures(driver),
        temporary(device, total, handle, what) as base,
    ):
        places = [base + sum(sizes[:number]) for number in range(len(sizes))]
        plan = program.bind(handle, places, base + sum(sizes))
        try:
            for place, array in zip(places, inputs, strict=False):
                _copy_in(driver, place, array, handle, route.name)
            answer = program.answer(plan)
            if int(answer[0]):
                raise program.error(answer)
            updated = route.signature.updated
            for number in (*updated, *range(len(inputs), len(arrays))):
                _copy_out(driver, arrays[number], places[number], handle, route.name)
        except BaseException:
            driver.bindings.cuStreamSynchronize(handle)  # copies may still use the arrays
            raise
        what = f"the results of {route.name} cannot be copied from the GPU"
        driver.call("cuStreamSynchronize", handle, what=what)


def _outside_capture(route: Route, device: Device, stream: int) -> int:
    """Return a stream that the caller gives.

    Raises:
        ArgumentError: it is being captured: a graph cannot copy there and back.
    """
    if is_capturing(device, stream):
        raise ArgumentError(
            f"{route.name}: stream {stream:#x} is being captured, and arrays of numpy are copied "
            "at once.",
            hint="Pass arrays in GPU memory.",
        )
    return stream


def _copy_in(driver: Driver, place: int, array: Any, stream: int, name: str) -> None:
    if array.nbytes:
        what = f"an input of {name} cannot be copied to the GPU"
        arguments = (place, array.ctypes.data, array.nbytes, stream)
        driver.call("cuMemcpyHtoDAsync", *arguments, what=what)


def _copy_out(driver: Driver, array: Any, place: int, stream: int, name: str) -> None:
    if array.nbytes:
        what = f"a result of {name} cannot be copied from the GPU"
        arguments = (array.ctypes.data, place, array.nbytes, stream)
        driver.call("cuMemcpyDtoHAsync", *arguments, what=what)
