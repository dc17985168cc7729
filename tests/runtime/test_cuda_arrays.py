"""Arrays with `__cuda_array_interface__` alone: how they are read, ordered, refused."""

from __future__ import annotations

from typing import Any

import foreign
import made
import numpy as np
import pytest

from pallasc.errors import ArgumentError
from pallasc.runtime.adapters.device_arrays import DeviceArray
from pallasc.runtime.matching.tuned import Selector

TEXT = "f32[4, 64]"


def test_results_are_device_arrays(adds: Any, framework: Any) -> None:
    a, b = (foreign.CudaArray(framework.tensor(TEXT, values=n)) for n in (1, 2))
    out = foreign.CudaArray(framework.tensor(TEXT))
    for _ in range(2):
        result = adds(a, b)
        assert isinstance(result, DeviceArray)
        assert np.frombuffer(result.to_bytes(), np.float32).tolist() == [3] * 256
    assert adds.into(b=b, a=a, out=out) is out
    assert (out.tensor.numpy() == 3).all()


def test_later_calls_choose_no_variant_again(
    runtime: Any, framework: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = made.launch("four", 0, 1, 2, 3)
    kernel = made.kernel(made.artifact(step, outputs=[TEXT, "b", TEXT]))
    a, b, c, d = (foreign.CudaArray(framework.tensor(TEXT)) for _ in range(4))
    kernel(a, b)
    monkeypatch.setattr(Selector, "select", None)
    first, updated, last = kernel(a, b)
    assert updated is b
    assert kernel.into(a, b, out=(c, b, d)) == (c, b, d)
    pointers = [
        [x.tensor.pointer if isinstance(x, foreign.CudaArray) else x.pointer for x in row]
        for row in ((a, b, first, last), (a, b, c, d))
    ]
    assert [[launch.pointer(n) for n in range(4)] for launch in runtime.launches[1:]] == pointers


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
        ({"typestr": "missing"}, "__cuda_array_interface__ has no 'typestr'."),
        ({"shape": None}, "__cuda_array_interface__ has no 'shape'."),
        ({"data": 7}, "is invalid: data=7"),
        ({"data": (-8, False)}, "is invalid"),
        ({"data": (1 << 70, False)}, "is invalid"),
        ({"data": (0, False)}, "the array lies at address 0"),
        ({"data": (4096, False)}, "no GPU has memory at 0x1000"),
        ({"shape": 4}, "is invalid"),
        ({"shape": (4, 64.5)}, "is invalid"),
        ({"shape": (-4, 64)}, "is invalid"),
        ({"strides": (4,)}, "is invalid"),
        ({"strides": (-256, 4)}, "a is not contiguous"),
        ({"strides": (4, 16)}, "a is not contiguous"),
        ({"stream": 0}, "says stream 0"),
        ({"stream": -1}, "is invalid"),
        ({"stream": "fast"}, "is invalid"),
        ({"typestr": 4}, "is invalid"),
        ({"typestr": ">f4"}, "has no dtype '>f4'"),
        ({"typestr": "|V4"}, "has no dtype '|V4'"),
        ({"typestr": "<f2"}, "a has dtype f16"),
        ({"mask": object()}, "an array with a mask cannot be passed"),
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


def test_what_a_property_raises_is_put_into_words(adds: Any, framework: Any) -> None:
    class Odd:
        @property
        def __cuda_array_interface__(self) -> Any:
            raise RuntimeError("it is gone")

    with pytest.raises(ArgumentError, match=r"made: a: .* cannot be read: it is gone"):
        adds(Odd(), foreign.CudaArray(framework.tensor(TEXT)))


def test_a_read_only_array_may_be_read_and_not_written(adds: Any, framework: Any) -> None:
    a, b, out = (framework.tensor(TEXT) for _ in range(3))
    locked = foreign.CudaArray(out, data=(out.pointer, True))
    for _ in range(2):
        adds.into(locked, foreign.CudaArray(b), out=foreign.CudaArray(a))
        with pytest.raises(ArgumentError, match="out may not be written, it is read-only"):
            adds.into(foreign.CudaArray(a), foreign.CudaArray(b), out=locked)


def test_an_array_with_one_element_has_no_dimensions(runtime: Any, framework: Any) -> None:
    kernel = made.kernel(made.artifact(made.launch("two", 0, 1), inputs={"a": "f32[]"}))
    for _ in range(2):
        kernel(foreign.CudaArray(framework.tensor("f32[]")))
    assert len(runtime.launches) == 2
