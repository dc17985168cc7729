"""Later calls: the usual case goes through C where it can, the unusual through Python."""

from __future__ import annotations

from typing import Any

import made
import pytest

from pallasc.errors import ArgumentError, DriverError
from pallasc.runtime.opening import Kernels


@pytest.fixture
def fast(native: Any, slow: list[str]) -> list[str]:
    """Give the calls that do not go through C, where it can be used."""
    return slow


def _warm(framework: Any, **options: Any) -> tuple[Any, list[Any]]:
    kernel = made.kernel(made.add(), **options)
    arrays = [framework.tensor("f32[4, 64]") for _ in range(3)]
    for _ in range(2):  # the first call goes through Python
        kernel.into(*arrays[:2], out=arrays[2])
    return kernel, arrays


@pytest.mark.parametrize("checks", [True, False])
def test_later_calls_are_fast(checks: bool, fast: list[str], runtime: Any, framework: Any) -> None:
    kernel, (a, b, out) = _warm(framework, checks=checks)
    fast.clear()
    kernel.into(a, b, out=out)
    kernel.into(b=a, a=b, out=out)
    kernel(a, b)
    kernel.into(a, framework.tensor("f32[4, 64]"), out=out)
    stream = made.stream()
    kernel.into(a, b, out=out, stream=stream)
    assert fast == []
    assert [launch.stream for launch in runtime.launches] == [0, 0, 0, 0, 0, 0, stream]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "f16"}, "made: a has dtype f16"),
        ({"shape": (64, 4)}, r"made: a has shape \[64, 4\]"),
        ({"contiguous": False}, "made: a is not contiguous"),
        ({"device_number": 1}, "made: a is on GPU 1, but b is on GPU 0"),
        ({"device_number": -1}, "made: a is on the host, but b is on GPU 0"),
        ({"pointer": 0x1004}, "made@h100-sxm: a starts at 0x1004, misaligned by 4 bytes"),
    ],
)
@pytest.mark.parametrize("call", ["into", "call"])
def test_each_check_of_a_launch_holds_when_everything_is_ready(
    call: str, change: dict[str, Any], message: str, runtime: Any, framework: Any
) -> None:
    runtime.devices("9.0", "9.0")
    kernel, (a, b, out) = _warm(framework)
    kernel(a, b)
    vars(a).update(change)
    with pytest.raises(ArgumentError, match=message):
        kernel.into(a, b, out=out) if call == "into" else kernel(a, b)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "f16"}, r"out is f16\[4, 64\], and the kernel writes f32"),
        ({"shape": (256,)}, r"out is f32\[256\], and"),
        ({"contiguous": False}, "out is not contiguous"),
        ({"device_number": 1}, "out is on GPU 1, but the inputs are on GPU 0"),
    ],
)
def test_out_is_checked_at_each_launch(
    change: dict[str, Any], message: str, runtime: Any, framework: Any
) -> None:
    runtime.devices("9.0", "9.0")
    kernel, (a, b, out) = _warm(framework)
    vars(out).update(change)
    with pytest.raises(ArgumentError, match=message):
        kernel.into(a, b, out=out)


def test_variants_by_shape_and_dtype_are_found_fast(
    fast: list[str], runtime: Any, framework: Any
) -> None:
    entries = [
        ("sum", {"m": m, "dtype": dtype}, made.add(
            inputs={"a": f"{dtype}[{m}, 64]", "b": f"{dtype}[4, 64]"},
            outputs=[f"{dtype}[{m}, 64]"],
        ))
        for m in (4, 8) for dtype in ("f32", "bf16")
    ]  # fmt: skip
    kernel = Kernels(entries)["sum"]
    rows = [
        (framework.tensor(f"{dtype}[{m}, 64]"), framework.tensor(f"{dtype}[4, 64]"))
        for m in (4, 8)
        for dtype in ("f32", "bf16")
    ]
    for a, b in rows * 2:
        kernel(a, b)
    fast.clear()
    for a, b in rows:
        out = kernel(a, b)
        assert (out.dtype, out.shape) == (a.dtype, a.shape)
        kernel.into(a, b, out=out)
    assert fast == []
    with pytest.raises(ArgumentError, match="sum: b is not contiguous"):
        kernel(rows[0][0], made.Tensor(rows[0][1].pointer, "f32", (4, 64), contiguous=False))


