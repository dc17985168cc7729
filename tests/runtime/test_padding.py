"""Arrays shorter than any variant's: padded with zeros, and the results cut, in the stream."""

from pathlib import Path
from typing import Any

import made
import numpy as np
import pytest
from standin import Device
from tuned_bundles import H100, item, kernel, row

from pallasc.errors import ArgumentError
from pallasc.specs.bundle.manifest import Item
from pallasc.specs.tuning import Tuning

PAD = {"m": {"a": 0, "b": 0, "out": 0}}
PLANES = {"m": {"a": 1, "b": 1, "out": 1}}


@pytest.fixture
def seen(framework: made.Framework, runtime: Any) -> list[Any]:
    """Give a GPU that adds as many rows as its grid has blocks; what `b` was is noted."""
    runtime.devices(Device("9.0", name=H100))
    noted: list[Any] = []

    @runtime.kernel("three")  # type: ignore[untyped-decorator]
    def add(launch: Any) -> None:
        a, b, out = (launch.array(n, "float32", (launch.grid[0] * 64,)) for n in range(3))
        noted.append(b.copy())
        out[...] = a + b + 1

    return noted


def _tuned(path: Path, *sizes: int, pad: Any = PAD) -> Any:
    return kernel(path, [item(m, m, row(m), pad=pad) for m in sizes])


def _values(m: int, start: int = 1) -> Any:
    return np.arange(start, start + m * 64, dtype=np.float32).reshape(m, 64)


def test_the_smallest_variant_is_padded(
    framework: Any, runtime: Any, seen: list[Any], tmp_path: Path
) -> None:
    tuned = _tuned(tmp_path, 8, 4)
    for m, size in ((3, 4), (5, 8), (4, 4), (3, 4)):
        a, b = (framework.tensor(f"f32[{m}, 64]", values=_values(m, n)) for n in (1, 7))
        runtime.clear_log()
        result = tuned(a, b)
        assert [launch.grid[0] for launch in runtime.launches] == [size]
        assert result.shape == (m, 64)
        assert np.array_equal(result.numpy(), _values(m) + _values(m, 7) + 1)
        assert not seen[-1][m * 64 :].any()
    assert len(tuned._prepared) == 2
    choice = tuned.choice("f32[3, 64]", "f32[3, 64]")
    assert (choice.variant, choice.padded) == ("add[m=4,tile=4]@h100-sxm", ("a", "b"))
    assert str(choice).endswith("the row of its key, measured for h100-sxm; a, b padded")
    tuned.prepare("f32[5, 64]", "f32[5, 64]")
    with pytest.raises(ArgumentError, match=r"no variant for f32\[9, 64\]"):
        tuned(*(framework.tensor("f32[9, 64]") for _ in range(2)))
    with pytest.raises(ArgumentError, match=r"no variant for f32\[3, 64\], f32\[2, 64\]"):
        tuned(framework.tensor("f32[3, 64]"), framework.tensor("f32[2, 64]"))


def test_padding_is_in_the_stream(
    framework: Any, runtime: Any, seen: list[Any], tmp_path: Path
) -> None:
    tuned = _tuned(tmp_path, 4)
    framework.current_stream = stream = made.stream()
    arrays = [framework.tensor("f32[3, 64]") for _ in range(3)]
    tuned.into(*arrays[:2], out=arrays[2])
    runtime.clear_log()
    assert tuned.into(*arrays[:2], out=arrays[2]) is arrays[2]
    names = ("cuMemsetD8Async", "cuMemcpyDtoDAsync_v2", "cuMemcpy2DAsync_v2", "cuLaunchKernelEx")
    calls = runtime.calls(*names)
    pair = ["cuMemsetD8Async", "cuMemcpyDtoDAsync_v2"]
    assert [call.name for call in calls] == [*pair, *pair, "cuLaunchKernelEx", pair[1]]
    assert {call.stream for call in calls} == {stream}
    assert [calls[n].values[2] for n in (0, 1, 5)] == [64 * 4, 3 * 64 * 4, 3 * 64 * 4]
    wrong = framework.tensor("f32[4, 64]")
    with pytest.raises(ArgumentError, match=r"out is f32\[4, 64\], but the kernel writes f32\[3"):
        tuned.into(*arrays[:2], out=wrong)


def _planes(m: int, pad: Any = PLANES) -> Any:
    array = f"f32[2, {m}, 8]"
    tuning = Tuning(by=("m",), over=(), pad=pad, is_default=True)
    artifact = made.artifact(
        made.launch("three", 0, 1, 2, grid=(m // 4, 1, 1)),
        inputs={"a": array, "b": array},
        outputs=[array],
    )
    return Item("add", {"m": m}, artifact, tuning=tuning)


def test_inner_dimensions_are_padded(
    framework: Any, runtime: Any, seen: list[Any], tmp_path: Path
) -> None:
    tuned = kernel(tmp_path, [_planes(8)])
    values = np.arange(96, dtype=np.float32).reshape(2, 6, 8)
    a, b = (framework.tensor("f32[2, 6, 8]", values=values) for _ in range(2))
    runtime.clear_log()
    assert np.array_equal(tuned(a, b).numpy(), 2 * values + 1)
    copies = runtime.calls("cuMemcpy2DAsync_v2")
    assert [call.values[2:] for call in copies] == [
        (192, 2, 256, 192), (192, 2, 256, 192), (192, 2, 192, 256)
    ]  # fmt: skip
    assert not seen[0].reshape(2, 8, 8)[:, 6:].any()


def test_arrays_of_the_host_are_padded_there(seen: list[Any], tmp_path: Path) -> None:
    tuned = _tuned(tmp_path, 4)
    a, b = _values(3), _values(3, 5)
    assert np.array_equal(tuned(a, b), a + b + 1)
    out = np.empty_like(a)
    assert tuned.into(a, b, out=out) is out
    assert np.array_equal(out, a + b + 1)


def test_updated_arrays_are_not_padded(framework: Any, seen: list[Any], tmp_path: Path) -> None:
    array = "f32[4, 64]"
    artifact = made.artifact(
        made.launch("two", 0, 1), inputs={"a": array, "b": "f32[4, 1]"}, outputs=["a"]
    )
    pad = {"m": {"a": 0, "b": 0}}
    tuning = Tuning(by=("m",), over=(), pad=pad, is_default=True)
    tuned = kernel(tmp_path, [Item("add", {"m": 4}, artifact, tuning=tuning)])
    with pytest.raises(ArgumentError, match="a would have to be padded, but only copies are"):
        tuned(framework.tensor("f32[3, 64]"), framework.tensor("f32[3, 1]"))
