"""Arrays whose elements lie in another order than row-major."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import foreign
import made
import numpy as np
import pytest

from pallasc.errors import ArgumentError
from pallasc.runtime.opening import Kernels, open_bundle
from pallasc.specs.bundle.manifest import Item
from pallasc.specs.bundle.writer import build_bundle

TEXT = "f32[4, 64]"
VALUES = np.arange(256, dtype=np.float32).reshape(4, 64)


def _laid_out(artifact: Any) -> Any:
    """Return an artifact whose input b has its first dimension next to each other."""
    return made.changed(artifact, lambda plan: plan["inputs"][1].update(layout=[0, 1]))


@pytest.fixture
def adding(runtime: Any) -> Any:
    """Give kernels: `three` adds a row-major a and a b whose memory is that of its transpose."""

    @runtime.kernel("three")
    def add(launch: Any) -> None:
        a, out = (launch.array(n, "float32", (4, 64)) for n in (0, 2))
        out[...] = a + launch.array(1, "float32", (64, 4)).T

    @runtime.kernel("four")
    def subtract(launch: Any) -> None:
        a, b, out, _ = (launch.array(n, "float32", (4, 64)) for n in (0, 1, 2, 2))
        out[...] = a - b

    return runtime


@pytest.fixture(params=["artifact", "bundle"])
def kernel(adding: Any, request: Any, tmp_path: Path) -> Any:
    artifact = _laid_out(made.add())
    if request.param == "artifact":
        return made.kernel(artifact)
    path = tmp_path / "made.pallasc"
    path.write_bytes(build_bundle([Item("made", {}, artifact)], level=3))
    return open_bundle(path)["made"]


def test_an_array_of_numpy_with_that_order_is_taken(kernel: Any) -> None:
    transposed = np.asfortranarray(VALUES)
    for _ in range(2):
        assert (kernel(VALUES, transposed) == 2 * VALUES).all()
    with pytest.raises(ArgumentError) as caught:
        kernel(VALUES, VALUES)
    assert caught.value.message == (
        "made: b has strides [64, 1], and the kernel takes f32[4, 64]{0,1} with strides [1, 4]."
    )
    wide = np.zeros((4, 128), np.float32)[:, ::2]
    with pytest.raises(ArgumentError, match=r"b has strides \[128, 2\], and the kernel takes"):
        kernel(VALUES, wide)
    with pytest.raises(ArgumentError, match="made: a is not contiguous"):
        kernel(transposed, transposed)


def test_a_cuda_array_with_that_order_is_taken(kernel: Any, framework: Any) -> None:
    a = foreign.CudaArray(framework.tensor(TEXT, values=VALUES))
    memory = framework.tensor("f32[64, 4]", values=VALUES.T)
    view = replace(memory, shape=(4, 64))
    out = kernel(a, foreign.CudaArray(view, strides=(4, 16)))
    assert (np.frombuffer(out.to_bytes(), np.float32) == 2 * VALUES.ravel()).all()
    with pytest.raises(ArgumentError, match=r"b has strides \[1, 8\], and the kernel takes"):
        kernel(a, foreign.CudaArray(view, strides=(4, 32)))


def test_layouts_choose_among_variants(adding: Any) -> None:
    row_major = made.artifact(made.launch("four", 0, 1, 2, 2))
    variants = [
        ("k", {"w": "f32[4, 64]"}, row_major),
        ("k", {"w": "f32[4, 64]{0,1}"}, _laid_out(made.add())),
    ]
    kernel = Kernels(variants)["k"]
    for _ in range(2):
        assert (kernel(VALUES, np.asfortranarray(VALUES)) == 2 * VALUES).all()
        assert (kernel(VALUES, VALUES) == 0).all()
    kernel.prepare("f32[4, 64]", "f32[4, 64]{0,1}")
    with pytest.raises(ArgumentError, match=r"k has no variant for f32\[4, 64\]\{0,1\}, f32"):
        kernel(np.asfortranarray(VALUES), VALUES)
