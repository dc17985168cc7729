"""Routes: one program a device, captures, forks."""

from __future__ import annotations

from typing import Any

import made
import pytest

from pallasc.errors import DeviceError, SelectionError
from pallasc.runtime.calls.launch import Route
from pallasc.runtime.device.devices import active, get_device, is_capturing
from pallasc.runtime.matching.candidates import Candidate


def _route(*targets: str) -> Route:
    names = targets or ("h100-sxm",)
    return Route([Candidate("made", {}, made.add(target=name)) for name in names])


def _pointers(framework: Any, device: int = 0) -> list[int]:
    return [framework.tensor("f32[4, 64]", device=device).pointer for _ in range(3)]


def _captured_stream() -> int:
    with active(get_device(0)) as driver:
        stream = driver.call("cuStreamCreate", 1, what="a stream")
        mode = driver.bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
        driver.call("cuStreamBeginCapture", stream, mode, what="a capture")
    return int(stream)


def test_each_device_gets_the_variant_for_it(runtime: Any, framework: Any) -> None:
    runtime.devices("9.0", "10.0")
    route = _route("h100-sxm", "b200")
    for device in (0, 1):
        route.enqueue(0, device, _pointers(framework, device))
    assert [launch.device for launch in runtime.launches] == [0, 1]
    assert "b200" in route.program(1).name
    assert "h100-sxm" in route.program(0).name


def test_a_device_without_a_variant_is_refused(runtime: Any, framework: Any) -> None:
    runtime.devices("9.0", "8.0")
    with pytest.raises(SelectionError, match="no variant of made fits GPU 1"):
        _route().enqueue(0, 1, _pointers(framework, 1))


def test_what_is_loaded_can_be_captured(runtime: Any, framework: Any) -> None:
    route = _route()
    route.program(0)
    pointers = _pointers(framework)
    stream = _captured_stream()
    assert is_capturing(get_device(0), stream)
    route.enqueue(stream, 0, pointers)
    assert runtime.launches == []  # it waits in the graph


def test_what_is_not_loaded_is_refused_in_a_capture(runtime: Any, framework: Any) -> None:
    pointers = _pointers(framework)
    stream = _captured_stream()
    with pytest.raises(DeviceError, match=r"is not loaded on GPU 0 .*, and its stream is being"):
        _route().enqueue(stream, 0, pointers)


def test_nothing_of_before_a_fork_is_left(runtime: Any, framework: Any) -> None:
    route, pointers = _route(), _pointers(framework)
    route.enqueue(0, 0, pointers)
    made.forget()
    assert route._programs == {}
