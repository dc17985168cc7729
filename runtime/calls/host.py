"""Launch on host arrays: copy them to the GPU and back, and wait.

None of this becomes part of a stream capture, in this thread or another, or disturbs one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pallasc.errors import ArgumentError
from pallasc.runtime.calls.launch import Match, Route
from pallasc.runtime.device.devices import (
    Device,
    Driver,
    active,
    current_device,
    get_device,
    is_capturing,
    outside_captures,
)
from pallasc.runtime.device.memory import align, temporary
from pallasc.runtime.device.streams import own_stream, stream_handle
from pallasc.runtime.matching.arrays import check_copied


def launch_copied(match: Match) -> Any:
    """Launch, and return the results in the structure of the compiled function.

    Raises:
        ArgumentError, DeviceError: as for a call of the kernel.
    """
    route, results = match.route, match.results
    if results is None:
        results = match.allocate(current_device(), None)
    check_copied(route.name, match.signature.results, results)
    stream = None if match.stream is None else stream_handle(match.stream)
    inputs = [array.array for array in match.inputs]
    outputs = [array.array for array in results]
    if match.padding is None:
        launch_on_host(route, inputs, outputs, stream)
    else:
        adapter, ordinal = match.inputs[0].adapter, current_device()
        match.padding.on_host(
            inputs,
            outputs,
            lambda shape, dtype: adapter.empty(shape, dtype, ordinal, None),
            lambda own, made: launch_on_host(route, own, made, stream),
        )
    return match.returned(results)


def launch_on_host(
    route: Route, inputs: Sequence[Any], results: Sequence[Any], stream: int | None = None
) -> None:
    """Run a route on numpy arrays, on the current device; wait until the results are written.

    Args:
        route: the route to run.
        inputs: the arrays, in order.
        results: arrays for the results.
        stream: the stream; None for one of pallasc's own.

    Raises:
        ArgumentError, DeviceError: as for a call of the kernel.
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
        try:
            for place, array in zip(places, inputs, strict=False):
                _copy_in(driver, place, array, handle, route.name)
            program.launch(handle, places, base + sum(sizes))
            updated = route.signature.updated
            for number in (*updated, *range(len(inputs), len(arrays))):
                _copy_out(driver, arrays[number], places[number], handle, route.name)
        except BaseException:
            driver.bindings.cuStreamSynchronize(handle)  # copies may still use the arrays
            raise
        what = f"the results of {route.name} cannot be copied from the GPU"
        driver.call("cuStreamSynchronize", handle, what=what)


def _outside_capture(route: Route, device: Device, stream: int) -> int:
    """Return the caller's stream.

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
