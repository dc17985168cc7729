"""Clock, temperature and throttling of a GPU during measurements, from NVML.

NVML is part of the driver and creates no context on the GPU. `cuda.bindings.nvml` is part of
cuda-bindings 13; if the module or the NVML library is missing, these columns stay empty.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pallasc.runtime.device.devices import Device, open_driver

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
        """Return the current values, with the field names of a result line."""
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
        """Return the answer, None if this GPU, driver or version of cuda-bindings has none."""
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
