"""Streams of all kinds, and order between them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import made
import pytest

from pallasc.errors import ArgumentError
from pallasc.runtime.devices import active, get_device
from pallasc.runtime.streams import stream_handle


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
    ],
)
def test_a_stream_of_any_library_has_a_handle(stream: Any, handle: int) -> None:
    assert stream_handle(stream) == handle


@pytest.mark.parametrize("stream", ["fast", -1, 1.5, object(), True, b"x"])
def test_what_is_no_stream_is_refused(stream: Any) -> None:
    with pytest.raises(ArgumentError, match="stream must be a CUDA stream, not"):
        stream_handle(stream)


def _new_stream() -> int:
    with active(get_device(0)) as driver:
        return int(driver.call("cuStreamCreate", 1, what="a stream"))


class _Foreign:
    """An array with `__cuda_array_interface__` and a stream."""

    def __init__(self, pointer: int, stream: int | None) -> None:
        self.__cuda_array_interface__ = {
            "data": (pointer, False), "typestr": "<f4", "shape": (4, 64), "strides": None,
            "version": 3, "stream": stream,
        }  # fmt: skip


class _Interface(_Foreign):
    __cuda_array_interface__: Any = None


def test_the_launch_goes_into_the_stream_of_the_first_array_and_waits_for_others(
    runtime: Any, framework: Any
) -> None:
    first, second = _new_stream(), _new_stream()
    a, b, out = (framework.tensor("f32[4, 64]").pointer for _ in range(3))
    kernel = made.kernel(made.add())
    kernel.into(_Interface(a, first), _Interface(b, second), out=_Interface(out, None))
    (launch,) = runtime.launches
    assert launch.stream == first
    (record,) = runtime.calls("cuEventRecord")
    (wait,) = runtime.calls("cuStreamWaitEvent")
    assert (record.stream, wait.stream) == (second, first)
    assert runtime.count("cuEventDestroy_v2") == 1


def test_a_given_stream_waits_for_all_producers(runtime: Any, framework: Any) -> None:
    first, mine = _new_stream(), _new_stream()
    a, b, out = (framework.tensor("f32[4, 64]").pointer for _ in range(3))
    kernel = made.kernel(made.add())
    kernel.into(_Interface(a, first), _Interface(b, mine), out=_Interface(out, None), stream=mine)
    assert [one.stream for one in runtime.launches] == [mine]
    assert runtime.count("cuStreamWaitEvent") == 1
