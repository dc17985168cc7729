"""Generated functions: the usual case never reaches the slow path, the unusual always does."""

from __future__ import annotations

from typing import Any

import made
import pytest

from pallasc.errors import ArgumentError, DeviceError, DriverError
from pallasc.runtime.opening import Kernels


@pytest.fixture(autouse=True, params=["extension", "Python"])
def _way(request: pytest.FixtureRequest) -> None:
    """Let each test run with the extension and without."""
    if request.param == "Python":
        request.getfixturevalue("python_only")


def _warm(framework: Any, **options: Any) -> tuple[Any, list[Any]]:
    kernel = made.kernel(made.add(), **options)
    arrays = [framework.tensor("f32[4, 64]") for _ in range(3)]
    for _ in range(2):  # the second call writes the functions
        kernel.into(*arrays[:2], out=arrays[2])
    return kernel, arrays


@pytest.mark.parametrize("checks", [True, False])
def test_later_calls_are_fast(checks: bool, slow: list[str], runtime: Any, framework: Any) -> None:
    kernel, (a, b, out) = _warm(framework, checks=checks)
    slow.clear()
    kernel.into(a, b, out=out)
    kernel.into(b=a, a=b, out=out)
    kernel(a, b)
    kernel.into(a, framework.tensor("f32[4, 64]"), out=out)
    stream = made.stream()
    kernel.into(a, b, out=out, stream=stream)
    assert slow == []
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
def test_each_check_of_a_launch_holds_when_everything_is_ready(
    change: dict[str, Any], message: str, runtime: Any, framework: Any
) -> None:
    runtime.devices("9.0", "9.0")
    kernel, (a, b, out) = _warm(framework)
    kernel(a, b)
    for name, value in change.items():
        setattr(a, name, value)
    with pytest.raises(ArgumentError, match=message):
        kernel.into(a, b, out=out)
    with pytest.raises(ArgumentError, match=message):
        kernel(a, b)


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
    for name, value in change.items():
        setattr(out, name, value)
    with pytest.raises(ArgumentError, match=message):
        kernel.into(a, b, out=out)


def test_a_stream_of_another_device_is_refused_when_everything_is_ready(
    runtime: Any, framework: Any
) -> None:
    runtime.devices("9.0", "9.0")
    from pallasc.runtime.device.devices import active, get_device

    kernel, (a, b, out) = _warm(framework)
    with active(get_device(1)) as driver:
        stream = int(driver.call("cuStreamCreate", 1, what="a stream"))
    with pytest.raises(ArgumentError, match="belongs to a different device from the arrays"):
        kernel.into(a, b, out=out, stream=stream)


@pytest.mark.parametrize("checks", [True, False])
def test_an_error_of_the_driver_is_raised(checks: bool, runtime: Any, framework: Any) -> None:
    kernel, (a, b, out) = _warm(framework, checks=checks)
    runtime.fault("cuLaunchKernelEx", 700)
    with pytest.raises(DriverError, match="CUDA_ERROR_ILLEGAL_ADDRESS") as caught:
        kernel.into(a, b, out=out)
    assert caught.value.code == 700


