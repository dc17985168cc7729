"""What is said to do about errors of JAX; `tests/wrong/` has kernels that give these messages."""

from __future__ import annotations

import math

import pytest

from pallasc.compiler.lowering.hints import hint

SWIZZLE = "Swizzle 128 requires the trailing dimension to be of size 64, but got shape: {}"


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ("(8, 1, 8, 32)", "Rows of 32 elements are 64 bytes: use SwizzleTransform(64)."),
        (
            "(8, 2, 8, 32)",
            "Rows of 32 elements are 64 bytes: use SwizzleTransform(64), or "
            "TilingTransform((8, 64)).",
        ),
        ("(64, 32)", "Rows of 32 elements are 64 bytes: use SwizzleTransform(64)."),
        (
            "(64, 128)",
            "Tile it first: transforms=(TilingTransform((8, 64)), SwizzleTransform(128)).",
        ),
        (
            "(8, 1, 8, 128)",
            "A row of the tiles has to be 128 bytes: use TilingTransform((8, 64)).",
        ),
        ("(4, 1, 8, 8)", "A row of the tiles has to be 128 bytes: use TilingTransform((8, 64))."),
    ],
)
def test_rows_that_a_swizzle_does_not_fit_are_told_what_does(shape: str, wanted: str) -> None:
    assert hint(ValueError(SWIZZLE.format(shape)), {}) == wanted


class _Tiling:
    def __init__(self, tiling: tuple[int, ...]) -> None:
        self.tiling = tiling

    def check(self, tiled_dims: tuple[int, ...]) -> None:
        assert all(d % t == 0 for d, t in zip(tiled_dims, self.tiling))  # noqa: B905


def test_the_dimension_that_tiles_do_not_divide_is_named() -> None:
    with pytest.raises(AssertionError) as caught:
        _Tiling((8, 64)).check((64, 100))
    assert hint(caught.value, {}) == (
        "100 is not a multiple of the tile, 64: choose tiles that divide the shape, or pad it to "
        "128."
    )


@pytest.mark.parametrize(
    ("number", "wanted"),
    [
        (100, "The 128 threads of a warpgroup share the elements evenly: pad them to 128."),
        (1024, None),
    ],
)
def test_elements_that_threads_cannot_share(number: int, wanted: str | None) -> None:
    text = f"memref<{number}xi4> must have a number of elements that is a multiple of 128 (got"
    assert hint(ValueError(f"{text} {number})"), {}) == wanted


def test_a_name_that_a_module_lacks_is_compared_with_those_it_has() -> None:
    with pytest.raises(AttributeError) as caught:
        math.sqroot(2)  # type: ignore[attr-defined]
    assert hint(caught.value, {}) == "Did you mean 'sqrt'?"
    with pytest.raises(AttributeError) as caught:
        "".sqroot()  # type: ignore[attr-defined]
    assert hint(caught.value, {}) is None


def test_other_errors_get_none() -> None:
    assert hint(ValueError("only even tiles"), {}) is None
    assert hint(AssertionError(), {}) is None
