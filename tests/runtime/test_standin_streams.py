"""Streams, events, captures and graphs of the stand-in."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from rig import NO_PARAMETERS, Rig, code_of, cubin, pointer, value_of
from standin import Launch, Standin

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
NONE, ACTIVE, INVALIDATED = 0, 1, 2


def _mode(rig: Rig, number: int) -> Any:
    return rig.driver.CUstreamCaptureMode(number)


def _status(rig: Rig, stream: Any) -> int:
    return int(value_of(rig.driver.cuStreamIsCapturing(stream)))


def _stream(rig: Rig, flags: int = 1) -> Any:
    return value_of(rig.driver.cuStreamCreate(flags))


def _begin(rig: Rig, stream: Any, mode: int = GLOBAL) -> None:
    assert code_of(rig.driver.cuStreamBeginCapture(stream, _mode(rig, mode))) == 0


def test_a_stream_knows_its_context(standin: Standin) -> None:
    standin.devices("9.0", "9.0")
    rig = Rig(standin, cubin("sm_90a")).start()
    own = rig.use(1)
    stream = _stream(rig)
    rig.use(0)
    assert int(value_of(rig.driver.cuStreamGetCtx(stream))) == int(own)


def test_a_destroyed_stream_is_an_invalid_handle(rig: Rig) -> None:
    stream = _stream(rig)
    assert code_of(rig.driver.cuStreamDestroy(stream)) == 0
    assert code_of(rig.driver.cuStreamDestroy(stream)) == 400
    assert rig.launch("none", stream=stream) == 400
    assert code_of(rig.driver.cuStreamCreate(2)) == 1


def test_streams_end_with_their_context(rig: Rig) -> None:
    stream = _stream(rig)
    assert code_of(rig.driver.cuDevicePrimaryCtxReset(0)) == 0
    assert code_of(rig.driver.cuStreamSynchronize(stream)) == 400
    assert rig.launch("none") == 709


def test_events_measure_the_time_between_them(standin: Standin, rig: Rig) -> None:
    driver = rig.driver
    standin.configure(kernel_ns=1500)
    start, end = (value_of(driver.cuEventCreate(0)) for _ in range(2))
    assert code_of(driver.cuEventElapsedTime(start, end)) == 400
    assert code_of(driver.cuEventRecord(start, 0)) == 0
    for _ in range(4):
        assert rig.launch("none") == 0
    assert code_of(driver.cuEventRecord(end, 0)) == 0
    assert code_of(driver.cuEventSynchronize(end)) == 0
    assert code_of(driver.cuEventQuery(end)) == 0
    assert value_of(driver.cuEventElapsedTime(start, end)) == pytest.approx(0.006)
    assert code_of(driver.cuEventDestroy(end)) == 0
    assert code_of(driver.cuEventRecord(end, 0)) == 400


def test_an_event_without_timing_measures_nothing(rig: Rig) -> None:
    driver = rig.driver
    events = [value_of(driver.cuEventCreate(2)) for _ in range(2)]
    for event in events:
        assert code_of(driver.cuEventRecord(event, 0)) == 0
    assert code_of(driver.cuEventElapsedTime(*events)) == 400
    assert code_of(driver.cuEventCreate(8)) == 1


def test_an_event_belongs_to_a_context(standin: Standin) -> None:
    standin.devices("9.0", "9.0")
    rig = Rig(standin, cubin("sm_90a")).start()
    event = value_of(rig.driver.cuEventCreate(0))
    rig.use(1)
    stream = _stream(rig)
    assert code_of(rig.driver.cuEventRecord(event, stream)) == 400
    assert code_of(rig.driver.cuStreamWaitEvent(stream, event, 0)) == 0


def test_an_event_tells_an_earlier_failure(standin: Standin, rig: Rig) -> None:
    event = value_of(rig.driver.cuEventCreate(0))
    assert code_of(rig.driver.cuEventRecord(event, 0)) == 0
    standin.break_context(719)
    assert code_of(rig.driver.cuEventSynchronize(event)) == 719


def test_a_graph_runs_what_was_captured_each_time_it_is_launched(
    standin: Standin, rig: Rig
) -> None:
    driver, address = rig.driver, rig.allocate(64)
    numbers = []

    @standin.kernel("four")
    def count(launch: Launch) -> None:
        value = launch.array(0, "int32", (1,))
        numbers.append(int(value[0]))
        value[0] += 1

    stream = _stream(rig)
    _begin(rig, stream)
    assert _status(rig, stream) == ACTIVE
    assert code_of(driver.cuMemsetD32Async(address, 5, 1, stream)) == 0
    for _ in range(2):
        assert rig.launch("four", [pointer(address)] * 4, stream=stream) == 0
    assert (numbers, standin.launches) == ([], [])
    graph = value_of(driver.cuStreamEndCapture(stream))
    assert _status(rig, stream) == NONE
    assert value_of(driver.cuGraphGetNodes(graph))[1] == 3
    executable = value_of(driver.cuGraphInstantiate(graph, 0))
    for _ in range(2):
        assert code_of(driver.cuGraphLaunch(executable, stream)) == 0
    assert numbers == [5, 6, 5, 6]
    assert all(launch.replayed for launch in standin.launches)
    assert code_of(driver.cuGraphExecDestroy(executable)) == 0
    assert code_of(driver.cuGraphLaunch(executable, stream)) == 1


def test_a_graph_over_freed_memory_breaks_the_context(rig: Rig) -> None:
    driver, address = rig.driver, rig.allocate(64)
    stream = _stream(rig)
    _begin(rig, stream)
    assert rig.launch("four", [pointer(address)] * 4, stream=stream) == 0
    executable = value_of(driver.cuGraphInstantiate(value_of(driver.cuStreamEndCapture(stream)), 0))
    assert code_of(driver.cuMemFree(address)) == 0
    assert code_of(driver.cuGraphLaunch(executable, stream)) == 0
    assert rig.synchronize() == 700


# What must not happen while a stream captures, with its result; each ends the capture.
FORBIDDEN: dict[str, tuple[Callable[[Any, Any, int], Any], int]] = {
    "allocate": (lambda d, s, a: d.cuMemAlloc(16), 900),
    "free": (lambda d, s, a: d.cuMemFree(a), 900),
    "copy and wait": (lambda d, s, a: d.cuMemcpyHtoD(a, bytes(8), 8), 900),
    "fill and wait": (lambda d, s, a: d.cuMemsetD8(a, 0, 8), 900),
    "wait for the context": (lambda d, s, a: d.cuCtxSynchronize(), 900),
    "wait for the stream": (lambda d, s, a: d.cuStreamSynchronize(s), 900),
    "ask the stream": (lambda d, s, a: d.cuStreamQuery(s), 900),
}


@pytest.mark.parametrize(("call", "code"), FORBIDDEN.values(), ids=FORBIDDEN)
def test_an_unsafe_call_ends_a_capture(
    rig: Rig, call: Callable[[Any, Any, int], Any], code: int
) -> None:
    address, stream = rig.allocate(64), _stream(rig)
    _begin(rig, stream)
    assert code_of(call(rig.driver, stream, address)) == code
    assert _status(rig, stream) == INVALIDATED
    assert rig.launch("none", stream=stream) == 901
    assert code_of(rig.driver.cuStreamEndCapture(stream)) == 901
    assert _status(rig, stream) == NONE
    assert code_of(call(rig.driver, stream, address)) == 0


def test_a_relaxed_thread_may_allocate_during_a_capture(rig: Rig) -> None:
    stream = _stream(rig)
    _begin(rig, stream)
    old = value_of(rig.driver.cuThreadExchangeStreamCaptureMode(_mode(rig, RELAXED)))
    assert code_of(rig.driver.cuMemAlloc(16)) == 0
    assert int(old) == GLOBAL
    rig.driver.cuThreadExchangeStreamCaptureMode(old)
    assert code_of(rig.driver.cuStreamEndCapture(stream)) == 0


@pytest.mark.parametrize(("mode", "code"), [(GLOBAL, 900), (THREAD_LOCAL, 0), (RELAXED, 0)])
def test_a_capture_in_another_thread_forbids_only_in_the_global_mode(
    rig: Rig, mode: int, code: int
) -> None:
    stream, codes = _stream(rig), []
    _begin(rig, stream, mode)

    def allocate() -> None:
        rig.use(0)
        codes.append(code_of(rig.driver.cuMemAlloc(16)))

    thread = threading.Thread(target=allocate)
    thread.start()
    thread.join()
    assert codes == [code]
    # What was forbidden has ended the capture.
    assert code_of(rig.driver.cuStreamEndCapture(stream)) == (901 if code else 0)


def test_the_legacy_stream_cannot_be_used_while_a_blocking_stream_captures(rig: Rig) -> None:
    blocking, free = _stream(rig, 0), _stream(rig, 1)
    _begin(rig, free)
    assert rig.launch("none") == 0
    assert code_of(rig.driver.cuStreamEndCapture(free)) == 0
    _begin(rig, blocking)
    assert rig.launch("none") == 906
    assert code_of(rig.driver.cuStreamEndCapture(blocking)) == 901
    assert code_of(rig.driver.cuStreamBeginCapture(0, _mode(rig, GLOBAL))) == 900


def test_the_stream_of_a_thread_can_capture(rig: Rig) -> None:
    per_thread = rig.driver.CU_STREAM_PER_THREAD
    _begin(rig, per_thread)
    assert rig.launch("none", stream=per_thread) == 0
    graph = value_of(rig.driver.cuStreamEndCapture(per_thread))
    assert value_of(rig.driver.cuGraphGetNodes(graph))[1] == 1


def test_a_graph_cannot_launch_what_was_unloaded(rig: Rig) -> None:
    driver = rig.driver
    stream = _stream(rig)
    _begin(rig, stream)
    assert rig.launch("none", stream=stream) == 0
    graph = value_of(driver.cuGraphInstantiate(value_of(driver.cuStreamEndCapture(stream)), 0))
    assert code_of(driver.cuGraphLaunch(graph, stream)) == 0
    assert rig.synchronize() == 0
    assert code_of(driver.cuLibraryUnload(rig.library)) == 0
    assert code_of(driver.cuGraphLaunch(graph, stream)) == 0
    assert rig.synchronize() == 700
    assert len(rig.standin.launches) == 1


def test_a_stream_that_waits_for_a_capture_takes_part_in_it(rig: Rig) -> None:
    driver = rig.driver
    first, second = _stream(rig), _stream(rig)
    event = value_of(driver.cuEventCreate(2))
    _begin(rig, first)
    assert code_of(driver.cuEventRecord(event, first)) == 0
    assert code_of(driver.cuEventSynchronize(event)) == 907
    assert code_of(driver.cuStreamWaitEvent(second, event, 0)) == 0
    assert _status(rig, second) == ACTIVE
    assert rig.launch("none", stream=second) == 0
    assert code_of(driver.cuStreamEndCapture(second)) == 903
    graph = value_of(driver.cuStreamEndCapture(first))
    assert _status(rig, second) == NONE
    assert value_of(driver.cuGraphGetNodes(graph))[1] == 1


def test_a_capture_ends_in_the_thread_that_began_it(rig: Rig) -> None:
    stream, codes = _stream(rig), []
    _begin(rig, stream, THREAD_LOCAL)
    thread = threading.Thread(
        target=lambda: codes.append(code_of(rig.driver.cuStreamEndCapture(stream)))
    )
    thread.start()
    thread.join()
    assert codes == [908]
    assert code_of(rig.driver.cuStreamEndCapture(stream)) == 0
    assert code_of(rig.driver.cuStreamEndCapture(stream)) == 401


def test_memory_allocated_in_a_capture_is_there_when_the_graph_runs(rig: Rig) -> None:
    driver, stream = rig.driver, _stream(rig)
    outside = value_of(driver.cuMemAllocAsync(64, stream))
    _begin(rig, stream)
    inside = value_of(driver.cuMemAllocAsync(64, stream))
    assert rig.launch("four", [pointer(inside)] * 4, stream=stream) == 0
    assert code_of(driver.cuMemFreeAsync(inside, stream)) == 0
    assert code_of(driver.cuMemFreeAsync(outside, stream)) == 1
    executable = value_of(driver.cuGraphInstantiate(value_of(driver.cuStreamEndCapture(stream)), 0))
    assert code_of(driver.cuGraphLaunch(executable, stream)) == 0
    assert rig.synchronize() == 0


def test_capture_info_tells_status_and_number(rig: Rig) -> None:
    stream = _stream(rig)
    assert int(value_of(rig.driver.cuStreamGetCaptureInfo(stream))[0]) == NONE
    _begin(rig, stream)
    status, number, *_ = value_of(rig.driver.cuStreamGetCaptureInfo(stream))
    assert (int(status), int(number) > 0) == (ACTIVE, True)
    assert code_of(rig.driver.cuStreamEndCapture(stream)) == 0


def test_a_thread_that_waits_ends_captures_of_others_unless_it_is_relaxed(rig: Rig) -> None:
    driver = rig.driver
    stream, other = _stream(rig), _stream(rig)
    event = value_of(driver.cuEventCreate(2))
    assert code_of(driver.cuEventRecord(event, other)) == 0
    calls: list[Callable[[], Any]] = [
        lambda: driver.cuStreamSynchronize(other), lambda: driver.cuStreamQuery(other),
        lambda: driver.cuEventSynchronize(event), lambda: driver.cuEventQuery(event),
    ]  # fmt: skip
    codes: list[int] = []

    def run(call: Callable[[], Any], mode: int) -> None:
        rig.use(0)
        driver.cuThreadExchangeStreamCaptureMode(_mode(rig, mode))
        codes.append(code_of(call()))

    for mode, code, end in ((GLOBAL, 900, 901), (THREAD_LOCAL, 0, 0), (RELAXED, 0, 0)):
        for call in calls:
            _begin(rig, stream)
            thread = threading.Thread(target=run, args=(call, mode))
            thread.start()
            thread.join()
            assert codes.pop() == code
            assert code_of(driver.cuStreamEndCapture(stream)) == end


def test_a_capture_depends_on_nothing_outside_of_it(rig: Rig) -> None:
    driver = rig.driver
    first, second, other = _stream(rig), _stream(rig), _stream(rig)
    event = value_of(driver.cuEventCreate(2))
    _begin(rig, first)
    assert code_of(driver.cuStreamWaitEvent(first, event, 0)) == 0  # never recorded: no work
    assert code_of(driver.cuEventRecord(event, other)) == 0
    assert code_of(driver.cuStreamWaitEvent(first, event, 0)) == 905
    assert code_of(driver.cuStreamEndCapture(first)) == 901
    _begin(rig, first)
    _begin(rig, second)
    assert code_of(driver.cuEventRecord(event, first)) == 0
    assert code_of(driver.cuStreamWaitEvent(second, event, 0)) == 902
    assert code_of(driver.cuStreamEndCapture(second)) == 901


def test_events_do_not_reach_the_legacy_stream_beside_a_blocking_capture(rig: Rig) -> None:
    driver = rig.driver
    blocking = _stream(rig, 0)
    event = value_of(driver.cuEventCreate(2))
    for call in (driver.cuEventRecord, lambda e, s: driver.cuStreamWaitEvent(s, e, 0)):
        _begin(rig, blocking)
        assert code_of(driver.cuStreamIsCapturing(0)) == 906
        assert code_of(driver.cuStreamGetCaptureInfo(0)) == 906
        assert _status(rig, blocking) == ACTIVE, "asking does not end it"
        assert code_of(call(event, 0)) == 906
        assert code_of(driver.cuStreamEndCapture(blocking)) == 901


def test_a_kernel_reaches_the_memory_of_its_own_context(rig: Rig) -> None:
    driver = rig.driver
    ours, pooled = rig.allocate(64), int(value_of(driver.cuMemAllocAsync(64, 0)))
    own = value_of(driver.cuCtxCreate(*NO_PARAMETERS, 0, 0))
    theirs = rig.allocate(64)
    assert rig.launch("four", [pointer(theirs), *[pointer(pooled)] * 3]) == 0
    assert rig.synchronize() == 0
    assert rig.launch("four", [pointer(ours)] * 4) == 0
    assert rig.synchronize() == 700
    assert code_of(driver.cuCtxDestroy(own)) == 0
