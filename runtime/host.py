"""Arrays on the host: copied to the GPU, computed, copied back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pallasc.runtime.devices import active, current_device, get_device
from pallasc.runtime.driver import Driver
from pallasc.runtime.memory import align, temporary
from pallasc.runtime.routes import Route


def run_on_host(route: Route, inputs: Sequence[Any], results: Sequence[Any]) -> None:
    """Run a route on arrays of numpy, on the current device; wait until they are written.

    Raises:
        ArgumentError, DeviceError: as a call of the kernel does.
    """
    device = get_device(current_device())
    program = route.program(device.ordinal)
    arrays = [*inputs, *results]
    sizes = [align(array.nbytes) for array in arrays]
    total = sum(sizes) + route.workspace_bytes
    what = f"{route.name} needs {total} bytes on {device}"
    with temporary(device, total, 0, what) as base:
        places = [base + sum(sizes[:number]) for number in range(len(sizes))]
        with active(device) as driver:
            for place, array in zip(places, inputs, strict=False):
                _copy_in(driver, place, array, route.name)
            plan = program.bind(0, places, base + sum(sizes))
            answer = program.run(plan)
            if int(answer[0]):
                raise program.error(answer)
            updated = {number for source, number in route.signature.sources if source == "input"}
            written = [*sorted(updated), *range(len(inputs), len(arrays))]
            for number in written:
                _copy_out(driver, arrays[number], places[number], route.name)


def _copy_in(driver: Driver, place: int, array: Any, name: str) -> None:
    if array.nbytes:
        what = f"an input of {name} cannot be copied to the GPU"
        driver.call("cuMemcpyHtoD", place, array.ctypes.data, array.nbytes, what=what)


def _copy_out(driver: Driver, array: Any, place: int, name: str) -> None:
    """Copy back; it waits for the kernels before, and gets their errors."""
    if array.nbytes:
        what = f"a result of {name} cannot be copied from the GPU"
        driver.call("cuMemcpyDtoH", array.ctypes.data, place, array.nbytes, what=what)
