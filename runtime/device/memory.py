"""pallasc's own device memory: constants once per device, temporaries in stream order.

Constants are never freed: a captured graph may still read them after the kernel is gone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pallasc.errors import PallascError
from pallasc.runtime.device import process_state
from pallasc.runtime.device.devices import Device, Driver, active, open_driver, outside_captures
from pallasc.runtime.device.streams import capture_number, own_stream
from pallasc.runtime.device.uses import Uses, number_of, record, wait_for_moments
from pallasc.specs.artifacts.plan import LaunchPlan

ALIGNMENT = 256
"""Alignment that Mosaic assumes for every buffer."""

THREAD_STREAM = 2
"""The handle that means the calling thread's own default stream (`CU_STREAM_PER_THREAD`)."""


def align(size_bytes: int) -> int:
    """Return a size rounded up to the alignment of buffers."""
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


def lay_out(plan: LaunchPlan) -> tuple[list[tuple[int, int]], int]:
    """Return the workspace offset of each temporary of a plan, and the total size."""
    offsets, at = [], 0
    for number, buffer in enumerate(plan.buffers):
        if buffer.role == "temporary":
            offsets.append((number, at))
            at += align(buffer.size)
    return offsets, at


def upload(device: Device, digest: str, data: bytes, what: str) -> int:
    """Return the address of a device's only copy of these bytes, copying them on first use.

    Raises:
        OutOfMemoryError: there is no room for them.
        DriverError: the copy fails.
    """
    key, state = (device.ordinal, digest), process_state.now
    with state.lock:
        address = state.constants.get(key)
        if address is None:
            stream = own_stream(device)
            with active(device) as driver, outside_captures(driver):
                address = state.constants[key] = _copy(driver, data, stream, what)
    return address


def _copy(driver: Driver, data: bytes, stream: int, what: str) -> int:
    address = int(driver.call("cuMemAlloc", max(1, len(data)), what=what))
    try:
        if data:
            driver.call("cuMemcpyHtoDAsync", address, data, len(data), stream, what=what)
            driver.call("cuStreamSynchronize", stream, what=what)
    except PallascError:
        driver.bindings.cuMemFree(address)
        raise
    return address


@contextmanager
def temporary(device: Device, size_bytes: int, stream: int, what: str) -> Iterator[int]:
    """Provide device memory for the work enqueued in a stream within the `with` block.

    Raises:
        OutOfMemoryError: there is not enough.
    """
    driver = open_driver()
    if not device.has_pools:
        # Only one thread at a time may enqueue work that uses this memory.
        key = _key(device, stream)
        # setdefault is atomic: all threads get the same lock.
        with process_state.now.turns.setdefault(key, threading.RLock()):
            yield from _turn_with_workspace(device, key, size_bytes, what)
        return
    with active(device):
        address = int(driver.call("cuMemAllocAsync", max(1, size_bytes), stream, what=what))
    try:
        yield address
    finally:
        with active(device):
            driver.bindings.cuMemFreeAsync(address, stream)


_Key = tuple[int, int, int]


def _key(device: Device, stream: int) -> _Key:
    """Return a unique key of a stream: handle 2 is a different stream in each thread."""
    return device.ordinal, stream, threading.get_ident() if stream == THREAD_STREAM else 0


def _turn_with_workspace(device: Device, key: _Key, size_bytes: int, what: str) -> Iterator[int]:
    """Provide the workspace of a stream, ordered after its previous uses.

    The handle may belong to a new stream, which does not wait for an old stream with the same
    handle. A graph gets a separate workspace: it may run concurrently with the stream it was
    captured in.
    """
    graph = capture_number(device, key[1])
    if graph:
        yield _workspace(device, (*key, graph), size_bytes, what)
        return
    uses: Uses = process_state.now.uses.setdefault(key, Uses())
    wait_for_moments(device, key[1], uses.before(number_of(device, key[1]), writes=True))
    try:
        yield _workspace(device, key, size_bytes, what)
    finally:
        with suppress(PallascError):
            moment = record(device, key[1])
            if moment is not None:
                uses.note(moment, writes=True)


def _workspace(device: Device, key: tuple[int, ...], size_bytes: int, what: str) -> int:
    """Return memory that belongs to a stream or a graph.

    A block that is too small is kept: work enqueued in the stream may still use it. Sizes at least
    double, so all blocks of a stream together take less than twice the last one.
    """
    workspaces = process_state.now.workspaces
    address, held_bytes = workspaces.get(key, (0, 0))
    if held_bytes < size_bytes:
        made_bytes = max(size_bytes, 2 * held_bytes)
        with active(device) as driver, outside_captures(driver):
            address = int(driver.call("cuMemAlloc", made_bytes, what=what))
        workspaces[key] = (address, made_bytes)
    return address
