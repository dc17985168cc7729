"""Kernels as operators of PyTorch: what needs no PyTorch."""

from __future__ import annotations

from typing import Any

import made
import pytest

from pallasc.errors import ArgumentError
from pallasc.runtime.adapters.torch_arrays import _Operator
from pallasc.runtime.opening import Kernels


def test_an_operator_returns_what_its_schema_says(runtime: Any, framework: Any) -> None:
    updates = made.kernel(made.artifact(made.launch("two", 0, 1), outputs=["b"]))
    adds = made.kernel(made.add())
    a, b = (framework.tensor("f32[4, 64]") for _ in range(2))
    operator = _Operator(updates, updates.forms)
    assert operator.schema() == "(Tensor a, Tensor(b!) b) -> ()"
    assert operator.launch(a, b) is None
    operator = _Operator(adds, adds.forms)
    assert operator.schema() == "(Tensor a, Tensor b) -> Tensor"
    assert operator.launch(a, b).shape == (4, 64)


def test_later_calls_of_an_operator_are_fast(slow: list[str], runtime: Any, framework: Any) -> None:
    kernel = made.kernel(made.add())
    operator = _Operator(kernel, kernel.forms)
    a, b = (framework.tensor("f32[4, 64]") for _ in range(2))
    for _ in range(2):
        operator.launch(a, b)
    slow.clear()
    operator.launch(a, b)
    assert slow == []


@pytest.mark.parametrize("names", [("a", "bias"), ("_form0", "_refuse")])
def test_an_argument_that_is_none_chooses_the_variant(
    names: tuple[str, str], runtime: Any, framework: Any
) -> None:
    text = "f32[4, 64]"
    array, bias = names
    having = made.artifact(made.launch("three", 0, 1, 2), inputs={array: text, bias: text})
    without = made.artifact(
        made.launch("two", 0, 1), inputs={array: text}, input_tree={array: 0, bias: None}
    )
    kernel = Kernels([("k", {"bias": None}, without), ("k", {"bias": text}, having)])["k"]
    operator = _Operator(kernel, kernel.forms)
    a, b = (framework.tensor(text) for _ in range(2))
    for given, kind in ((a,), "two"), ((a, None), "two"), ((a, b), "three"):
        operator.launch(*given)
        assert runtime.launches[-1].kernel == kind


def test_arguments_that_no_variant_has_are_refused(runtime: Any, framework: Any) -> None:
    text = "f32[4, 64]"
    whole = made.artifact(made.launch("four", 0, 1, 2, 3), inputs=dict.fromkeys("abc", text))
    first = made.artifact(
        made.launch("two", 0, 1), inputs={"a": text}, input_tree={"a": 0, "b": None, "c": None}
    )
    kernel = Kernels([("k", {"b": None}, first), ("k", {"b": text}, whole)])["k"]
    operator = _Operator(kernel, kernel.forms)
    a, b = (framework.tensor(text) for _ in range(2))
    with pytest.raises(ArgumentError, match=r"k has no variant without c\."):
        operator.launch(a, b)
