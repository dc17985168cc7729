"""Memory of our own: with pools and without."""

from __future__ import annotations

import threading
from typing import Any

import made
import pytest

from pallasc.errors import DriverError
from pallasc.runtime.device import streams
from pallasc.runtime.device.devices import Device, get_device, state
from pallasc.runtime.device.streams import temporary, upload


def _without_pools(device: Device) -> Device:
    from dataclasses import replace

    return replace(device, has_pools=False)


def test_temporary_memory_is_freed_after_an_error(runtime: Any) -> None:
    before = runtime.live()
    with pytest.raises(KeyError), temporary(get_device(0), 1000, 0, "memory"):
        raise KeyError
    assert runtime.live() == before


def test_without_pools_a_stream_has_a_workspace_that_grows(runtime: Any) -> None:
    device = _without_pools(get_device(0))
    found = []
    for size in (1000, 500, 5000, 5000):
        with temporary(device, size, 0, "memory") as address:
            start, length, _ = runtime.allocation(address)
            assert start == address
            assert length >= size
            found.append(address)
    assert found[0] == found[1]
    assert found[2] == found[3]
    with temporary(device, 10, made.stream(), "memory") as address:
        assert address not in found
    assert runtime.count("cuMemAllocAsync") == 0


def test_a_workspace_that_cannot_grow_stays_as_it_was(runtime: Any) -> None:
    device = _without_pools(get_device(0))
    with temporary(device, 100, 0, "memory") as before:
        pass
    runtime.fault("cuMemAlloc_v2", 2)
    with (
        pytest.raises(Exception, match="memory: cuMemAlloc answers"),
        temporary(device, 5000, 0, "memory"),
    ):
        pass
    with temporary(device, 100, 0, "memory") as after:
        assert after == before


def test_without_pools_one_thread_at_a_time_has_the_workspace(runtime: Any) -> None:
    device = _without_pools(get_device(0))
    uses: list[str] = []

    def use() -> None:
        with temporary(device, 100, 0, "memory"):
            uses.append("second")

    other = threading.Thread(target=use)
    with temporary(device, 100, 0, "memory"):
        other.start()
        turn = state.turns[streams._key(device, 0)]
        assert turn.acquire(blocking=False)  # its own thread has it again
        turn.release()
        uses.append("first")
    other.join()
    assert uses == ["first", "second"]


def test_artifacts_share_their_constants(runtime: Any, framework: Any) -> None:
    a, b = (framework.tensor("f32[4, 64]") for _ in range(2))
    for _ in range(3):
        artifact = made.artifact(made.launch("four", 0, 1, 2, 3), constants=[b"1234"])
        made.kernel(artifact)(a, b)
    assert len({launch.pointer(3) for launch in runtime.launches}) == 1
    assert runtime.count("cuMemcpyHtoDAsync_v2") == 1


def test_a_constant_that_cannot_be_copied_leaves_nothing_behind(runtime: Any) -> None:
    before = runtime.live()
    runtime.fault("cuMemcpyHtoDAsync_v2", 1)
    with pytest.raises(DriverError, match="a constant: cuMemcpyHtoDAsync answers"):
        upload(get_device(0), "digest", b"constant", "a constant")
    assert runtime.live() == before
    assert upload(get_device(0), "digest", b"constant", "a constant")


def test_temporaries_come_from_the_framework_where_it_has_a_pool(
    runtime: Any, framework: Any
) -> None:
    artifact = made.artifact(made.launch("four", 0, 1, 2, 3), temporaries=[512])
    kernel = made.kernel(artifact)
    a, b = (framework.tensor("f32[4, 64]") for _ in range(2))
    kernel(a, b)
    assert runtime.count("cuMemAllocAsync") == 0
    framework.has_pool = False
    made.kernel(artifact)(a, b)
    assert runtime.count("cuMemAllocAsync") == 1
    assert runtime.count("cuMemFreeAsync") == 1


def test_a_new_stream_with_the_handle_of_an_old_one_waits_for_its_workspace(runtime: Any) -> None:
    from pallasc.runtime.device.devices import active

    runtime.configure(asynchronous=1, reuse_streams=1)
    device = _without_pools(get_device(0))
    first = made.stream()
    with temporary(device, 100, first, "memory"):
        pass
    with temporary(device, 100, first, "memory"):
        pass
    assert runtime.count("cuStreamWaitEvent") == 0
    with active(device) as driver:
        driver.call("cuStreamDestroy", first, what="a stream")
    assert made.stream() == first
    with temporary(device, 100, first, "memory"):
        assert [call.stream for call in runtime.calls("cuStreamWaitEvent")] == [first]


def test_a_graph_has_a_workspace_of_its_own(runtime: Any) -> None:
    from pallasc.runtime.device.devices import active

    device, stream = _without_pools(get_device(0)), made.stream()
    found = []
    with temporary(device, 100, stream, "memory") as address:
        found.append(address)
    for _ in range(2):
        with active(device) as driver:
            mode = driver.bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
            driver.call("cuStreamBeginCapture", stream, mode, what="a capture")
            for _ in range(2):
                with temporary(device, 100, stream, "memory") as address:
                    found.append(address)
            driver.call("cuStreamEndCapture", stream, what="a capture")
    assert found[1] == found[2]
    assert found[3] == found[4]
    assert len(set(found)) == 3
    with temporary(device, 100, stream, "memory") as address:
        assert address == found[0]
