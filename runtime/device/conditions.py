"""Clock, temperature and throttling of a GPU while it is measured, from NVML.

NVML comes with the driver and makes no context on the GPU. `cuda.bindings.nvml` is part of
cuda-bindings 13; where it or the library is missing, these columns stay empty.
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
"""Bits of `nvmlClocksEventReasons…` in nvml.h that mean a lower clock; 0x1 is an idle GPU, and 0x2
clocks that an application has set."""


class Conditions:
    """Asks NVML about one GPU.

    Args:
        nvml: the module `cuda.bindings.nvml`, initialised; None where there is none.
        handle: NVML's handle of the GPU.
        missing: why there is none.

    Attributes:
        missing: as given.
    """

    def __init__(self, nvml: Any = None, handle: Any = None, missing: str = "") -> None:
        self._nvml = nvml
        self._handle = handle
        self.missing = missing

    def read(self) -> dict[str, object]:
        """Return what is known now, as a line of results has it."""
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
        """Return NVIDIA's version of the driver, "" where it is not known."""
        nvml = self._nvml
        if nvml is not None and (told := self._ask(nvml.system_get_driver_version)):
            return str(told)
        try:
            return _DRIVER_VERSION.read_text().strip()
        except OSError:
            return ""

    def _ask(self, question: Callable[[], Any]) -> Any:
        """Return an answer, None where this GPU, driver or version of cuda-bindings has none."""
        try:
            return question()
        except (self._nvml.NvmlError, RuntimeError, AttributeError):
            return None


def _temperature_c(nvml: Any, handle: Any) -> int:
    return int(nvml.device_get_temperature_v(handle, nvml.TemperatureSensors.TEMPERATURE_GPU))


def pci_address(device: Device) -> str:
    """Return where a GPU is on the PCI bus, `0000:3b:00.0`; no context is made."""
    driver = open_driver()
    names = driver.bindings.CUdevice_attribute

    def figure(which: str) -> int:
        attribute = getattr(names, f"CU_DEVICE_ATTRIBUTE_PCI_{which}_ID")
        what = f"the PCI address of {device} cannot be read"
        return int(driver.call("cuDeviceGetAttribute", attribute, device.ordinal, what=what))

    return f"{figure('DOMAIN'):04x}:{figure('BUS'):02x}:{figure('DEVICE'):02x}.0"


def find_conditions(bus_id: str) -> Conditions:
    """Return what NVML tells of the GPU at a PCI address, `0000:3b:00.0`."""
    try:
        from cuda.bindings import nvml
    except ImportError as error:
        return Conditions(missing=f"cuda.bindings.nvml cannot be imported: {error}")
    return ask_nvml(nvml, bus_id)


def ask_nvml(nvml: Any, bus_id: str) -> Conditions:
    """Return what a module tells of a GPU; see `find_conditions`."""
    try:
        nvml.init_v2()
        return Conditions(nvml, nvml.device_get_handle_by_pci_bus_id_v2(bus_id))
    # cuda-bindings raises RuntimeError where the library or a function of it is missing.
    except (nvml.NvmlError, RuntimeError) as error:
        return Conditions(missing=f"NVML does not start: {error}")