def test_the_number_of_kept_plans_is_bounded(
    runtime: Any, framework: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pallasc.runtime.calls import plan_table

    monkeypatch.setattr(plan_table, "MOST_PLANS", 5)
    kernel, (a, b, _) = _warm(framework)
    for _ in range(20):
        kernel.into(a, b, out=framework.tensor("f32[4, 64]"))
    (route,) = kernel._routes.values()
    assert len(route.plans) == 5
    assert len({launch.pointer(2) for launch in runtime.launches}) == 21


def test_hostile_names_do_not_become_code(runtime: Any, framework: Any) -> None:
    names = ["a): raise SystemExit\ndef f(", "_MISSING"]
    artifact = made.artifact(
        made.launch("three", 0, 1, 2),
        inputs=dict.fromkeys(names, "f32[4, 64]"),
    )
    kernel = made.kernel(artifact)
    a, b = (framework.tensor("f32[4, 64]") for _ in range(2))
    for _ in range(2):
        kernel(a, b)
    kernel(**{names[0]: a, names[1]: b})
    assert len(runtime.launches) == 3


def test_an_array_called_like_a_name_of_the_code_works(runtime: Any, framework: Any) -> None:
    for names in (["type", "not_"], ["None_", "len"], ["out", "stream"], ["list", "tuple"]):
        artifact = made.artifact(
            made.launch("three", 0, 1, 2), inputs=dict.fromkeys(names, "f32[4, 64]")
        )
        kernel = made.kernel(artifact)
        a, b, out = (framework.tensor("f32[4, 64]") for _ in range(3))
        for _ in range(2):
            kernel.into(a, b, out=out)
        last = runtime.launches[-1]
        assert [last.pointer(n) for n in range(3)] == [a.pointer, b.pointer, out.pointer]


def test_variants_by_shape_and_dtype_are_found_fast(
    slow: list[str], runtime: Any, framework: Any
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
    slow.clear()
    for a, b in rows:
        out = kernel(a, b)
        assert (out.dtype, out.shape) == (a.dtype, a.shape)
        kernel.into(a, b, out=out)
    assert slow == []
    with pytest.raises(ArgumentError, match="sum: b is not contiguous"):
        kernel(rows[0][0], made.Tensor(rows[0][1].pointer, "f32", (4, 64), contiguous=False))


@pytest.mark.parametrize("checks", [True, False])
def test_kernels_with_temporaries_are_fast_too(
    checks: bool, slow: list[str], runtime: Any, framework: Any
) -> None:
    artifact = made.artifact(made.launch("four", 0, 1, 3, 2), temporaries=[512])
    kernel = made.kernel(artifact, checks=checks)
    a, b, out = (framework.tensor("f32[4, 64]") for _ in range(3))
    kernel.into(a, b, out=out)
    kernel.into(a, b, out=out)
    slow.clear()
    for _ in range(3):
        kernel.into(a, b, out=out)
        kernel(a, b)
    assert slow == []
    stream = made.stream()
    kernel.into(a, b, out=out, stream=stream)
    kernel(a, b, stream=stream)
    assert slow == []
    assert framework.empty_streams[-3:] == [stream] * 3
    tensors = {array.pointer: array for array in framework.kept}
    for launch in runtime.launches:
        assert tensors[launch.pointer(2)].shape == (512,)


def test_results_of_another_stream_are_allocated_there(
    slow: list[str], runtime: Any, framework: Any
) -> None:
    kernel, (a, b, _) = _warm(framework)
    kernel(a, b)
    stream = made.stream()
    slow.clear()
    for given, allocated in ((None, None), (0, None), (stream, stream)):
        kernel(a, b, stream=given)
        assert framework.empty_streams[-1] == allocated
        assert runtime.launches[-1].stream == (given or 0)
    framework.current_stream = stream
    kernel(a, b, stream=stream)
    assert framework.empty_streams[-1] is None
    assert slow == []
    with pytest.raises(ArgumentError, match="stream must be a CUDA stream, not 'default'"):
        kernel(a, b, stream="default")


def test_threads_that_bind_the_first_plan_together_get_right_tensor_maps(
    runtime: Any, framework: Any
) -> None:
    import threading

    inputs = {"a": "f16[32, 64]"}
    parameter = made.maps(*[made.tensor_map(1)] * 4)
    for _ in range(10):
        artifact = made.artifact(
            made.launch("mapped", 0, parameter), inputs=inputs, outputs=["f16[32, 64]"]
        )
        kernel = made.kernel(artifact)
        kernel.preload(0)
        rows = [[framework.tensor("f16[32, 64]") for _ in range(2)] for _ in range(4)]
        gate = threading.Barrier(4)

        def work(row: Any, gate: Any = gate, kernel: Any = kernel) -> None:
            gate.wait()
            kernel.into(row[0], out=row[1])

        threads = [threading.Thread(target=work, args=(row,)) for row in rows]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        pairs = {a.pointer: out.pointer for a, out in rows}
        for launch in runtime.launches[-4:]:
            assert {found.address for _, found in launch.maps(1)} == {pairs[launch.pointer(0)]}


@pytest.mark.parametrize("error", [ValueError("1234 is not a valid CUresult"), RuntimeError("no")])
def test_what_the_bindings_raise_in_a_launch_is_put_into_words(
    runtime: Any, framework: Any, error: Exception
) -> None:
    kernel = made.kernel(made.add())
    a, b, out = (framework.tensor("f32[4, 64]") for _ in range(3))
    kernel.into(a, b, out=out)

    def odd() -> Any:
        raise error

    (route,) = kernel._routes.values()
    (key,) = route.plans
    route.plans[key] = odd
    with pytest.raises(DeviceError, match="made@h100-sxm cannot be launched: the driver"):
        kernel.into(a, b, out=out)
    with pytest.raises(DeviceError, match="made@h100-sxm cannot be launched: the driver"):
        route.launch(key)


def test_conjugated_arrays_go_the_slow_way(runtime: Any, framework: Any, slow: list[str]) -> None:
    text = "c64[4, 64]"
    artifact = made.artifact(made.launch("two", 0, 1), inputs={"a": text}, outputs=[text])
    kernel = made.kernel(artifact)
    a, out = (framework.tensor(text) for _ in range(2))
    kernel.into(a, out=out)
    kernel.into(a, out=out)
    slow.clear()
    kernel.into(a, out=out)
    assert slow == []
    a.plain = False
    with pytest.raises(ArgumentError, match="a conjugated tensor cannot be passed"):
        kernel.into(a, out=out)
    assert slow == ["made"]


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
    checks: bool, slow: list[str], runtime: Any, framework: Any
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
