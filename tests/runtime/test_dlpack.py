"""Arrays with `__dlpack__` alone: capsules with and without a version, and what is refused."""

from __future__ import annotations

from typing import Any

import foreign
import made
import numpy as np
import pytest

from pallasc.errors import ArgumentError
from pallasc.runtime.adapters.device_arrays import DeviceArray

TEXT = "f32[4, 64]"
VERSIONS = [None, (1, 0), (1, 3)]


@pytest.mark.parametrize("version", VERSIONS)
def test_results_are_device_arrays(version: Any, adds: Any, framework: Any) -> None:
    a, b = (foreign.DlpackArray(framework.tensor(TEXT, values=n), version=version) for n in (1, 2))
    for _ in range(2):
        out = adds(a, b)
        assert isinstance(out, DeviceArray)
        assert np.frombuffer(out.to_bytes(), np.float32).tolist() == [3] * 256
    assert set(a.streams) == {1}


def test_a_given_stream_asks_the_producer_for_no_order(adds: Any, framework: Any) -> None:
    stream = made.stream()
    a, b = (foreign.DlpackArray(framework.tensor(TEXT)) for _ in range(2))
    for _ in range(2):
        adds(a, b, stream=stream)
    assert set(a.streams) == {-1}


def test_only_what_is_writable_is_written(adds: Any, framework: Any) -> None:
    a, b, out = (framework.tensor(TEXT) for _ in range(3))
    locked = foreign.DlpackArray(out, version=(1, 0), flags=1)
    for _ in range(2):
        adds(locked, foreign.DlpackArray(b))
        with pytest.raises(ArgumentError, match="out may not be written, it is read-only"):
            adds.into(foreign.DlpackArray(a), foreign.DlpackArray(b), out=locked)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"version": (2, 0)}, "its DLPack tensor has version 2.0; pallasc reads 1.x"),
        ({"version": (1, 0), "flags": 2}, "__dlpack__ gives a copy, which is gone"),
        ({"kind": 1}, "its DLPack tensor lies on device 0 of kind 1, and __dlpack_device__ says"),
    ],
)
def test_capsules_of_another_kind_are_refused(
    options: dict[str, Any], message: str, adds: Any, framework: Any
) -> None:
    odd = foreign.DlpackArray(framework.tensor(TEXT), **options)
    for _ in range(2):
        with pytest.raises(ArgumentError, match=f"made: a: {message}"):
            adds(odd, foreign.DlpackArray(framework.tensor(TEXT)))


def test_a_capsule_on_another_gpu_than_its_array_is_refused(
    runtime: Any, adds: Any, framework: Any
) -> None:
    runtime.devices("9.0", "9.0")
    odd = foreign.DlpackArray(framework.tensor(TEXT, device=1))
    odd.__class__ = type(
        "Lying", (foreign.DlpackArray,), {"__dlpack_device__": lambda self: (2, 0)}
    )
    with pytest.raises(ArgumentError, match=r"lies on device 1 of kind 2, and .* says GPU 0"):
        adds(odd, foreign.DlpackArray(framework.tensor(TEXT)))


@pytest.mark.parametrize("error", [BufferError, RuntimeError, TypeError, AttributeError])
def test_what_a_producer_raises_is_put_into_words(
    error: type[Exception], adds: Any, framework: Any
) -> None:
    class Odd:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

        def __dlpack__(self, **_: Any) -> Any:
            raise error("cannot be exported")

    with pytest.raises(ArgumentError, match=r"made: b: __dlpack__\(\) failed: .*cannot"):
        adds(foreign.DlpackArray(framework.tensor(TEXT)), Odd())


def test_arrays_of_the_host_are_refused(adds: Any) -> None:
    class Host:
        def __init__(self) -> None:
            self.array = np.zeros((4, 64), np.float32)
            self.__dlpack_device__ = self.array.__dlpack_device__

        def __dlpack_device__(self) -> Any:
            return (1, 0)

        def __dlpack__(self, **options: Any) -> Any:
            return self.array.__dlpack__(**options)

    with pytest.raises(ArgumentError, match="a is an array with __dlpack__ on the host"):
        adds(Host(), Host())


@pytest.mark.parametrize("array", [7, np.zeros((4, 4), np.float32).T, np.array([object()])])
def test_a_device_array_takes_bytes_of_dense_arrays_only(array: Any, runtime: Any) -> None:
    with pytest.raises(ArgumentError, match="cannot be copied from"):
        DeviceArray((4, 4), "f32").copy_from(array)
    DeviceArray((0, 4), "f32").copy_from(np.zeros((0, 4), np.float32))
