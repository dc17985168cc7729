"""Hints about errors of JAX; `tests/wrong/` has kernels that give most others."""

import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallasc.compiler.lowering.constructs import hint

SHARED = "memref<8x128xi4> must have a number of elements that is a multiple of 128 (got 1024)"


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (
            ValueError(SHARED),
            "This version of JAX reads no elements smaller than a byte this way: pass them as "
            "int8.",
        ),
        (
            TypeError("Mesh.__init__() got an unexpected keyword argument 'scratch_shapes'"),
            "This version of JAX calls it scratch_types.",
        ),
        (
            TypeError("kernel() got an unexpected keyword argument 'out_shape'"),
            "This version of JAX calls it out_type.",
        ),
        (TypeError("Mesh.__init__() got an unexpected keyword argument 'axis'"), None),
        (NameError("no such name"), None),
        (ValueError("only even tiles"), None),
        (AssertionError(), None),
    ],
)
def test_an_error_of_jax_has_a_hint(error: Exception, wanted: str | None) -> None:
    assert hint(error) == wanted


def test_the_other_way_to_call_load_is_named() -> None:
    arguments = ("x", ()) if hasattr(plgpu, "store") else ("x",)
    with pytest.raises(TypeError) as caught:
        plgpu.load(*arguments)
    assert hint(caught.value) == (
        "This version of JAX takes no index: plgpu.load(ref.at[index], layout=...)."
        if hasattr(plgpu, "store")
        else "This version of JAX takes an index: plgpu.load(ref, (), layout=...) for all of it."
    )


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("TCGEN05_COL", "This version of JAX calls it plgpu.Layout.TCGEN05.reduce(axis)."),
        ("WGMA", "Did you mean 'WGMMA'?"),
    ],
)
def test_a_layout_that_this_version_lacks_is_named(name: str, wanted: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(plgpu.Layout, name)
    assert hint(caught.value) == wanted


def test_a_name_that_a_value_lacks_is_not_guessed() -> None:
    with pytest.raises(AttributeError) as caught:
        "".sqroot()  # type: ignore[attr-defined]
    assert hint(caught.value) is None
