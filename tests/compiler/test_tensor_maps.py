"""Tensor maps: what kernels ask for in the words of the driver, and the driver's rules."""

from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from pallasc.compiler.lowering.mosaic_kernel import check_tensor_map, from_mosaic
from pallasc.errors import CompileError
from pallasc.specs.artifacts.plan import Im2col, TensorMap

# f16[8, 64, 256], windows of [1, 8, 64]
RECORDED: dict[str, Any] = {
    "element_type": 5, "sizes": (8, 64, 256), "strides": (16384, 256, 1), "swizzle_bytes": 128,
    "window": (1, 8, 64),
}  # fmt: skip
made = partial(from_mosaic, buffer=0, offset=0)


def test_dimensions_are_reversed_and_strides_are_bytes() -> None:
    assert from_mosaic(**RECORDED, buffer=2, offset=512) == TensorMap(
        buffer=2, offset=512, dtype="float16", dims=(256, 64, 8), strides=(512, 32768),
        box=(64, 8, 1), element_strides=(1, 1, 1), swizzle=128,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "dtype", "size"),
    [
        (1, "uint8", 1), (2, "uint16", 2), (3, "uint32", 4), (4, "uint64", 8), (5, "float16", 2),
        (6, "float32", 4), (7, "bfloat16", 2), (9, "int32", 4), (10, "int64", 8),
    ],
)  # fmt: skip
def test_element_types_have_the_drivers_names_and_sizes(kind: int, dtype: str, size: int) -> None:
    found = made(kind, (8, 256), (256, 1), 16, window=(8, 32))
    assert (found.dtype, found.strides) == (dtype, (256 * size,))


@pytest.mark.parametrize(("kind", "packing"), [(0, 2), (8, 4)])
def test_elements_under_a_byte_are_packed_along_the_minor_dimension(
    kind: int, packing: int
) -> None:
    found = made(kind, (64, 1024), (1024, 1), 16, window=(8, 256))
    assert (found.dtype, found.dims, found.strides, found.box) == (
        "uint8", (1024 // packing, 64), (1024 // packing,), (256 // packing, 8),
    )  # fmt: skip


def test_elements_that_do_not_fill_bytes_are_refused_and_a_swizzle_of_16_bytes_means_none() -> None:
    with pytest.raises(CompileError, match="4-bit elements does not fill whole bytes"):
        made(0, (4, 33), (33, 1), 16, window=(1, 32))
    assert made(**{**RECORDED, "swizzle_bytes": 16}).swizzle == 0


def test_windows_have_strides_of_the_spatial_dimensions() -> None:
    bounds = Im2col(lower=[-2, -1], upper=[0, -1], channels_per_pixel=32, pixels_per_column=64)
    found = made(5, (2, 16, 8, 64), (8192, 512, 64, 1), 64, im2col=bounds, steps=(2, 1))
    assert found.dims == (64, 8, 16, 2)
    assert found.element_strides == (1, 2, 1, 1)
    assert found.im2col == bounds


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"element_type": 11}, "unknown element type 11"),
        ({"strides": (16384, 256, 2)}, r"minor stride is \[2\] instead of 1"),
        ({"sizes": (), "strides": (), "window": ()}, r"minor stride is \[\] instead of 1"),
    ],
)
def test_a_descriptor_that_mosaic_would_not_make_is_refused(
    change: dict[str, Any], words: str
) -> None:
    with pytest.raises(CompileError, match=words):
        made(**{**RECORDED, **change})


GOOD = made(**RECORDED)
WINDOWS = made(
    5, (2, 16, 8, 64), (8192, 512, 64, 1), 64, steps=(1, 1),
    im2col=Im2col(lower=[-1, -1], upper=[-1, -1], channels_per_pixel=32, pixels_per_column=64),
)  # fmt: skip


def _window(**change: Any) -> dict[str, Any]:
    return {"im2col": {**dict(WINDOWS.im2col or {}), **change}}


@pytest.mark.parametrize(
    ("base", "change", "words"),
    [
        (GOOD, {"dims": (1,) * 6, "strides": (16,) * 5, "box": (8,) * 6,
                "element_strides": (1,) * 6}, "rank 6 is not in 1 to 5"),
        (GOOD, {"strides": (512,)}, "1 strides for rank 3"),
        (GOOD, {"offset": 8}, "offset 8 is not a multiple of 16"),
        (GOOD, {"dims": (256, 0, 8)}, r"sizes \(256, 0, 8\) exceed 2\^32 or are zero"),
        (GOOD, {"dims": (256, (1 << 32) + 1, 8)}, r"exceed 2\^32"),
        (GOOD, {"strides": (520, 32768)}, r"strides \(520, 32768\) are not all multiples of 16"),
        (GOOD, {"strides": (512, 1 << 40)}, r"multiples of 16 below 2\^40"),
        (GOOD, {"strides": (528, 32768), "interleave": 32}, "multiples of 32"),
        (GOOD, {"swizzle": 48}, "swizzle 48 is unknown"),
        (GOOD, {"element_strides": (1, 9, 1)}, r"element strides \(1, 9, 1\) are not all in"),
        (GOOD, {"element_strides": (1, 1)}, "element strides"),
        (GOOD, {"box": (64, 8)}, r"box \(64, 8\) for rank 3"),
        (GOOD, {"box": (64, 257, 1)}, r"box \(64, 257, 1\) is not in 1 to 256"),
        (GOOD, {"box": (64, 0, 1)}, "is not in 1 to 256"),
        (GOOD, {"box": (4, 8, 1)}, "the inner box of 8 bytes is not a multiple of 16 bytes"),
        (GOOD, {"box": (128, 8, 1)}, "inner box of 256 bytes is longer than the swizzle of 128"),
        (WINDOWS, {"dims": (64, 8), "strides": (128,), "element_strides": (1, 1)},
         "rank 2 is not in 3 to 5"),
        (WINDOWS, _window(lower=[-129, 0]), "are not all in -128 to 127"),
        (WINDOWS, _window(upper=[0]), "window bounds"),
        (WINDOWS, _window(channels_per_pixel=257), "257 channels/pixel"),
        (WINDOWS, _window(pixels_per_column=1025), "1025 pixels/column"),
        (WINDOWS, _window(channels_per_pixel=64), "128 bytes of channels exceed the"),
    ],
)  # fmt: skip
def test_a_rule_of_the_driver_that_is_broken_is_named(
    base: TensorMap, change: dict[str, Any], words: str
) -> None:
    check_tensor_map(base)
    with pytest.raises(CompileError, match="the driver would refuse .*" + words):
        check_tensor_map(replace(base, **change))
