"""Variants of one kernel whose arguments have different structures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import foreign
import made
import numpy as np
import pytest

from pallasc.errors import ArgumentError, SelectionError
from pallasc.runtime.adapters.torch_arrays import _Operator
from pallasc.runtime.opening import Kernels, open_bundle
from pallasc.specs.artifacts.signature import Arguments
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
def test_the_argument_that_is_none_chooses_the_variant(
    fused: Any, framework: Any, kind: str
) -> None:
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


def test_later_calls_go_to_their_form_at_once(
    native: Any, fused: Any, framework: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y, bias, out = (framework.tensor(TEXT, values=value) for value in (1, 2, 3, 0))

    def all_ways() -> None:
        fused(x, None, y)
        fused(x, bias, y=y)
        fused.into(x, y=y, out=out)
        fused.into(x, bias, y, out=out)

    all_ways()

    def bind(*_: Any) -> Any:
        raise AssertionError("a call was matched in Python")

    monkeypatch.setattr(Arguments, "bind", bind)
    all_ways()
    assert (out.numpy() == 33).all()


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


def test_lists_of_different_lengths_and_mappings_of_other_keys(
    launches: Any, framework: Any
) -> None:
    inputs = dict.fromkeys(("a", "b", "c"), TEXT)
    two = dict(list(inputs.items())[:2])

    def variant(*trees: Any) -> list[Any]:
        paths = (["x.0", "x.1", "x.2"], ["x.0", "x.1"])
        steps = (made.launch("four", 0, 1, 2, 3), made.launch("three", 0, 1, 2))
        return [
            ("sums", {"tree": number}, _renamed(made.artifact(
                step, inputs=taken, input_tree={"x": tree}), names))
            for number, (tree, names, step, taken) in enumerate(
                zip(trees, paths, steps, (inputs, two), strict=True)
            )
        ]  # fmt: skip

    first, other, third = (framework.tensor(TEXT, values=value) for value in (1, 2, 3))
    lists = Kernels(variant([0, 1, 2], [0, 1]))["sums"]
    dicts = Kernels(
        variant({"dict": {"a": 0, "b": 1, "c": 2}}, {"dict": {"a": 0, "d": 1, "n": None}})
    )["sums"]
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
    plan = dict(artifact.record["plan"])
    plan["inputs"] = [
        {**array, "path": path} for array, path in zip(plan["inputs"], paths, strict=True)
    ]
    return made.Artifact({**artifact.record, "plan": plan}, artifact.blob)


def test_where_structures_look_alike_dtypes_and_shapes_choose(
    launches: Any, framework: Any
) -> None:
    other = "i32[4, 64]"
    variants = [
        ("pair", {"kind": "list"}, made.add(input_tree={"x": [0, 1]})),
        ("pair", {"kind": "tuple"}, made.add(
            inputs={"a": other, "b": other}, outputs=[other],
            input_tree={"x": {"tuple": [0, 1]}},
        )),
    ]  # fmt: skip
    pair = Kernels([(n, p, _renamed(a, ["x.0", "x.1"])) for n, p, a in variants])["pair"]
    array = framework.tensor(TEXT, values=1)
    assert (pair([array, array]).numpy() == 2).all()
    assert pair([framework.tensor(other)] * 2).dtype == "i32"
    with pytest.raises(
        ArgumentError, match=r"pair has no variant for f32\[1, 64\], f32\[1, 64\]\.$"
    ):
        pair([framework.tensor("f32[1, 64]")] * 2)
    trees = {"list": [0, 1], "tuple": {"tuple": [0, 1]}}
    same = [
        ("pair", {"kind": kind}, _renamed(made.add(input_tree={"x": tree}), ["x.0", "x.1"]))
        for kind, tree in trees.items()
    ]
    alike = Kernels(same)["pair"]
    with pytest.raises(SelectionError, match="2 variants of pair fit"):
        alike([array, array])
    assert (alike([array, array], kind="list").numpy() == 2).all()


def test_an_operator_has_an_optional_tensor(
    fused: Any, framework: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    plans = [
        made.artifact(made.launch("two", 0, 1), inputs={"x": TEXT},
                      input_tree={"x": 0, "y": None, "z": None}),
        made.artifact(made.launch("three", 0, 1, 2), inputs={"x": TEXT, "y": TEXT},
                      input_tree={"x": 0, "y": 1, "z": None}),
    ]  # fmt: skip
    kernel = Kernels([("k", {"n": n}, plan) for n, plan in enumerate(plans)])["k"]
    operator = _Operator(kernel, kernel.forms)
    assert operator.schema() == "(Tensor x, Tensor? y=None) -> Tensor"
    updating = made.artifact(
        made.launch("three", 0, 1, 2), inputs={"x": TEXT, "y": TEXT}, outputs=["x", TEXT],
        input_tree={"x": 0, "y": 1, "z": None},
    )  # fmt: skip
    kernel = Kernels([("k", {"n": 0}, plans[0]), ("k", {"n": 1}, updating)])["k"]
    with pytest.raises(ArgumentError, match="gives other results, or updates other arrays, with y"):
        _Operator(kernel, kernel.forms)
