"""Arrays of CuPy, and with `__cuda_array_interface__` or DLPack alone: read, ordered, refused."""

import gc
import sys
from functools import partial
from typing import Any

import foreign
import made
import numpy as np
import pytest

from pallasc.errors import ArgumentError
from pallasc.runtime.adapters.device_arrays import DeviceArray

TEXT = "f32[4, 64]"
KINDS = {
    "CUDA array interface": foreign.CudaArray,
    **{
        f"DLPack {version}": partial(foreign.DlpackArray, version=version)
        for version in (None, (1, 0), (1, 3))
    },
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_results_are_device_arrays(kind: Any, adds: Any, framework: Any) -> None:
    a, b, out = (kind(framework.tensor(TEXT, values=n)) for n in (1, 2, 0))
    for _ in range(2):
        result = adds(a, b)
        assert isinstance(result, DeviceArray)
        assert np.frombuffer(result.to_bytes(), np.float32).tolist() == [3] * 256
    if kind is foreign.CudaArray:
        assert adds.into(b=b, a=a, out=out) is out
        assert (out.tensor.numpy() == 3).all()
    else:
        assert set(a.streams) == {1}
        adds(a, b, stream=made.stream())
        assert a.streams[-1] == -1  # the producer has nothing to order


def test_only_what_is_writable_is_written(adds: Any, framework: Any) -> None:
    a, b, out = (framework.tensor(TEXT) for _ in range(3))
    for kind, locked in (
        (foreign.CudaArray, foreign.CudaArray(out, data=(out.pointer, True))),
        (foreign.DlpackArray, foreign.DlpackArray(out, version=(1, 0), flags=1)),
    ):
        for _ in range(2):
            adds(locked, kind(b))
            with pytest.raises(ArgumentError, match="out may not be written, it is read-only"):
                adds.into(kind(a), kind(b), out=locked)


def test_an_array_with_one_element_has_no_dimensions(runtime: Any, framework: Any) -> None:
    kernel = made.kernel(made.artifact(made.launch("two", 0, 1), inputs={"a": "f32[]"}))
    for _ in range(2):
        kernel(foreign.CudaArray(framework.tensor("f32[]")))
    assert len(runtime.launches) == 2


@pytest.mark.parametrize("error", [BufferError, RuntimeError, TypeError, AttributeError])
def test_what_a_producer_raises_is_put_into_words(
    error: type[Exception], adds: Any, framework: Any
) -> None:
    class Odd:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

        def __dlpack__(self, **_: Any) -> Any:
            raise error("cannot be exported")

    class Gone:
        @property
        def __cuda_array_interface__(self) -> Any:
            raise RuntimeError("it is gone")

    right = foreign.CudaArray(framework.tensor(TEXT))
    with pytest.raises(ArgumentError, match=r"made: b: __dlpack__\(\) failed: .*cannot"):
        adds(right, Odd())
    with pytest.raises(ArgumentError, match=r"made: a: .* cannot be read: it is gone"):
        adds(Gone(), right)


def test_the_stream_of_the_arrays_counts_and_others_are_waited_for(
    adds: Any, framework: Any, runtime: Any
) -> None:
    first, other = (made.stream(), made.stream())
    tensors = [framework.tensor(TEXT) for _ in range(3)]

    def call(*streams: Any, **options: Any) -> tuple[int, int]:
        a, b, out = (
            foreign.CudaArray(tensor, stream=stream)
            for tensor, stream in zip(tensors, streams, strict=True)
        )
        before = runtime.count("cuStreamWaitEvent")
        adds.into(a, b, out=out, **options)
        return runtime.launches[-1].stream, runtime.count("cuStreamWaitEvent") - before

    for _ in range(2):
        assert call(None, None, None) == (0, 0)
        assert call(1, None, 1) == (0, 0)
        assert call(first, first, None) == (first, 0)
        assert call(None, other, other) == (other, 0)
        assert call(first, other, first) == (first, 2)  # before the launch, and behind it
        assert call(first, 1, first) == (first, 2)
        assert call(first, None, other) == (first, 2)
        assert call(None, None, None, stream=first) == (first, 0)
        assert call(other, None, None, stream=first) == (first, 2)
        assert call(None, None, other, stream=first) == (first, 2)


@pytest.mark.parametrize("stream", [None, 1, "own"])
def test_a_result_is_allocated_once_in_any_stream(
    stream: int | str | None, adds: Any, framework: Any, runtime: Any
) -> None:
    named = made.stream() if stream == "own" else stream
    a, b = (foreign.CudaArray(framework.tensor(TEXT), stream=named) for _ in range(2))
    for options in ({}, {"stream": made.stream()}):
        adds(a, b, **options)
        before = runtime.count("cuMemAlloc_v2")
        adds(a, b, **options)
        assert runtime.count("cuMemAlloc_v2") - before == 1


def test_a_device_array_that_was_written_on_the_default_stream_is_waited_for(
    adds: Any, runtime: Any
) -> None:
    runtime.configure(asynchronous=1)
    (stream,) = (made.stream(),)
    a, b = DeviceArray((4, 64), "f32"), DeviceArray((4, 64), "f32")
    adds(a, b, stream=stream)
    out = adds(a, b)
    assert runtime.count("cuStreamWaitEvent") == 0
    adds(out, b, stream=stream)
    assert runtime.count("cuStreamWaitEvent") == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": "missing"}, "__cuda_array_interface__ has no 'data'."),
        ({"data": 7}, "is invalid: data=7"),
        *(({"data": (address, False)}, "is invalid") for address in (-8, 1 << 70)),
        *(({"shape": shape}, "is invalid") for shape in (4, (4, 64.5), (-4, 64))),
        ({"strides": (4,)}, "is invalid"),
        *(({"strides": steps}, "a is not contiguous") for steps in ((-256, 4), (4, 16))),
        *(({"stream": stream}, "is invalid") for stream in (-1, "fast")),
        ({"typestr": 4}, "is invalid"),
        *(({"typestr": kind}, f"has no dtype '{kind}'") for kind in (">f4", "|V4")),
        ({"typestr": "<f2"}, "a has dtype f16"),
    ],
)
def test_what_is_wrong_is_said_with_the_arguments_name(
    change: dict[str, Any], message: str, adds: Any, framework: Any
) -> None:
    tensor = framework.tensor(TEXT)
    right = foreign.CudaArray(tensor)
    wrong = foreign.CudaArray(tensor, **change)
    for _ in range(2):
        with pytest.raises(ArgumentError) as caught:
            adds(wrong, right)
        assert "made: a" in caught.value.message
        assert message in caught.value.message
        adds(right, foreign.CudaArray(tensor))


