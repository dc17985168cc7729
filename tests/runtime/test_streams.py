"""Streams of all kinds, and order between them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import made
import numpy as np
import pytest

from pallasc.errors import ArgumentError
from pallasc.runtime.adapters.device_arrays import DeviceArray
from pallasc.runtime.device.streams import stream_handle


class _Protocol:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 48


class _Number:
    def __int__(self) -> int:
        return 64


@pytest.mark.parametrize(
    ("stream", "handle"),
    [
        (0, 0),
        (16, 16),
        (SimpleNamespace(cuda_stream=32), 32),
        (SimpleNamespace(ptr=40), 40),
        (_Protocol(), 48),
        (SimpleNamespace(__cuda_stream__=(0, 56)), 56),
        (_Number(), 64),
        (1, 1),
        (2, 2),
        (np.uint64(72), 72),
        (2**64 - 1, 2**64 - 1),
    ],
)
def test_a_stream_of_any_library_has_a_handle(stream: Any, handle: int) -> None:
    assert stream_handle(stream) == handle


@pytest.mark.parametrize(
    "stream",
    [
        "fast", -1, 1.5, object(), True, b"x", b"1", 2**64, [], (0, 1), {}, 1j,
        np.float32(2), np.bool_(True), np.arange(2),
        SimpleNamespace(cuda_stream=-1), SimpleNamespace(cuda_stream=True),
        SimpleNamespace(cuda_stream="16"), SimpleNamespace(ptr=1.0), SimpleNamespace(ptr=None),
        SimpleNamespace(__cuda_stream__=None), SimpleNamespace(__cuda_stream__=7),
        SimpleNamespace(__cuda_stream__=(0, 1, 2)), SimpleNamespace(__cuda_stream__=(0, None)),
        SimpleNamespace(__cuda_stream__=(0, -1)), SimpleNamespace(__cuda_stream__=(0, True)),
        SimpleNamespace(__cuda_stream__=lambda: "no"),
    ],
)  # fmt: skip
def test_what_is_no_stream_is_refused(stream: Any) -> None:
    with pytest.raises(ArgumentError, match="stream must be a CUDA stream, not"):
        stream_handle(stream)


class _Foreign:
    """An array with `__cuda_array_interface__` and a stream."""

    def __init__(self, pointer: int, stream: int | None) -> None:
        self.__cuda_array_interface__ = {
            "data": (pointer, False), "typestr": "<f4", "shape": (4, 64), "strides": None,
            "version": 3, "stream": stream,
        }  # fmt: skip


class _Interface(_Foreign):
    __cuda_array_interface__: Any = None


@pytest.mark.parametrize("is_given", [True, False])
def test_out_of_another_stream_is_ordered_on_both_sides(
    is_given: bool, runtime: Any, framework: Any
) -> None:
    first, second = made.stream(), made.stream()
    a, b, out = (framework.tensor("f32[4, 64]").pointer for _ in range(3))
    kernel = made.kernel(made.add())
    options = {"stream": first} if is_given else {}
    for _ in range(2):
        runtime.clear_log()
        kernel.into(
            _Interface(a, first), _Interface(b, None), out=_Interface(out, second), **options
        )
        names = ("cuEventRecord", "cuStreamWaitEvent", "cuLaunchKernelEx")
        assert [(call.name, call.stream) for call in runtime.calls(*names)] == [
            ("cuEventRecord", second), ("cuStreamWaitEvent", first), ("cuLaunchKernelEx", first),
            ("cuEventRecord", first), ("cuStreamWaitEvent", second),
        ]  # fmt: skip
    assert runtime.count("cuEventDestroy_v2") == 4


def test_device_arrays_keep_the_order_of_their_streams(runtime: Any) -> None:
    runtime.configure(asynchronous=1)
    first, second = made.stream(), made.stream()
    a, b = (DeviceArray((4, 64), "f32") for _ in range(2))
    adds = made.kernel(made.add())
    total = adds(a, b, stream=first)
    again = adds(total, b, stream=first)
    assert runtime.count("cuStreamWaitEvent") == 0
    kept = [adds(again, b, stream=second)]  # its end would wait for the launch
    assert runtime.count("cuStreamWaitEvent") == 1  # for what wrote it
    updates = made.kernel(made.artifact(made.launch("two", 0, 1), outputs=["b"]))
    assert updates(a, b, stream=second) is b
    assert runtime.count("cuStreamWaitEvent") == 2  # for what reads b in the first one
    kept.append(adds(a, b))
    assert runtime.launches[-1].stream == 0
    assert runtime.count("cuStreamWaitEvent") == 3  # for what wrote b


class _Producer:
    """An array with DLPack only, which remembers the streams that it was asked with."""

    def __init__(self, array: DeviceArray) -> None:
        self.array = array
        self.asked: list[int | None] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        self.asked.append(stream)
        return self.array.__dlpack__(stream=stream)


class _Nameless(_Producer):
    @property
    def __cuda_array_interface__(self) -> Any:
        raise AttributeError("no name for its dtype")


@pytest.mark.parametrize("kind", [_Producer, _Nameless])
def test_a_dlpack_producer_is_asked_for_the_stream_of_the_launch(runtime: Any, kind: Any) -> None:
    mine = made.stream()
    a, b = (kind(DeviceArray((4, 64), "f32")) for _ in range(2))
    kernel = made.kernel(made.add())
    kernel(a, b)
    assert (a.asked, b.asked) == ([1], [1])
    assert runtime.count("cuStreamWaitEvent") == 0
    kernel(a, b, stream=mine)
    assert a.asked == [1, -1]
