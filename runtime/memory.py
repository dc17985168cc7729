"""Device memory of our own: constants once a device, temporaries in the order of a stream."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pallasc.runtime.devices import Device, active
from pallasc.runtime.driver import Driver, forget_on_fork, open_driver

ALIGNMENT = 256
"""What Mosaic assumes of every buffer."""


def align(size_bytes: int) -> int:
    """Return a size rounded up to the alignment of buffers."""
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


def upload(device: Device, data: bytes, what: str) -> int:
    """Return the address of new memory of a device that holds these bytes; it is never freed.

    Raises:
        OutOfMemoryError: there is no room for them.
        DriverError: the copy fails.
    """
    with active(device) as driver:
        address = int(driver.call("cuMemAlloc", max(1, len(data)), what=what))
        if data:
            driver.call("cuMemcpyHtoD", address, data, len(data), what=what)
    return address


@contextmanager
def temporary(device: Device, size_bytes: int, stream: int, what: str) -> Iterator[int]:
    """Give memory of a device for what is put into a stream meanwhile.

    Raises:
        OutOfMemoryError: there is not enough.
    """
    driver = open_driver()
    if not device.has_pools:
        yield _workspace(device, size_bytes, stream, what)
        return
    with active(device):
        address = int(driver.call("cuMemAllocAsync", max(1, size_bytes), stream, what=what))
    try:
        yield address
    finally:
        with active(device):
            driver.bindings.cuMemFreeAsync(address, stream)


_lock = threading.Lock()
_workspaces: dict[tuple[int, int], tuple[int, int]] = {}


def _workspace(device: Device, size_bytes: int, stream: int, what: str) -> int:
    """Return memory that belongs to a stream: its work is done one after the other."""
    key = (device.ordinal, stream)
    with _lock:
        address, held_bytes = _workspaces.get(key, (0, 0))
        if held_bytes < size_bytes:
            _workspaces.pop(key, None)
            with active(device) as driver:
                _free(driver, address)
                address = int(driver.call("cuMemAlloc", size_bytes, what=what))
            _workspaces[key] = (address, size_bytes)
        return address


def _free(driver: Driver, address: int) -> None:
    """Free memory; the driver waits for the work that uses it."""
    if address:
        driver.bindings.cuMemFree(address)


def _forget() -> None:
    global _lock
    _lock = threading.Lock()
    _workspaces.clear()


forget_on_fork(_forget)