@pytest.mark.parametrize("array", [7, np.zeros((4, 4), np.float32).T, np.array([object()])])
def test_a_device_array_takes_bytes_of_dense_arrays_only(array: Any, runtime: Any) -> None:
    with pytest.raises(ArgumentError, match="cannot be copied from"):
        DeviceArray((4, 4), "f32").copy_from(array)
    DeviceArray((0, 4), "f32").copy_from(np.zeros((0, 4), np.float32))


@pytest.fixture
def cupy(framework: Any, monkeypatch: pytest.MonkeyPatch) -> foreign.Cupy:
    return foreign.install_cupy(framework, monkeypatch)


def test_results_are_arrays_of_cupy(cupy: foreign.Cupy, adds: Any, slow: list[str]) -> None:
    a, b = (cupy.array(TEXT, values=n) for n in (1, 2))
    adds(a, b)
    for _ in range(3):
        out = adds(a, b)
        assert type(out) is cupy.ndarray
        assert (out.tensor.numpy() == 3).all()
        into = cupy.array(TEXT)
        assert adds.into(a, b, out=into) is into
        assert (into.tensor.numpy() == 3).all()
    assert slow == []


def test_a_call_goes_to_the_stream_of_cupy_or_to_its_own(
    cupy: foreign.Cupy, adds: Any, runtime: Any
) -> None:
    a, b, out = (cupy.array(TEXT) for _ in range(3))
    first, other = made.stream(), made.stream()
    for _ in range(2):
        cupy.current = 0
        adds.into(a, b, out=out)
        cupy.current = first
        adds.into(a, b, out=out)
        adds(a, b, stream=other)
    assert [launch.stream for launch in runtime.launches] == [0, first, other] * 2
    assert cupy.streams == [other, other]


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("kind", [foreign.CudaArray, foreign.DlpackArray])
def test_later_calls_skip_python(kind: Any, framework: Any, adds: Any, slow: list[str]) -> None:
    a, b, out = (kind(framework.tensor(TEXT, values=value)) for value in (1, 2, 0))
    adds.into(a, b, out=out)
    slow.clear()
    assert adds.into(a, b, out=out) is out
    assert (out.tensor.numpy() == 3).all()
    made_here = adds(a, b=b)
    assert isinstance(made_here, DeviceArray)
    assert made_here.to_bytes() == out.tensor.numpy().tobytes()
    assert slow == []


@pytest.mark.usefixtures("native")
def test_a_call_keeps_no_references(framework: Any, adds: Any) -> None:
    a, b, out = (DeviceArray((4, 64), "f32") for _ in range(3))
    for _ in range(3):
        adds.into(a, b, out=out)
    counts = [sys.getrefcount(array) for array in (a, b, out, a.view, a.uses)]
    for _ in range(100):
        adds.into(a, b, out=out)
        with pytest.raises(ArgumentError):
            adds.into(a, out, out=out)
    gc.collect()
    assert [sys.getrefcount(array) for array in (a, b, out, a.view, a.uses)] == counts
