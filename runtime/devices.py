"""The GPUs of this process: their figures, their primary contexts, which one is current."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pallasc.errors import ArgumentError
from pallasc.runtime.driver import Driver, forget_on_fork, open_driver


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU; memory in bytes.

    Attributes:
        ordinal: its number, as frameworks count.
        name: `NVIDIA H100 80GB HBM3`.
        major, minor: compute capability.
        sm_count: streaming multiprocessors.
        smem_optin_bytes: shared memory that one block may ask for.
        has_pools: `cuMemAllocAsync` works.
        driver_version: the driver API, 13020 for 13.2.
        context: its primary context, which frameworks share.
    """

    ordinal: int
    name: str
    major: int
    minor: int
    sm_count: int
    smem_optin_bytes: int
    has_pools: bool = True
    driver_version: int = 0
    context: Any = None

    def __str__(self) -> str:
        return f"GPU {self.ordinal} ({self.name}, sm_{self.major}{self.minor})"


_lock = threading.Lock()
_devices: dict[int, Device] = {}


def device_count() -> int:
    """Return how many GPUs this process sees."""
    return int(open_driver().call("cuDeviceGetCount", what="the GPUs cannot be counted"))


def get_device(ordinal: int) -> Device:
    """Return a GPU; its primary context is retained from then on.

    Raises:
        ArgumentError: there is no GPU of that number.
        DeviceError: the driver cannot be used.
    """
    driver = open_driver()
    found = _devices.get(ordinal)
    if found is None:
        with _lock:
            found = _devices.get(ordinal) or _read(driver, ordinal)
            _devices[ordinal] = found
    return found


def current_device() -> int:
    """Return the device of the context that is current in this thread, else 0."""
    code, device = open_driver().bindings.cuCtxGetDevice()
    return int(device) if int(code) == 0 else 0


def device_of(pointer: int) -> int:
    """Return the ordinal of the GPU whose memory lies at an address; of 0, the current one.

    Raises:
        DriverError: no GPU has memory there.
    """
    driver = open_driver()
    if pointer == 0:
        return current_device()
    attribute = driver.bindings.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    what = f"no GPU has memory at {pointer:#x}"
    return int(driver.call("cuPointerGetAttribute", attribute, pointer, what=what))


def is_open(device: Device) -> bool:
    """Tell whether a device is one of this process: after a fork none is."""
    return _devices.get(device.ordinal) is device


@contextmanager
def active(device: Device) -> Iterator[Driver]:
    """Make a device's primary context current in this thread for a while."""
    driver = open_driver()
    driver.call("cuCtxPushCurrent", device.context, what=f"{device} cannot be made current")
    try:
        yield driver
    finally:
        driver.bindings.cuCtxPopCurrent()


def make_current(device: Device) -> bool:
    """Make a device's primary context current where this thread has none; tell whether it had."""
    driver = open_driver()
    code, context = driver.bindings.cuCtxGetCurrent()
    if code is driver.success and int(context):
        return False
    driver.call("cuCtxSetCurrent", device.context, what=f"{device} cannot be made current")
    return True


def _read(driver: Driver, ordinal: int) -> Device:
    count = device_count()
    if not 0 <= ordinal < count:
        raise ArgumentError(
            f"there is no GPU {ordinal}: the driver counts {count}.",
            hint="nvidia-smi lists them; CUDA_VISIBLE_DEVICES may hide some.",
        )
    what = f"GPU {ordinal} cannot be read"
    handle = driver.call("cuDeviceGet", ordinal, what=what)
    names = driver.bindings.CUdevice_attribute

    def figure(name: str) -> int:
        attribute = getattr(names, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(driver.call("cuDeviceGetAttribute", attribute, handle, what=what))

    name = driver.call("cuDeviceGetName", 256, handle, what=what)
    return Device(
        ordinal=ordinal,
        name=name.partition(b"\0")[0].decode(),
        major=figure("COMPUTE_CAPABILITY_MAJOR"),
        minor=figure("COMPUTE_CAPABILITY_MINOR"),
        sm_count=figure("MULTIPROCESSOR_COUNT"),
        smem_optin_bytes=figure("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        has_pools=bool(figure("MEMORY_POOLS_SUPPORTED")),
        driver_version=driver.version,
        context=driver.call("cuDevicePrimaryCtxRetain", handle, what=what),
    )


def _forget() -> None:
    global _lock
    _lock = threading.Lock()
    _devices.clear()


forget_on_fork(_forget)
