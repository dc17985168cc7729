"""Time launches by the GPU's own clock: an event in the stream before and after each.

No launch that is measured may wait for this process, so each is preceded by work that takes the
GPU longer than enqueueing takes here: memory of twice the size of the L2 cache is written. Nothing
of the arrays is in the cache then; for times with a warm cache, a launch that is not measured
follows.
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
    """Return what each of `repeats` launches took on the GPU, in microseconds, in order.

    It waits until all is done, and needs some memory of the GPU for itself.

    Args:
        route: what is launched.
        device: where.
        pointers: addresses of the inputs, then of the results.
        repeats: how many launches are measured, at least one.
        warmup: how many go before them.
        cold: measure with nothing of the arrays in the L2 cache.

    Raises:
        ArgumentError: an address does not fit.
        DeviceError: the GPU cannot do it.
    """
    with active(device):
        steps = len(route.candidates[0].artifact.plan.steps)
        work = Work(_make_launch(route, device, pointers), route.name, steps)
        return time_calls(work, device, repeats=repeats, warmup=warmup, cold=cold)


@dataclass(frozen=True, slots=True)
class Work:
    """What is timed.

    Attributes:
        launch: puts it into the default stream, and does not wait for it.
        name: what it is called in errors.
        steps: how many launches and copies it is, roughly.
    """

    launch: Callable[[], object]
    name: str
    steps: int = 1


def time_calls(
    work: Work, device: Device, *, repeats: int, warmup: int, cold: bool = False
) -> list[float]:
    """Return what each of `repeats` calls took on the GPU, in microseconds, in order.

    Args:
        work: what is called.
        device: where.
        repeats: how many calls are measured, at least one.
        warmup: how many go before them.
        cold: measure with nothing of the arrays in the L2 cache.

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
    """Return what puts a launch into the stream."""
    program = route.program(device.ordinal)
    workspace = DeviceArray((program.workspace_bytes,), "u8", device.ordinal)
    plan = program.bind(_STREAM, pointers, workspace.pointer)

    def launch(owner: DeviceArray = workspace) -> None:
        answer = plan()
        if int(answer[0]):
            raise program.error(answer)

    return launch


def _make_flush(driver: Driver, device: Device, steps: int, what: str) -> Callable[[], None]:
    """Return what puts writes into the stream that keep the GPU busy and empty its L2 cache."""
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
