"""Calls with arrays of several frameworks, and the results that are given."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import made
import pytest

from pallasc.errors import ArgumentError
from pallasc.runtime.matching import arrays


@dataclass(eq=False)
class _Other(made.Tensor):
    """An array of another framework."""


@pytest.fixture
def other(framework: Any) -> Iterator[Any]:
    """Give a second framework, whose current stream is another one."""
    made_one = made.Framework()
    arrays._by_type[_Other] = made_one
    yield made_one
    del arrays._by_type[_Other]


def _foreign(tensor: Any) -> _Other:
    return _Other(tensor.pointer, tensor.dtype, tensor.shape, tensor.device_number)


def _orders(runtime: Any) -> list[tuple[str, int]]:
    names = ("cuEventRecord", "cuStreamWaitEvent", "cuLaunchKernelEx")
    return [(call.name, call.stream) for call in runtime.calls(*names)]


def test_other_frameworks_wait_for_the_first_one(runtime: Any, framework: Any, other: Any) -> None:
    framework.current_stream, other.current_stream = made.stream(), made.stream()
    a, b, out = (framework.tensor("f32[4, 64]") for _ in range(3))
    kernel = made.kernel(made.add())
    own, theirs = framework.current_stream, other.current_stream
    for _ in range(2):
        runtime.clear_log()
        kernel.into(a, _foreign(b), out=out)
        assert _orders(runtime) == [
            ("cuEventRecord", theirs),
            ("cuStreamWaitEvent", own),
            ("cuLaunchKernelEx", own),
            ("cuEventRecord", own),
            ("cuStreamWaitEvent", theirs),
        ]
    runtime.clear_log()
    kernel.into(_foreign(a), b, out=out)
    assert [launch.stream for launch in runtime.launches] == [theirs]
    kernel.into(a, b, out=out)
    runtime.clear_log()
    kernel.into(a, b, out=_foreign(out))
    assert [launch.stream for launch in runtime.launches] == [own]
    assert len(_orders(runtime)) == 5
    assert runtime.count("cuEventDestroy_v2") == runtime.count("cuStreamWaitEvent") > 0


def test_in_one_or_a_given_stream_nothing_waits(runtime: Any, framework: Any, other: Any) -> None:
    a, b, out = (framework.tensor("f32[4, 64]") for _ in range(3))
    kernel = made.kernel(made.add())
    shared, own, theirs, mine = (made.stream() for _ in range(4))
    for first, second, given in ((0, 1, None), (shared, shared, None), (own, theirs, mine)):
        framework.current_stream, other.current_stream = first, second
        kernel.into(a, _foreign(b), out=out, stream=given)
        assert runtime.launches[-1].stream == (given or first)
    assert runtime.count("cuEventRecord") == 0


def test_in_a_capture_no_framework_waits(runtime: Any, framework: Any, other: Any) -> None:
    framework.current_stream, other.current_stream = made.stream(), made.stream()
    a, b, out = (framework.tensor("f32[4, 64]") for _ in range(3))
    kernel = made.kernel(made.add())
    kernel.preload(0)
    with made.capture(framework.current_stream) as graph:
        with pytest.raises(ArgumentError, match="is being captured and cannot wait for other"):
            kernel.into(a, _foreign(b), out=out)
        kernel.into(a, _foreign(b), out=out, stream=framework.current_stream)
    assert runtime.launches == []
    made.launch_graph(graph, framework.current_stream)
    assert len(runtime.launches) == 1


def test_a_kernel_without_inputs_follows_its_results(runtime: Any, framework: Any) -> None:
    runtime.devices("9.0", "9.0")
    framework.current_stream = made.stream(1)
    artifact = made.artifact(made.launch("one", 0), inputs={}, input_tree={})
    kernel = made.kernel(artifact)
    out = framework.tensor("f32[4, 64]", device=1)
    for _ in range(2):
        assert kernel.into(out=out) is out
    found = [(launch.device, launch.stream) for launch in runtime.launches]
    assert found == [(1, framework.current_stream)] * 2


def test_one_result_in_two_places_is_one_array(runtime: Any, framework: Any) -> None:
    whole = made.artifact(made.launch("two", 0, 1), inputs={"a": "f32[4, 64]"})

    def twice(plan: dict[str, Any]) -> None:
        (array,) = plan["outputs"]
        plan["outputs"] = [{**array, "path": f"out.{number}"} for number in range(2)]
        plan["output_tree"] = {"tuple": [0, 1]}

    kernel = made.kernel(made.changed(whole, twice))
    a, x, y = (framework.tensor("f32[4, 64]") for _ in range(3))
    for _ in range(2):
        kernel.into(a, out=(x, x))
        with pytest.raises(ArgumentError, match=r"out\.1 and out\.0 are one result"):
            kernel.into(a, out=(x, y))
    first, again = kernel(a)
    assert first is again
