"""Variants of one kernel whose arguments have different structures."""

from pathlib import Path
from typing import Any

import foreign
import made
import numpy as np
import pytest

from pallasc.errors import ArgumentError, SelectionError
from pallasc.runtime.adapters.torch_arrays import _Operator
from pallasc.runtime.opening import Kernels, open_bundle
from pallasc.specs.bundle.manifest import Item
from pallasc.specs.bundle.writer import build_bundle

TEXT = "f32[4, 64]"


def _without() -> Any:
    """Return the artifact of `f(x, bias, y)` that was compiled with None for bias."""
    tree, names = {"bias": None, "x": 0, "y": 1}, ["x", "bias", "y"]
    return made.add(inputs={"x": TEXT, "y": TEXT}, input_tree=tree, parameters=names)


def _with() -> Any:
    inputs = {"x": TEXT, "bias": TEXT, "y": TEXT}
    return made.artifact(made.launch("four", 0, 1, 2, 3), inputs=inputs)


@pytest.fixture
def launches(runtime: Any) -> Any:
    """Give kernels that add two and three arrays."""

    @runtime.kernel("three")
    def two(launch: Any) -> None:
        x, y, out = (launch.array(n, "float32", (4, 64)) for n in range(3))
        out[...] = x + y

    @runtime.kernel("four")
    def three(launch: Any) -> None:
        x, bias, y, out = (launch.array(n, "float32", (4, 64)) for n in range(4))
        out[...] = x + 10 * bias + y

    return runtime


def _made() -> list[Any]:
    return [("fused", {"bias": None}, _without()), ("fused", {"bias": TEXT}, _with())]


@pytest.fixture(params=["artifacts", "bundle"])
def fused(launches: Any, request: Any, tmp_path: Path) -> Any:
    if request.param == "bundle":
        path = tmp_path / "fused.pallasc"
        path.write_bytes(build_bundle([Item(*variant) for variant in _made()], level=3))
        return open_bundle(path)["fused"]
    return Kernels(_made()[::-1])["fused"]


KINDS: dict[str, tuple[Any, Any]] = {
    "tensor": (lambda tensor: tensor, lambda tensor: tensor.numpy()),
    "numpy": (lambda tensor: tensor.numpy().copy(), lambda array: array),
    "cuda array": (foreign.CudaArray, lambda array: np.frombuffer(array.to_bytes(), np.float32)),
    "dlpack": (foreign.DlpackArray, lambda array: np.frombuffer(array.to_bytes(), np.float32)),
}
"""How arrays of a kind are made of a tensor, and their elements read."""


@pytest.mark.parametrize("kind", KINDS)
def test_an_argument_that_is_none_chooses(fused: Any, framework: Any, kind: str) -> None:
    make, read = KINDS[kind]

    def value(array: Any) -> float:
        return float(read(array).ravel()[0])

    x, y, bias = (make(framework.tensor(TEXT, values=number)) for number in (1, 2, 3))
    for _ in range(3):
        for call in (fused(x, None, y), fused(x, y=y), fused(x, bias=None, y=y)):
            assert value(call) == 3
        for call in (fused(x, bias, y), fused(x, y=y, bias=bias)):
            assert value(call) == 33
    for called in (fused.unchecked, fused.variant(bias=None)):
        assert value(called(x, None, y)) == 3
    for called in (fused.unchecked, fused.variant(bias=TEXT)):
        assert value(called(x, bias, y)) == 33


def test_a_wrong_call_is_told_what_each_structure_lacks(fused: Any, framework: Any) -> None:
    x = framework.tensor(TEXT)
    for _ in range(2):
        with pytest.raises(ArgumentError, match=r"fused was not given x\."):
            fused()
        with pytest.raises(ArgumentError, match=r"fused was not given y\."):
            fused(x)
        with pytest.raises(ArgumentError, match=r"fused has no argument 'z'"):
            fused(x, z=x)
        with pytest.raises(ArgumentError) as caught:
            fused(x, 1, x, x)
        assert "was given 4 arguments by position" in caught.value.message
        with pytest.raises(ArgumentError, match="y has shape"):
            fused(x, None, framework.tensor("f32[2, 64]"))


