"""Fronts for arrays without DLPack's C exchange API, which Python describes to the extension."""

from __future__ import annotations

import gc
import sys
from typing import Any

import foreign
import made
import pytest

from pallasc.errors import ArgumentError
from pallasc.runtime.adapters.device_arrays import DeviceArray
from pallasc.runtime.opening import Kernels

pytestmark = pytest.mark.usefixtures("native")

TEXT = "f32[4, 64]"
KINDS = {"__cuda_array_interface__": foreign.CudaArray, "__dlpack__": foreign.DlpackArray}


def _made(framework: Any, kind: str, value: float = 0) -> Any:
    return KINDS[kind](framework.tensor(TEXT, values=value))


@pytest.mark.parametrize("kind", KINDS)
def test_later_calls_do_not_reach_python(
    kind: str, framework: Any, adds: Any, slow: list[str]
) -> None:
    a, b, out = (_made(framework, kind, value) for value in (1, 2, 0))
    adds.into(a, b, out=out)
    slow.clear()
    assert adds.into(a, b, out=out) is out
    assert (out.tensor.numpy() == 3).all()
    made_here = adds(a, b=b)
    assert isinstance(made_here, DeviceArray)
    assert made_here.to_bytes() == out.tensor.numpy().tobytes()
    assert slow == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"typestr": "<f2"}, "made: a has dtype f16"),
        ({"shape": (64, 4)}, r"made: a has shape \[64, 4\]"),
        ({"strides": (4, 16)}, "made: a is not contiguous"),
        ({"mask": 1}, "made: a: an array with a mask cannot be passed"),
        ({"data": "missing"}, "made: a: __cuda_array_interface__ has no 'data'"),
    ],
)
def test_each_property_is_checked_at_each_call(
    changes: dict[str, Any], message: str, framework: Any, adds: Any
) -> None:
    a, b, out = (_made(framework, "__cuda_array_interface__") for _ in range(3))
    for _ in range(2):
        adds.into(a, b, out=out)
    out.told["data"] = (out.tensor.pointer, True)
    with pytest.raises(ArgumentError, match="out may not be written"):
        adds.into(a, b, out=out)
    a.told |= changes
    with pytest.raises(ArgumentError, match=message):
        adds.into(a, b, out=out)


def test_a_producers_stream_is_left_to_python(
    framework: Any, runtime: Any, adds: Any, slow: list[str]
) -> None:
    a, b, out = (_made(framework, "__cuda_array_interface__") for _ in range(3))
    for _ in range(2):
        adds.into(a, b, out=out)
    stream = made.stream()
    slow.clear()
    a.told["stream"] = stream
    adds.into(a, b, out=out)
    assert slow == ["made"]
    assert runtime.launches[-1].stream == stream
    a.told["stream"] = 1  # the default stream, as the launch's
    adds.into(a, b, out=out)
    assert slow == ["made"]
    assert runtime.launches[-1].stream == 0


def test_device_arrays_wait_for_their_uses_in_other_streams(
    framework: Any, runtime: Any, adds: Any, slow: list[str]
) -> None:
    a, b, out = (DeviceArray((4, 64), "f32") for _ in range(3))
    adds.into(a, b, out=out)
    first, second = made.stream(), made.stream()
    runtime.configure(asynchronous=1)
    slow.clear()
    adds.into(a, b, out=out, stream=first)
    runtime.clear_log()
    adds.into(a, b, out=out, stream=second)
    names = [call.name for call in runtime.calls("cuStreamWaitEvent", "cuLaunchKernelEx")]
    assert names == ["cuStreamWaitEvent", "cuLaunchKernelEx"]
    results = adds(a, b, stream=second)
    assert isinstance(results, DeviceArray)
    assert results.uses.before(None, writes=True)
    assert slow == []


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


def test_more_types_of_arrays_than_there_are_fronts_go_through_python(
    framework: Any, adds: Any, slow: list[str]
) -> None:
    for number in range(20):
        kind: Any = type(f"Own{number}", (DeviceArray,), {})
        a, b, out = (kind((4, 64), "f32") for _ in range(3))
        for _ in range(2):
            assert adds.into(a, b, out=out) is out
    assert len(slow) > 20
    assert len(adds.native_paths._frameworks) == 8


def test_variants_with_other_parameters_get_the_arguments_of_the_first_call(
    runtime: Any, framework: Any
) -> None:
    def variant(dtype: str, names: list[str]) -> Any:
        arrays, tree = dict.fromkeys("ab", f"{dtype}[4, 64]"), {"a": 0, "b": 1}
        return made.add(inputs=arrays, input_tree=tree, parameters=names)

    variants = (variant("f32", ["a", "b"]), variant("f16", ["b", "a"]))
    kernel = Kernels([("k", {"d": n}, own) for n, own in enumerate(variants)])["k"]
    kernel(*(framework.tensor(TEXT) for _ in range(2)))
    x, y = (framework.tensor("f16[4, 64]") for _ in range(2))
    seen = set()
    for _ in range(3):
        kernel(x, y)
        seen.add(tuple(runtime.launches[-1].pointer(n) for n in range(2)))
    assert len(seen) == 1


def test_a_variant_with_an_optional_argument_more_is_launched(framework: Any) -> None:
    def variant(dtype: str, tree: dict[str, Any]) -> Any:
        step, inputs = made.launch("two", 0, 1), {"a": f"{dtype}[4, 64]"}
        return made.artifact(step, inputs=inputs, input_tree=tree, parameters=list(tree))

    variants = (variant("f32", {"a": 0}), variant("f16", {"a": 0, "bias": None}))
    kernel = Kernels([("k", {"d": n}, own) for n, own in enumerate(variants)])["k"]
    for text in (TEXT, "f16[4, 64]") * 2:
        kernel(framework.tensor(text))
