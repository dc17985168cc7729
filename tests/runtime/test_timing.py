"""Times of launches, on the stand-in, whose events tell what a test says."""

from typing import Any

import made
import pytest
from rig import NO_PARAMETERS

from pallasc.errors import DriverError
from pallasc.runtime.adapters.device_arrays import DeviceArray
from pallasc.runtime.calls.launch import Route
from pallasc.runtime.device.devices import get_device
from pallasc.runtime.device.streams import default_tail
from pallasc.runtime.matching.candidates import Candidate
from pallasc.runtime.timing import time_launches


def _time(artifact: Any, **options: Any) -> list[float]:
    route = Route([Candidate("made", {}, artifact)])
    arrays = [DeviceArray((4, 64), "f32") for _ in range(3)]
    pointers = [array.pointer for array in arrays]
    given = {"repeats": 3, "warmup": 2, **options}
    return time_launches(route, get_device(0), pointers, **given)


def _order(runtime: Any) -> list[str]:
    names = ("cuMemsetD8Async", "cuLaunchKernelEx", "cuEventRecord", "cuCtxSynchronize")
    short = {"cuMemsetD8Async": "flush", "cuLaunchKernelEx": "launch", "cuEventRecord": "event"}
    return [short.get(call.name, "wait") for call in runtime.calls(*names)]


def test_each_launch_lies_between_its_events(runtime: Any) -> None:
    taken_ns = iter([1000, 1000, 5000, 7000, 6000])
    runtime.kernel("*")(lambda _: runtime.configure(kernel_ns=next(taken_ns)))
    runtime.configure(kernel_ns=1)
    assert _time(made.add(), cold=True) == pytest.approx([5, 7, 6])
    assert runtime.live()[0] == 0
    assert runtime.count("cuEventDestroy_v2") == 6
    assert runtime.count("cuEventCreate") == 7  # that of the default stream stays
    assert _order(runtime) == [
        "launch", "launch", "wait",
        *(["flush", "event", "launch", "event"] * 3), "wait",
    ]  # fmt: skip


def test_a_warm_launch_has_another_one_in_front(runtime: Any) -> None:
    runtime.configure(kernel_ns=2000)
    assert _time(made.add(), warmup=0) == pytest.approx([2.0] * 3)
    assert _order(runtime) == [
        "wait", *(["flush", "launch", "event", "launch", "event"] * 3), "wait"
    ]  # fmt: skip


ELAPSED = "cuEventElapsedTime_v2" if NO_PARAMETERS else "cuEventElapsedTime"
"""The function that the binding calls: another since CUDA 13."""


@pytest.mark.parametrize(
    ("function", "code", "text"),
    [
        ("cuLaunchKernelEx", 701, "made@h100-sxm cannot be launched: cuLaunchKernelEx answers"),
        ("cuEventCreate", 2, "made cannot be timed on GPU 0 (Stand-in H100, sm_90): cuEventCreate"),
        (ELAPSED, 600, "made cannot be timed on GPU 0"),
        ("cuMemAlloc_v2", 2, "cannot allocate "),
    ],
)
def test_errors_of_the_driver_are_said(function: str, code: int, text: str, runtime: Any) -> None:
    default_tail(get_device(0))
    runtime.fault(function, code, nth=0)
    with pytest.raises(DriverError) as caught:
        _time(made.add())
    assert text in caught.value.message
    assert caught.value.code == code
    runtime.clear_faults()
