"""Fronts for arrays without DLPack's C exchange API, which Python describes to the extension."""

from __future__ import annotations

import gc
import sys
from typing import Any

import foreign
import pytest

from pallasc.errors import ArgumentError
from pallasc.runtime.adapters.device_arrays import DeviceArray

pytestmark = pytest.mark.usefixtures("native")

TEXT = "f32[4, 64]"
KINDS = {"__cuda_array_interface__": foreign.CudaArray, "__dlpack__": foreign.DlpackArray}


def _made(framework: Any, kind: str, value: float = 0) -> Any:
    return KINDS[kind](framework.tensor(TEXT, values=value))


@pytest.mark.parametrize("kind", KINDS)
def test_later_calls_skip_python(kind: str, framework: Any, adds: Any, slow: list[str]) -> None:
    a, b, out = (_made(framework, kind, value) for value in (1, 2, 0))
    adds.into(a, b, out=out)
    slow.clear()
    assert adds.into(a, b, out=out) is out
    assert (out.tensor.numpy() == 3).all()
    made_here = adds(a, b=b)
    assert isinstance(made_here, DeviceArray)
    assert made_here.to_bytes() == out.tensor.numpy().tobytes()
    assert slow == []


def test_a_call_keeps_no_references(framework: Any, adds: Any) -> None:
    a, b, out = (DeviceArray((4, 64), "f32") for _ in range(3))
    for _ in range(3):
        adds.into(a, b, out=out)
    counts = [sys.getrefcount(array) for array in (a, b, out, a.view, a.uses)]
    for _ in range(100):
        adds.into(a, b, out=out)
        with pytest.raises(ArgumentError):
            adds.into(a, out, out=out)
    gc.collect()
    assert [sys.getrefcount(array) for array in (a, b, out, a.view, a.uses)] == counts
