"""Routes: one program a device, plans by key, captures."""

from __future__ import annotations

from typing import Any

import made
import pytest

from pallasc.errors import DeviceError, DriverError
from pallasc.runtime.calls.launch import Route
from pallasc.runtime.device.devices import active, get_device, is_capturing
from pallasc.runtime.matching.candidates import Candidate


def _route(*targets: str) -> Route:
    names = targets or ("h100-sxm",)
    return Route([Candidate("made", {}, made.add(target=name)) for name in names])


def _key(framework: Any, device: int = 0, stream: int = 0) -> tuple[int, ...]:
    rows = [framework.tensor("f32[4, 64]", device=device) for _ in range(3)]
    return (stream, device, *(array.pointer for array in rows))


def _captured_stream() -> int:
    with active(get_device(0)) as driver:
        stream = driver.call("cuStreamCreate", 1, what="a stream")
        mode = driver.bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
        driver.call("cuStreamBeginCapture", stream, mode, what="a capture")
    return int(stream)


def test_a_plan_that_failed_is_dropped(runtime: Any, framework: Any) -> None:
    route, key = _route(), _key(framework)
    runtime.fault("cuLaunchKernelEx", 1)
    with pytest.raises(DriverError):
        route.launch(key)
    assert route.plans == {}
    route.launch(key)


def test_what_is_loaded_can_be_captured(runtime: Any, framework: Any) -> None:
    route = _route()
    route.program(0)
    key = _key(framework)
    stream = _captured_stream()
    assert is_capturing(get_device(0), stream)
    route.launch((stream, *key[1:]))
    assert runtime.launches == []  # it waits in the graph


def test_what_is_not_loaded_is_refused_in_a_capture(runtime: Any, framework: Any) -> None:
    key = _key(framework)
    stream = _captured_stream()
    with pytest.raises(DeviceError, match=r"is not loaded on GPU 0 .*, and its stream is being"):
        _route().launch((stream, *key[1:]))
