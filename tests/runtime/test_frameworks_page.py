"""The page about adapters of other frameworks is followed, word by word, for a made-up one."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import made
import numpy as np
import pytest

from pallasc.runtime.matching import arrays
from pallasc.runtime.matching.arrays import Adapter

PAGE = Path(__file__).resolve().parents[2] / "docs" / "frameworks.md"


class Array:
    """What toybox has: memory of the stand-in under attributes of its own."""

    __module__ = "toybox.core"

    def __init__(self, tensor: made.Tensor) -> None:
        self.tensor = tensor
        self.address, self.dtype, self.shape = tensor.pointer, tensor.dtype, tensor.shape
        self.gpu, self.is_contiguous = tensor.device_number, True


@pytest.fixture
def toybox(framework: Any, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return a made-up framework with the adapter of the page, and with the line in the table."""
    module: Any = ModuleType("toybox")
    module.current_stream = lambda device: framework.current_stream
    module.empty = lambda shape, dtype, device, stream: Array(framework.empty(shape, dtype, device))
    source = re.search(
        r'^```python\n("""Arrays of toybox.*?)^```', PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    assert source is not None
    adapter = ModuleType("pallasc.runtime.adapters.toybox_arrays")
    exec(compile(source[1], str(PAGE), "exec"), adapter.__dict__)
    monkeypatch.setitem(sys.modules, "toybox", module)
    monkeypatch.setitem(sys.modules, adapter.__name__, adapter)
    monkeypatch.setitem(arrays.MODULES, "toybox", "toybox_arrays.ToyboxAdapter")
    monkeypatch.setattr(arrays, "_by_type", {})
    arrays._adapter.cache_clear()
    return module


def test_a_kernel_takes_and_gives_arrays_of_a_framework_that_follows_the_page(
    runtime: Any, framework: Any, toybox: Any
) -> None:
    @runtime.kernel("three")
    def add(launch: Any) -> None:
        a, b, out = (launch.array(n, "float32", (4, 64)) for n in range(3))
        out[...] = a + b

    kernel = made.kernel(made.artifact(made.launch("three", 0, 1, 2)))
    a, b = (framework.tensor("f32[4, 64]", values=value) for value in (2.0, 3.0))
    for _ in range(3):
        result = kernel(Array(a), Array(b))
        assert type(result) is Array
        np.testing.assert_array_equal(result.tensor.numpy(), np.full((4, 64), 5, np.float32))


def test_the_page_names_every_member_of_an_adapter() -> None:
    public = {name for name in vars(Adapter) if not name.startswith("_")}
    named = set(re.findall(r"`(\w+)[(`]", PAGE.read_text()))
    assert public | {"name"} <= named
