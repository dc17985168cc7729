"""Streams of all kinds, and order between them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import foreign
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
    [(0, 0), (16, 16), (SimpleNamespace(cuda_stream=32), 32), (SimpleNamespace(ptr=40), 40),
     (_Protocol(), 48), (SimpleNamespace(__cuda_stream__=(0, 56)), 56), (_Number(), 64), (1, 1),
     (2, 2), (np.uint64(72), 72), (2**64 - 1, 2**64 - 1)],
)  # fmt: skip
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


@pytest.mark.parametrize("is_given", [True, False])
def test_out_is_ordered_with_its_own_stream(is_given: bool, runtime: Any, framework: Any) -> None:
    first, second = made.stream(), made.stream()
    streams = {"a": first, "b": None, "out": second}
    arrays = {
        name: foreign.CudaArray(framework.tensor("f32[4, 64]"), stream=stream)
        for name, stream in streams.items()
    }
    kernel = made.kernel(made.add())
    options = {"stream": first} if is_given else {}
    for _ in range(2):
        runtime.clear_log()
        kernel.into(**arrays, **options)
        names = ("cuEventRecord", "cuStreamWaitEvent", "cuLaunchKernelEx")
        assert [(call.name, call.stream) for call in runtime.calls(*names)] == [
            ("cuEventRecord", second), ("cuStreamWaitEvent", first), ("cuLaunchKernelEx", first),
            ("cuEventRecord", first), ("cuStreamWaitEvent", second),
        ]  # fmt: skip
    assert runtime.count("cuEventDestroy_v2") == 4


class _Producer:
    """An array with DLPack only, which remembers the streams that it was asked with."""

    def __init__(self, array: DeviceArray) -> None:
        self.array = array
        self.asked: list[int | None] = []

    @property
    def __cuda_array_interface__(self) -> Any:
        raise AttributeError("no name for its dtype")

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        self.asked.append(stream)
        return self.array.__dlpack__(stream=stream)


def test_a_dlpack_producer_is_asked_for_the_stream_of_the_launch(runtime: Any) -> None:
    mine = made.stream()
    a, b = (_Producer(DeviceArray((4, 64), "f32")) for _ in range(2))
    kernel = made.kernel(made.add())
    kernel(a, b)
    assert (a.asked, b.asked) == ([1], [1])
    assert runtime.count("cuStreamWaitEvent") == 0
    kernel(a, b, stream=mine)
    assert a.asked == [1, -1]
