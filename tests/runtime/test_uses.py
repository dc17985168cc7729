"""Device arrays know who reads and writes them, in whichever streams, also in streams that end."""

import random
from typing import Any

import made
import numpy as np
import pytest
from orders import races
from rig import in_thread

from pallasc.errors import ArgumentError
from pallasc.runtime.adapters.device_arrays import DeviceArray
from pallasc.runtime.device.devices import active, get_device

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2


def _destroy(stream: int) -> None:
    with active(get_device(0)) as driver:
        driver.call("cuStreamDestroy", stream, what="a stream")


def _arrays(count: int) -> list[DeviceArray]:
    return [DeviceArray((4, 64), "f32") for _ in range(count)]


def _of_add(launch: Any) -> tuple[list[int], list[int]]:
    return [launch.pointer(0), launch.pointer(1)], [launch.pointer(2)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("handles", ["new", "used again"])
def test_no_two_uses_of_an_array_race(handles: str, seed: int, runtime: Any) -> None:
    runtime.configure(asynchronous=1, reuse_streams=handles == "used again")
    chance = random.Random(seed)
    kernel, arrays = made.adder(runtime), _arrays(5)
    streams = [made.stream() for _ in range(3)]
    ones = np.ones((4, 64), np.float32)
    for _ in range(60):
        choice = chance.random()
        a, b, out = chance.sample(arrays, 3)
        if choice < 0.7:
            kernel.into(a, b, out=out, stream=chance.choice([None, 0, *streams]))
        elif choice < 0.75:
            a = arrays[arrays.index(out)] = kernel(a, b, stream=chance.choice(streams))
        elif choice < 0.83:
            a.copy_from(ones)
        elif choice < 0.9:
            a.to_bytes()
        else:
            place = chance.randrange(len(streams))
            _destroy(streams[place])
            streams[place] = made.stream()
    assert races(runtime, _of_add) == []


def test_the_oracle_sees_a_race(runtime: Any, framework: Any) -> None:
    kernel = made.kernel(made.add())
    a, b, c, d = (framework.tensor("f32[4, 64]") for _ in range(4))
    kernel.into(a, b, out=c, stream=made.stream())
    kernel.into(a, b, out=d, stream=made.stream())
    assert races(runtime, _of_add) == []
    kernel.into(a, c, out=d, stream=made.stream())
    assert len(races(runtime, _of_add)) == 2


def test_a_read_in_the_default_stream_is_not_forgotten_among_many(runtime: Any) -> None:
    runtime.configure(asynchronous=1)
    kernel, (a, b, c, out) = made.adder(runtime), _arrays(4)
    first = made.stream()
    kernel.into(c, c, out=b, stream=first)
    kernel.into(b, b, out=a, stream=first)
    kernel.into(a, a, out=out)
    out.to_bytes()  # now that read is over
    for _ in range(17):
        kernel(a, a, stream=made.stream())
    kernel.into(a, a, out=out)  # by the C extension, which notes nothing
    kernel.into(b, b, out=a, stream=made.stream())
    assert races(runtime, _of_add) == []


# ---- captures


def _uses(runtime: Any) -> None:
    """Copy, launch, read and export."""
    ones = np.ones((4, 64), np.float32)
    kernel, (a, b, out) = made.adder(runtime), _arrays(3)
    assert (kernel(ones, ones) == 2).all()
    a.copy_from(ones)
    kernel.into(a, b, out=out, stream=made.stream())
    assert len(out.to_bytes()) == 1024
    out.__dlpack__(stream=made.stream())
    assert out.__cuda_array_interface__["shape"] == (4, 64)


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED])
@pytest.mark.parametrize(("flags", "is_first"), [(0, True), (1, True), (1, False)])
def test_captures_of_all_threads_go_on(flags: int, mode: int, is_first: bool, runtime: Any) -> None:
    runtime.configure(asynchronous=1)
    if not is_first:
        in_thread(lambda: _uses(runtime))
    stream = made.stream(flags=flags)
    with made.capture(stream, mode):
        in_thread(lambda: _uses(runtime))
        _uses(runtime)  # nor is that of this thread ended


def test_arrays_of_numpy_are_no_part_of_the_stream_that_is_captured(runtime: Any) -> None:
    kernel, first = made.adder(runtime), np.ones((4, 64), np.float32)
    stream = made.stream()
    assert (kernel(first, first, stream=stream) == 2).all()
    assert runtime.launches[-1].stream == stream
    refused = pytest.raises(ArgumentError, match="is being captured, and copies of numpy arrays")
    with made.capture(stream), refused:
        kernel(first, first, stream=stream)


def test_copies_that_may_still_run_are_waited_for_when_a_later_one_fails(runtime: Any) -> None:
    kernel, first = made.adder(runtime), np.ones((4, 64), np.float32)
    kernel(first, first)
    runtime.clear_log()
    runtime.fault("cuMemcpyHtoDAsync_v2", 1, nth=2)
    with pytest.raises(Exception, match="an input of made cannot be copied"):
        kernel(first, first)
    names = [call.name for call in runtime.calls("cuMemcpyHtoDAsync_v2", "cuStreamSynchronize")]
    assert names == ["cuMemcpyHtoDAsync_v2"] * 2 + ["cuStreamSynchronize"]


def test_a_capture_cannot_wait_for_what_is_not_over(runtime: Any) -> None:
    runtime.configure(asynchronous=1)
    kernel, (a, b, out) = made.adder(runtime), _arrays(3)
    kernel.into(a, b, out=out, stream=made.stream())
    stream = made.stream()
    with made.capture(stream) as graph:
        kernel.into(out, b, out=a, stream=stream)  # a stream that is given is the caller's
    made.launch_graph(graph, stream)
    out.to_bytes()
    kernel.into(a, b, out=out)