@pytest.mark.parametrize("checks", [True, False])
def test_kernels_with_temporaries_are_fast_too(
    checks: bool, fast: list[str], runtime: Any, framework: Any
) -> None:
    artifact = made.artifact(made.launch("four", 0, 1, 3, 2), temporaries=[512])
    kernel = made.kernel(artifact, checks=checks)
    a, b, out = (framework.tensor("f32[4, 64]") for _ in range(3))
    kernel.into(a, b, out=out)
    kernel.into(a, b, out=out)
    fast.clear()
    for _ in range(3):
        kernel.into(a, b, out=out)
        kernel(a, b)
    assert fast == []
    stream = made.stream()
    kernel.into(a, b, out=out, stream=stream)
    kernel(a, b, stream=stream)
    assert fast == []
    assert framework.empty_streams[-3:] == [stream] * 3
    tensors = {array.pointer: array for array in framework.kept}
    for launch in runtime.launches:
        assert tensors[launch.pointer(2)].shape == (512,)


def test_results_of_another_stream_are_allocated_there(
    fast: list[str], runtime: Any, framework: Any
) -> None:
    kernel, (a, b, _) = _warm(framework)
    kernel(a, b)
    stream = made.stream()
    fast.clear()
    for given, allocated in ((None, None), (0, None), (stream, stream)):
        kernel(a, b, stream=given)
        assert framework.empty_streams[-1] == allocated
        assert runtime.launches[-1].stream == (given or 0)
    framework.current_stream = stream
    kernel(a, b, stream=stream)
    assert framework.empty_streams[-1] is None
    assert fast == []
    with pytest.raises(ArgumentError, match="stream must be a CUDA stream, not 'default'"):
        kernel(a, b, stream="default")


def test_conjugated_arrays_go_the_slow_way(runtime: Any, framework: Any, fast: list[str]) -> None:
    text = "c64[4, 64]"
    artifact = made.artifact(made.launch("two", 0, 1), inputs={"a": text}, outputs=[text])
    kernel = made.kernel(artifact)
    a, out = (framework.tensor(text) for _ in range(2))
    kernel.into(a, out=out)
    kernel.into(a, out=out)
    fast.clear()
    kernel.into(a, out=out)
    assert fast == []
    a.plain = False
    with pytest.raises(ArgumentError, match="a conjugated tensor cannot be passed"):
        kernel.into(a, out=out)
    assert fast == ["made"]


def test_variants_for_the_same_arrays_that_give_different_ones_are_kept_apart(
    runtime: Any, framework: Any
) -> None:
    runtime.devices("9.0", "10.0")
    entries = [
        ("sum", {}, made.add(target=target, outputs=[text]))
        for target, text in (("h100-sxm", "f32[4, 64]"), ("b200", "f32[8, 32]"))
    ]
    kernel = Kernels(entries)["sum"]
    for _ in range(3):
        for device, shape in enumerate([(4, 64), (8, 32)]):
            a, b = (framework.tensor("f32[4, 64]", device=device) for _ in range(2))
            assert kernel(a, b).shape == shape
            out = framework.tensor(f"f32[{shape[0]}, {shape[1]}]", device=device)
            kernel.into(a, b, out=out)
            assert runtime.launches[-1].device == device


@pytest.mark.parametrize("checks", [True, False])
def test_frameworks_count_the_writes_to_arrays_of_the_caller(
    checks: bool, fast: list[str], runtime: Any, framework: Any
) -> None:
    import foreign

    kernel = made.kernel(made.add(), checks=checks)
    updates = made.kernel(made.artifact(made.launch("two", 0, 1), outputs=["b"]), checks=checks)
    a, b, out = (framework.tensor("f32[4, 64]") for _ in range(3))
    other = foreign.CudaArray(framework.tensor("f32[4, 64]"))
    calls: list[tuple[Any, list[Any]]] = [
        (lambda: kernel.into(a, b, out=out), [out]),
        (lambda: updates(a, b), [b]),
        (lambda: updates.into(a, b), [b]),
        (lambda: kernel.into(a, other, out=out), [out]),
        (lambda: kernel.into(a, b, out=other), []),
    ]
    for call, expected in calls:
        for _ in range(3):
            framework.written.clear()
            call()
            assert framework.written == expected
    for _ in range(2):
        framework.written.clear()
        kernel(a, b)
        assert all(array not in (a, b) for array in framework.written)


def test_a_write_counts_also_where_a_later_step_fails(runtime: Any, framework: Any) -> None:
    steps = (made.launch("two", 0, 1), made.launch("one", 0))
    kernel = made.kernel(made.artifact(*steps, outputs=["b"]))
    a, b = (framework.tensor("f32[4, 64]") for _ in range(2))
    for _ in range(2):
        framework.written.clear()
        runtime.fault("cuLaunchKernelEx", 701, nth=2)
        with pytest.raises(DriverError, match=r"step 1 of"):
            kernel(a, b)
        assert framework.written == [b]
        kernel(a, b)
