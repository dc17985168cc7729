"""Later calls: the usual case goes through C where it can, the unusual through Python."""

from __future__ import annotations

from typing import Any

import made
import pytest

from pallasc.errors import ArgumentError
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
    ("array", "change", "message"),
    [
        (0, {"dtype": "f16"}, "made: a has dtype f16"),
        (0, {"shape": (64, 4)}, r"made: a has shape \[64, 4\]"),
        (0, {"contiguous": False}, "made: a is not contiguous"),
        (0, {"device_number": 1}, "made: a is on GPU 1, but b is on GPU 0"),
        (0, {"device_number": -1}, "made: a is on the host, but b is on GPU 0"),
        (0, {"pointer": 0x1004}, "made@h100-sxm: a starts at 0x1004, misaligned by 4 bytes"),
        (2, {"dtype": "f16"}, r"out is f16\[4, 64\], and the kernel writes f32"),
        (2, {"shape": (256,)}, r"out is f32\[256\], and"),
        (2, {"contiguous": False}, "out is not contiguous"),
        (2, {"device_number": 1}, "out is on GPU 1, but the inputs are on GPU 0"),
    ],
)
def test_each_array_is_checked_at_each_launch(
    array: int, change: dict[str, Any], message: str, runtime: Any, framework: Any
) -> None:
    runtime.devices("9.0", "9.0")
    kernel, arrays = _warm(framework)
    a, b, out = arrays
    kernel(a, b)
    vars(arrays[array]).update(change)
    with pytest.raises(ArgumentError, match=message):
        kernel.into(a, b, out=out)
    if array == 0:
        with pytest.raises(ArgumentError, match=message):
            kernel(a, b)


def test_variants_with_other_results_are_kept_apart(runtime: Any, framework: Any) -> None:
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
def test_writes_are_counted(checks: bool, fast: list[str], runtime: Any, framework: Any) -> None:
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
