"""Hints about errors of JAX; `tests/wrong/` has kernels that give most of these messages."""

from __future__ import annotations

import math

import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallasc.compiler.lowering.constructs import hint, message


def test_rows_that_a_swizzle_does_not_fit_are_told_what_does() -> None:
    text = "Swizzle 128 requires the trailing dimension to be of size 64, but got shape: (64, 32)"
    assert hint(ValueError(text)) == (
        "Each row of a tile must have 128 bytes: use plgpu.TilingTransform((8, 64)), or a smaller "
        "plgpu.SwizzleTransform."
    )


class _Tiling:
    def __init__(self, tiling: tuple[int, ...]) -> None:
        self.tiling = tiling

    def check(self, tiled_dims: tuple[int, ...]) -> None:
        assert all(d % t == 0 for d, t in zip(tiled_dims, self.tiling))  # noqa: B905


def test_tiles_that_do_not_divide_the_shape_have_a_hint() -> None:
    with pytest.raises(AssertionError) as caught:
        _Tiling((8, 64)).check((64, 100))
    assert hint(caught.value) == "Choose tiles that divide the shape, or pad the array."


@pytest.mark.parametrize(
    ("memory", "number", "wanted"),
    [
        (
            "memref<100xf32>",
            100,
            "The 128 threads of a warpgroup share the elements evenly: pad them to a multiple of "
            "128.",
        ),
        (
            "memref<8x128xi4>",
            1024,
            "This version of JAX reads no elements smaller than a byte this way: pass them as "
            "int8.",
        ),
    ],
)
def test_elements_that_threads_cannot_share(memory: str, number: int, wanted: str) -> None:
    text = f"{memory} must have a number of elements that is a multiple of 128 (got {number})"
    assert hint(ValueError(text)) == wanted


def test_a_reduction_across_warps_without_scratch_names_the_parameter() -> None:
    text = "scratch must be provided when cross-warp reduction is required"
    assert hint(ValueError(text)) == (
        "Use plgpu.CompilerParams(reduction_scratch_bytes=2048), or more."
    )


def test_the_other_way_to_call_load_is_named() -> None:
    arguments = ("x", ()) if hasattr(plgpu, "store") else ("x",)
    with pytest.raises(TypeError) as caught:
        plgpu.load(*arguments)
    assert hint(caught.value) == (
        "This version of JAX takes no index: plgpu.load(ref.at[index], layout=...)."
        if hasattr(plgpu, "store")
        else "This version of JAX takes an index: plgpu.load(ref, (), layout=...) for all of it."
    )


def test_each_way_to_declare_a_kernel_has_its_own_argument_names() -> None:
    with pytest.raises(TypeError) as caught:
        pl.pallas_call(print, out_type=None)  # type: ignore[call-arg]
    assert hint(caught.value) == (
        "Use plgpu.kernel or pl.kernel, and plgpu.emit_pipeline for blocks."
    )
    new = TypeError("kernel() got an unexpected keyword argument 'out_shape'")
    assert hint(new) == "This version of JAX calls it out_type."


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("WGMMA_ROW", "This version of JAX calls it plgpu.Layout.WGMMA.reduce(axis)."),
        ("TCGEN05_COL", "This version of JAX calls it plgpu.Layout.TCGEN05.reduce(axis)."),
        ("WGMA", "Did you mean 'WGMMA'?"),
    ],
)
def test_a_layout_that_this_version_lacks_is_named(name: str, wanted: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(plgpu.Layout, name)
    assert hint(caught.value) == wanted


def test_the_assertion_of_a_pallas_call_is_replaced_by_its_meaning() -> None:
    rule = None
    with pytest.raises(AssertionError) as caught:
        assert rule is not None
    assert message(caught.value) == (
        "JAX 0.11 and newer do not compile pl.pallas_call with Mosaic GPU"
    )
    assert hint(caught.value) == (
        "Use plgpu.kernel or pl.kernel, and plgpu.emit_pipeline for blocks."
    )
    assert message(AssertionError("tiles")) is None


def test_a_name_that_a_module_lacks_is_compared_with_those_it_has() -> None:
    with pytest.raises(AttributeError) as caught:
        math.sqroot(2)  # type: ignore[attr-defined]
    assert hint(caught.value) == "Did you mean 'sqrt'?"
    with pytest.raises(AttributeError) as caught:
        "".sqroot()  # type: ignore[attr-defined]
    assert hint(caught.value) is None


def test_other_errors_get_none() -> None:
    assert hint(ValueError("only even tiles")) is None
    assert hint(AssertionError()) is None
