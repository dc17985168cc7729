"""Routes: one program a device, captures, forks."""

from __future__ import annotations

from typing import Any

import made

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


def test_what_is_loaded_can_be_captured(runtime: Any, framework: Any) -> None:
    route = _route()
    route.program(0)
    pointers = _pointers(framework)
    stream = _captured_stream()
    assert is_capturing(get_device(0), stream)
    route.enqueue(stream, 0, pointers)
    assert runtime.launches == []  # it waits in the graph


def test_nothing_of_before_a_fork_is_left(runtime: Any, framework: Any) -> None:
    route, pointers = _route(), _pointers(framework)
    route.enqueue(0, 0, pointers)
    made.forget()
    assert route._programs == {}
