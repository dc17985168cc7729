"""A kernel: calls, results, variants."""

from pathlib import Path
from typing import Any

import made
import numpy as np
import pytest

from pallasc.cache.store import Store
from pallasc.compiler.inputs.lookup import artifact_of_action
from pallasc.errors import ArgumentError, SelectionError
from pallasc.runtime.opening import Kernels, open_artifact


def test_an_updated_input_comes_back_itself(runtime: Any, framework: Any) -> None:
    artifact = made.artifact(made.launch("two", 0, 1), outputs=["b"])
    kernel = made.kernel(artifact)
    a, b = (framework.tensor("f32[4, 64]") for _ in range(2))
    for _ in range(2):
        assert kernel(a, b) is b
        assert kernel.into(a, b) is b
        assert kernel.into(a, b, out=b) is b
    with pytest.raises(ArgumentError, match="updated in place"):
        kernel.into(a, b, out=a)
    assert {(launch.pointer(0), launch.pointer(1)) for launch in runtime.launches} == {
        (a.pointer, b.pointer)
    }


def test_pytrees_go_in_and_out(runtime: Any, framework: Any) -> None:
    artifact = made.artifact(
        made.launch("four", 0, 1, 2, 3),
        outputs=["f32[4, 64]", "f32[2]"],
        input_tree={"cache": {"dict": {"b": 1, "list": [0, None]}}},
        output_tree={"dict": {"rest": [1], "sum": 0}},
    )
    kernel = made.kernel(artifact)
    a, b = (framework.tensor("f32[4, 64]") for _ in range(2))
    for _ in range(2):
        out = kernel({"list": (a, None), "b": b})
        assert out["sum"].shape == (4, 64)
        assert out["rest"][0].shape == (2,)
        assert kernel.into({"list": [a, None], "b": b}, out=out) is out
    assert {(launch.pointer(0), launch.pointer(1)) for launch in runtime.launches} == {
        (a.pointer, b.pointer)
    }
    with pytest.raises(ArgumentError, match=r"made: cache.list.1 must be None"):
        kernel({"b": b, "list": [a, b]})


def _matmuls() -> Kernels:
    def artifact(m: int) -> Any:
        array = f"f32[{m}, 64]"
        return made.add(inputs={"a": array, "b": "f32[4, 64]"}, outputs=[array])

    points = [(m, tile) for m in (4, 8) for tile in (64, 128)]
    return Kernels([("matmul", {"m": m, "tile": tile}, artifact(m)) for m, tile in points])


def test_a_parameter_by_name_chooses_the_variant(runtime: Any, framework: Any) -> None:
    kernel = _matmuls()["matmul"]
    a, b = (framework.tensor("f32[4, 64]") for _ in range(2))
    for _ in range(2):
        kernel(a, b, tile=64)
        kernel.into(a, b, out=framework.tensor("f32[4, 64]"), tile=128)
        with pytest.raises(SelectionError, match="Say which, by name: tile=64"):
            kernel(a, b)
    assert kernel.variant(tile=64) is kernel.variant(tile=64)
    assert [candidate.params["m"] for candidate in kernel.variant(tile=64).variants] == [4, 8]


def test_unchecked_still_looks_at_the_first_arrays(runtime: Any, framework: Any) -> None:
    kernel = made.kernel(made.add(), checks=False)
    a, b = (framework.tensor("f32[4, 64]") for _ in range(2))
    with pytest.raises(ArgumentError, match="made: b has dtype f16"):
        kernel(a, framework.tensor("f16[4, 64]"))
    kernel(a, b)
    a.pointer += 4
    with pytest.raises(
        ArgumentError, match="misaligned by 4 bytes: the kernel requires multiples of 256"
    ):
        kernel(a, b)


def test_a_misaligned_array_is_named_where_several_variants_fit(
    runtime: Any, framework: Any
) -> None:
    whole = made.add(target="h100-pcie")
    other = made.changed(whole, lambda plan: plan["buffers"][1].update(alignment=16))
    kernel = Kernels([("made", {}, made.add()), ("made", {}, other)])["made"]
    a, b = (framework.tensor("f32[4, 64]") for _ in range(2))
    kernel(a, b)
    b.pointer += 8
    for _ in range(2):
        with pytest.raises(
            ArgumentError, match=r"b starts at .* 8 bytes: the kernel requires multiples of 256"
        ):
            kernel(a, b)


def test_what_is_preloaded_or_prepared_is_loaded_once(runtime: Any, framework: Any) -> None:
    kernels = _matmuls()
    kernels["matmul"].prepare("f32[8, 64]", b="f32[4, 64]", tile=128)
    assert runtime.count("cuFuncLoad") == 1
    with pytest.raises(SelectionError, match="2 variants of matmul fit"):
        kernels["matmul"].prepare("f32[8, 64]", "f32[4, 64]")
    kernels.preload(0)
    b = framework.tensor("f32[4, 64]")
    runtime.clear_log()
    for m in (4, 8, 4):
        a = framework.tensor(f"f32[{m}, 64]")
        assert kernels["matmul"](a, b, tile=64).shape == (m, 64)
    assert runtime.calls("cuLibraryLoadData", "cuFuncLoad", "cuKernelGetFunction") == []


def test_an_entry_of_the_store_is_opened(runtime: Any, framework: Any, tmp_path: Path) -> None:
    first, key = made.add(), 32 * "ab"
    Store(tmp_path).put_artifact(key, first.record, first.blobs())
    entry = artifact_of_action(Store(tmp_path), key)
    assert entry is not None
    made.adder(runtime)
    kernel = open_artifact(entry)
    x = framework.tensor("f32[4, 64]", values=np.full((4, 64), 3, np.float32))
    assert (kernel(x, x).numpy() == 6).all()


def test_a_kernel_without_arrays_needs_out(runtime: Any, framework: Any) -> None:
    kernel = made.kernel(made.artifact(made.launch("one", 0), inputs={}))
    out = framework.tensor("f32[4, 64]")
    assert kernel.into(out=out) is out
    with pytest.raises(ArgumentError, match="takes no arrays"):
        kernel()


def test_a_call_says_where_out_goes(runtime: Any, framework: Any) -> None:
    kernel = made.kernel(made.add())
    a, b, out = (framework.tensor("f32[4, 64]") for _ in range(3))
    for _ in range(2):
        with pytest.raises(ArgumentError, match="allocates its results and takes no out") as caught:
            kernel(a, b, out=out)
        assert caught.value.hint == "To write into your own arrays, call into(…, out=…)."
        kernel(a, b)
