"""Kernels as operators of PyTorch: what needs no PyTorch."""

from __future__ import annotations

from typing import Any

import made

from pallasc.runtime.adapters.torch_operator import _Operator


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
