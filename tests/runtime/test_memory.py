"""Memory of our own: with pools and without."""

from typing import Any

import made
import pytest
from msgspec.structs import replace

from pallasc.errors import DeviceError, DriverError
from pallasc.runtime.device.devices import Device, get_device
from pallasc.runtime.device.streams import temporary, upload


def _without_pools(device: Device) -> Device:
    return replace(device, has_pools=False)


def test_without_pools_memory_is_freed_when_the_stream_is_done(runtime: Any) -> None:
    device, before = _without_pools(get_device(0)), runtime.live()
    for stream in (0, made.stream()):
        with temporary(device, 1000, stream, "memory") as address:
            start, length, _ = runtime.allocation(address)
            assert (start, length >= 1000) == (address, True)
            waited = runtime.count("cuStreamSynchronize")
        assert runtime.count("cuStreamSynchronize") == waited + 1
    assert runtime.count("cuMemAllocAsync") == 0
    assert runtime.live() == before


def test_without_pools_a_capture_is_refused_and_goes_on(runtime: Any) -> None:
    device, stream = _without_pools(get_device(0)), made.stream()
    refused = pytest.raises(DeviceError, match=r"no memory pools, and stream .* is being captured")
    with made.capture(stream), refused, temporary(device, 100, stream, "memory"):
        pass


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


def test_temporaries_come_from_the_framework_s_pool(runtime: Any, framework: Any) -> None:
    artifact = made.artifact(made.launch("four", 0, 1, 2, 3), temporaries=[512])
    kernel = made.kernel(artifact)
    a, b = (framework.tensor("f32[4, 64]") for _ in range(2))
    kernel(a, b)
    assert runtime.count("cuMemAllocAsync") == 0
    framework.has_pool = False
    made.kernel(artifact)(a, b)
    assert runtime.count("cuMemAllocAsync") == 1
    assert runtime.count("cuMemFreeAsync") == 1
