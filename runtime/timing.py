"""Time launches on the GPU's own clock, with an event in the stream before and after each.

A measured launch must never wait for this process. So each is preceded by GPU work that takes
longer than enqueueing the launch takes here: a write to memory of twice the size of the L2 cache.
This also evicts the arrays from the cache; to measure with a warm cache, an unmeasured launch
follows the write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from pallasc.runtime.adapters.device_arrays import DeviceArray
from pallasc.runtime.calls.launch import Route
from pallasc.runtime.device.devices import Device, Driver, active

_STREAM = 0
_STEPS_FOR_EACH_FLUSH = 4
_SMALLEST_FLUSH_BYTES = 64 << 20


def time_launches(
    route: Route,
    device: Device,
    pointers: Sequence[int],
    *,
    repeats: int,
    warmup: int,
    cold: bool = False,
) -> list[float]:
    """Return the GPU time of each of `repeats` launches, in microseconds, in order.

    Blocks until all launches have finished, and allocates some GPU memory.

    Args:
        route: the route to launch.
        device: the GPU to run on.
        pointers: addresses of the inputs, then of the results.
        repeats: number of measured launches, at least one.
        warmup: number of unmeasured launches before them.
        cold: measure with none of the arrays in the L2 cache.

    Raises:
        ArgumentError: an address is not valid for the kernel.
        DeviceError: the GPU cannot do it.
    """
    with active(device):
        steps = len(route.candidates[0].artifact.plan.steps)
        work = Work(_make_launch(route, device, pointers), route.name, steps)
        return time_calls(work, device, repeats=repeats, warmup=warmup, cold=cold)


@dataclass(frozen=True, slots=True)
class Work:
    """Work to time.

    Attributes:
        launch: enqueues the work in the default stream, without waiting for it.
        name: its name in error messages.
        steps: approximate number of launches and copies in it.
    """

    launch: Callable[[], object]
    name: str
    steps: int = 1


def time_calls(
    work: Work, device: Device, *, repeats: int, warmup: int, cold: bool = False
) -> list[float]:
    """Return the GPU time of each of `repeats` calls, in microseconds, in order.

    Args:
        work: the work to call.
        device: the GPU to run on.
        repeats: number of measured calls, at least one.
        warmup: number of unmeasured calls before them.
        cold: measure with none of the arrays in the L2 cache.

    Raises:
        DeviceError: the GPU cannot do it.
    """
    what, launch = f"{work.name} cannot be timed on {device}", work.launch
    with ExitStack() as stack:
        driver = stack.enter_context(active(device))
        flush = _make_flush(driver, device, work.steps, what)
        for _ in range(warmup):
            launch()
        driver.call("cuCtxSynchronize", what=what)
        pairs = [_events(driver, stack, what) for _ in range(repeats)]
        for start, stop in pairs:
            flush()
            if not cold:
                launch()
            driver.call("cuEventRecord", start, _STREAM, what=what)
            launch()
            driver.call("cuEventRecord", stop, _STREAM, what=what)
        driver.call("cuCtxSynchronize", what=what)
        return [_elapsed_us(driver, start, stop, what) for start, stop in pairs]


def l2_bytes(driver: Driver, device: Device) -> int:
    """Return the size of a GPU's L2 cache."""
    attribute = driver.bindings.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
    what = f"the L2 cache of {device} cannot be read"
    return int(driver.call("cuDeviceGetAttribute", attribute, device.ordinal, what=what))


def _make_launch(route: Route, device: Device, pointers: Sequence[int]) -> Callable[[], None]:
    program = route.program(device.ordinal)
    workspace = DeviceArray((program.workspace_bytes,), "u8", device.ordinal)

    def launch() -> None:
        program.launch(_STREAM, pointers, workspace.pointer)

    return launch


def _make_flush(driver: Driver, device: Device, steps: int, what: str) -> Callable[[], None]:
    """Return a function that enqueues writes which keep the GPU busy and flush its L2 cache."""
    size_bytes = max(2 * l2_bytes(driver, device), _SMALLEST_FLUSH_BYTES)
    memory = DeviceArray((size_bytes,), "u8", device.ordinal)
    rounds = 1 + steps // _STEPS_FOR_EACH_FLUSH

    def flush() -> None:
        for _ in range(rounds):
            driver.call("cuMemsetD8Async", memory.pointer, 0, memory.nbytes, _STREAM, what=what)

    return flush


def _events(driver: Driver, stack: ExitStack, what: str) -> tuple[Any, Any]:
    """Return two new events, which the stack destroys."""
    pair = []
    for _ in range(2):
        event = driver.call("cuEventCreate", 0, what=what)
        stack.callback(driver.bindings.cuEventDestroy, event)
        pair.append(event)
    return pair[0], pair[1]


def _elapsed_us(driver: Driver, start: Any, stop: Any, what: str) -> float:
    return 1000 * float(driver.call("cuEventElapsedTime", start, stop, what=what))