def test_lists_of_other_lengths_and_other_keys_choose(launches: Any, framework: Any) -> None:
    def kernel(long: Any, short: Any) -> Any:
        inputs = dict.fromkeys(("a", "b", "c"), TEXT)
        step = made.launch("four", 0, 1, 2, 3)
        three = made.artifact(step, inputs=inputs, input_tree={"x": long})
        two = made.add(input_tree={"x": short})
        variants = [_renamed(three, ["x.0", "x.1", "x.2"]), _renamed(two, ["x.0", "x.1"])]
        return Kernels([("sums", {"tree": n}, own) for n, own in enumerate(variants)])["sums"]

    first, other, third = (framework.tensor(TEXT, values=value) for value in (1, 2, 3))
    lists = kernel([0, 1, 2], [0, 1])
    dicts = kernel({"dict": {"a": 0, "b": 1, "c": 2}}, {"dict": {"a": 0, "d": 1, "n": None}})
    for _ in range(2):
        assert (lists([first, other]).numpy() == 3).all()
        assert (lists([first, other, third]).numpy() == 1 + 20 + 3).all()
        assert (dicts({"a": first, "d": other, "n": None}).numpy() == 3).all()
        assert (dicts({"a": first, "b": other, "c": third}).numpy() == 1 + 20 + 3).all()
    with pytest.raises(ArgumentError) as caught:
        lists([first])
    assert caught.value.message == (
        "no variant of sums takes these arguments:\n"
        "  sums[tree=0]@h100-sxm: sums: x must be a list or tuple of 3.\n"
        "  sums[tree=1]@h100-sxm: sums: x must be a list or tuple of 2."
    )


def _renamed(artifact: Any, paths: list[str]) -> Any:
    """Return an artifact whose inputs have these paths."""

    def rename(plan: dict[str, Any]) -> None:
        for array, path in zip(plan["inputs"], paths, strict=True):
            array["path"] = path

    return made.changed(artifact, rename)


def test_dtypes_and_shapes_choose_between_like_structures(launches: Any, framework: Any) -> None:
    def kernel(other: str) -> Any:
        forms = [("list", [0, 1], TEXT), ("tuple", {"tuple": [0, 1]}, other)]
        variants = [
            (
                kind,
                made.add(inputs=dict.fromkeys("ab", text), outputs=[text], input_tree={"x": tree}),
            )
            for kind, tree, text in forms
        ]
        return Kernels(
            [("pair", {"kind": kind}, _renamed(own, ["x.0", "x.1"])) for kind, own in variants]
        )["pair"]

    array, pair = framework.tensor(TEXT, values=1), kernel("i32[4, 64]")
    assert (pair([array, array]).numpy() == 2).all()
    assert pair([framework.tensor("i32[4, 64]")] * 2).dtype == "i32"
    with pytest.raises(ArgumentError, match=r"x\.0 has shape \[1, 64\], and the kernel takes f32"):
        pair([framework.tensor("f32[1, 64]")] * 2)
    alike = kernel(TEXT)
    with pytest.raises(SelectionError, match="2 variants of pair fit"):
        alike([array, array])
    assert (alike([array, array], kind="list").numpy() == 2).all()


def test_operators_take_none(fused: Any, framework: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    operator = _Operator(fused, fused.forms)
    assert operator.schema() == "(Tensor x, Tensor? bias, Tensor y) -> Tensor"
    x, y, bias = (framework.tensor(TEXT, values=value) for value in (1, 2, 3))
    for _ in range(2):
        assert (operator.launch(x, None, y).numpy() == 3).all()
        assert (operator.launch(x, bias, y).numpy() == 33).all()
    assert (
        _Operator(fused.variant(bias=None), fused.variant(bias=None).forms).schema()
        == "(Tensor x, Tensor y) -> Tensor"
    )


def test_an_optional_tensor_at_the_end_may_be_left_out_of_an_operator(launches: Any) -> None:
    def variant(names: str, step: Any, **changes: Any) -> Any:
        tree: dict[str, Any] = {name: names.find(name) for name in names}
        tree = {"x": None, "y": None, "z": None, **tree}
        return made.artifact(step, inputs=dict.fromkeys(names, TEXT), input_tree=tree, **changes)

    one, two = variant("x", made.launch("two", 0, 1)), variant("xy", made.launch("three", 0, 1, 2))
    kernel = Kernels([("k", {"n": n}, plan) for n, plan in enumerate((one, two))])["k"]
    operator = _Operator(kernel, kernel.forms)
    assert operator.schema() == "(Tensor x, Tensor? y=None) -> Tensor"
    updating = variant("xy", made.launch("three", 0, 1, 2), outputs=["x", TEXT])
    kernel = Kernels([("k", {"n": 0}, one), ("k", {"n": 1}, updating)])["k"]
    with pytest.raises(ArgumentError, match="gives other results, or updates other arrays, with y"):
        _Operator(kernel, kernel.forms)
