"""Time launches on the GPU's own clock, with an event in the stream before and after each launch.

A measured launch must never wait for this process. So the GPU first fills memory of twice the size
of its L2 cache, which takes longer than enqueueing the launch. The fill also evicts the arrays from
the cache; to measure with a warm cache, an unmeasured launch follows the fill.

The GPU's clock, temperature and throttling during the measurement come from NVML, which is part of
the driver and creates no context on the GPU. `cuda.bindings.nvml` is part of cuda-bindings 13; if
the module or the NVML library is missing, results lack these values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pallasc.runtime.adapters.device_arrays import DeviceArray
from pallasc.runtime.calls.launch import Route
from pallasc.runtime.device.devices import Device, Driver, active, open_driver

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
        cold: if True, no array is in the L2 cache when a measured launch starts.

    Raises:
        ArgumentError: an address is not valid for the kernel.
        DeviceError: a launch fails, or cannot be timed.
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
        cold: if True, no array is in the L2 cache when a measured call starts.

    Raises:
        DeviceError: a call fails, or cannot be timed.
    """
    what, launch = f"{work.name} cannot be timed on {device}", work.launch
    with ExitStack() as stack:
        driver = stack.enter_context(active(device))
        flush = _make_flush(driver, device, work.steps, what)
        for _ in range(warmup):
            launch()
        driver.call("cuCtxSynchronize", what=what)
        pairs = [[_event(driver, stack, what) for _ in range(2)] for _ in range(repeats)]
        for start, stop in pairs:
            flush()
            if not cold:
                launch()
            driver.call("cuEventRecord", start, _STREAM, what=what)
            launch()
            driver.call("cuEventRecord", stop, _STREAM, what=what)
        driver.call("cuCtxSynchronize", what=what)
        elapsed_ms = (driver.call("cuEventElapsedTime", *pair, what=what) for pair in pairs)
        return [1000 * float(each) for each in elapsed_ms]


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
    """Return a function that enqueues writes that keep the GPU busy and flush its L2 cache."""
    size_bytes = max(2 * l2_bytes(driver, device), _SMALLEST_FLUSH_BYTES)
    memory = DeviceArray((size_bytes,), "u8", device.ordinal)
    rounds = 1 + steps // _STEPS_FOR_EACH_FLUSH

    def flush() -> None:
        for _ in range(rounds):
            driver.call("cuMemsetD8Async", memory.pointer, 0, memory.nbytes, _STREAM, what=what)

    return flush


def _event(driver: Driver, stack: ExitStack, what: str) -> Any:
    """Return a new event, which the stack destroys."""
    event = driver.call("cuEventCreate", 0, what=what)
    stack.callback(driver.bindings.cuEventDestroy, event)
    return event


# ---- conditions during measurements

_DRIVER_VERSION = Path("/sys/module/nvidia/version")

_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal",
    0x40: "hardware thermal",
    0x80: "hardware power brake",
    0x100: "display clocks",
}
"""Bits of `nvmlClocksEventReasons…` in nvml.h that mean a lowered clock.

Two other bits are not throttling: 0x1 is an idle GPU, 0x2 are clocks set by an application.
"""


class Conditions:
    """NVML queries for one GPU.

    Args:
        nvml: the module `cuda.bindings.nvml`, initialized; None if NVML is unavailable.
        handle: NVML's handle of the GPU.
        missing: why NVML is unavailable.

    Attributes:
        missing: as given.
    """

    def __init__(self, nvml: Any = None, handle: Any = None, missing: str = "") -> None:
        self._nvml = nvml
        self._handle = handle
        self.missing = missing

    def read(self) -> dict[str, object]:
        """Return clock, temperature and throttling, by the field names of tuning results."""
        nvml = self._nvml
        if nvml is None:
            return {}
        clock = self._ask(lambda: nvml.device_get_clock_info(self._handle, nvml.ClockType.CLOCK_SM))
        heat = self._ask(lambda: _temperature_c(nvml, self._handle))
        reasons = self._ask(lambda: nvml.device_get_current_clocks_event_reasons(self._handle))
        throttled = [name for bit, name in _REASONS.items() if int(reasons or 0) & bit]
        return {
            **({} if clock is None else {"clock_mhz": int(clock)}),
            **({} if heat is None else {"temperature_c": int(heat)}),
            **({"throttled": throttled} if throttled else {}),
        }

    def driver(self) -> str:
        """Return NVIDIA's driver version, "" if unknown."""
        nvml = self._nvml
        if nvml is not None and (told := self._ask(nvml.system_get_driver_version)):
            return str(told)
        try:
            return _DRIVER_VERSION.read_text().strip()
        except OSError:
            return ""

    def _ask(self, question: Callable[[], Any]) -> Any:
        """Return a query's result, None if the GPU, driver or cuda-bindings does not support it."""
        try:
            return question()
        except (self._nvml.NvmlError, RuntimeError, AttributeError):
            return None


def _temperature_c(nvml: Any, handle: Any) -> int:
    return int(nvml.device_get_temperature_v(handle, nvml.TemperatureSensors.TEMPERATURE_GPU))


def pci_address(device: Device) -> str:
    """Return the PCI address of a GPU, `0000:3b:00.0`, without creating a context."""
    driver = open_driver()
    names = driver.bindings.CUdevice_attribute

    def figure(which: str) -> int:
        attribute = getattr(names, f"CU_DEVICE_ATTRIBUTE_PCI_{which}_ID")
        what = f"the PCI address of {device} cannot be read"
        return int(driver.call("cuDeviceGetAttribute", attribute, device.ordinal, what=what))

    return f"{figure('DOMAIN'):04x}:{figure('BUS'):02x}:{figure('DEVICE'):02x}.0"


def find_conditions(bus_id: str) -> Conditions:
    """Return the NVML queries for the GPU at a PCI address, `0000:3b:00.0`."""
    try:
        from cuda.bindings import nvml
    except ImportError as error:
        return Conditions(missing=f"cuda.bindings.nvml cannot be imported: {error}")
    return ask_nvml(nvml, bus_id)


def ask_nvml(nvml: Any, bus_id: str) -> Conditions:
    """Return the queries through a given NVML module; see `find_conditions`."""
    try:
        nvml.init_v2()
        return Conditions(nvml, nvml.device_get_handle_by_pci_bus_id_v2(bus_id))
    # cuda-bindings raises RuntimeError if the library or one of its functions is missing.
    except (nvml.NvmlError, RuntimeError) as error:
        return Conditions(missing=f"NVML does not start: {error}")
