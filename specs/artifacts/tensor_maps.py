"""The driver's rules for tensor maps; plans are checked when they are built and when loaded.

Rules of `cuTensorMapEncodeTiled` (CUDA driver API, "Tensor Map Object Management"): rank 1 to 5,
byte strides divisible by 16 and below 2^40, sizes at most 2^32, box at most 256 in each dimension,
the inner box a multiple of 16 bytes and not longer than the swizzle, element strides 1 to 8. Rules
of `cuTensorMapEncodeIm2col`: rank 3 to 5, bounds of 16, 8 or 5 bits, at most 256 channels and 1024
pixels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pallasc.specs.artifacts.plan import Im2col, TensorMap

ELEMENT_BYTES = {
    "uint8": 1, "uint16": 2, "float16": 2, "bfloat16": 2, "uint32": 4, "int32": 4, "float32": 4,
    "uint64": 8, "int64": 8, "float64": 8,
}  # fmt: skip
"""Sizes of element types, by the driver's names."""

# Values of the driver's enumerations `CUtensorMap…`.
DTYPES = {
    "uint8": 0, "uint16": 1, "uint32": 2, "int32": 3, "uint64": 4, "int64": 5, "float16": 6,
    "float32": 7, "float64": 8, "bfloat16": 9,
}  # fmt: skip
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
PROMOTIONS = {0: 0, 64: 1, 128: 2, 256: 3}
INTERLEAVES = {0: 0, 16: 1, 32: 2}

_Rules = Iterator[tuple[bool, str]]


def broken_rule(m: TensorMap) -> str | None:
    """Return the driver's rule that a tensor map breaks, with the value; None if it breaks none."""
    for rules in (_modes, _array_rules, _shape_rules):
        for holds, text in rules(m):
            if not holds:
                return text
    return None


def _modes(m: TensorMap) -> _Rules:
    yield m.dtype in ELEMENT_BYTES, f"element type {m.dtype} is unknown"
    yield m.swizzle in (0, 32, 64, 128), f"swizzle {m.swizzle} is unknown"
    yield m.interleave in (0, 16, 32), f"interleave {m.interleave} is unknown"
    yield m.l2_promotion in (0, 64, 128, 256), f"L2 promotion {m.l2_promotion} is unknown"


def _array_rules(m: TensorMap) -> _Rules:
    rank, step = len(m.dims), 32 if m.interleave == 32 else 16
    yield 1 <= rank <= 5, f"rank {rank} is not in 1 to 5"
    yield m.offset % step == 0, f"it starts at byte {m.offset}, no multiple of {step}"
    yield len(m.strides) == rank - 1, f"{len(m.strides)} strides for rank {rank}"
    sizes = all(0 < n <= 1 << 32 for n in m.dims)
    yield sizes, f"sizes {m.dims} exceed 2^32 or are zero"
    strides = all(n % step == 0 and 0 <= n < 1 << 40 for n in m.strides)
    yield strides, f"byte strides {m.strides} are not all multiples of {step} below 2^40"
    element_strides = len(m.element_strides) == rank and all(1 <= n <= 8 for n in m.element_strides)
    yield element_strides, f"element strides {m.element_strides} are not all within 1 to 8"


def _shape_rules(m: TensorMap) -> _Rules:
    return _box_rules(m) if m.im2col is None else _window_rules(m, m.im2col)


def _box_rules(m: TensorMap) -> _Rules:
    yield len(m.box) == len(m.dims), f"box {m.box} for rank {len(m.dims)}"
    yield all(1 <= n <= 256 for n in m.box), f"box {m.box} is not within 1 to 256"
    inner = m.box[0] * ELEMENT_BYTES[m.dtype]
    yield inner % 16 == 0, f"the inner box of {inner} bytes is not a multiple of 16 bytes"
    fits = not m.swizzle or inner <= m.swizzle
    yield fits, f"the inner box of {inner} bytes is longer than the swizzle of {m.swizzle}"


def _window_rules(m: TensorMap, window: Im2col) -> _Rules:
    yield len(m.dims) >= 3, f"rank {len(m.dims)} is not in 3 to 5"
    spatial = len(m.dims) - 2
    most = 1 << (16 // spatial - 1)
    bounds = [*window["lower"], *window["upper"]]
    within = len(bounds) == 2 * spatial and all(-most <= n < most for n in bounds)
    yield within, f"window bounds {bounds} are not all within {-most} to {most - 1}"
    channels, pixels = window["channels_per_pixel"], window["pixels_per_column"]
    yield 1 <= channels <= 256, f"{channels} channels a pixel are not within 1 to 256"
    yield 1 <= pixels <= 1024, f"{pixels} pixels a column are not within 1 to 1024"
    inner = channels * ELEMENT_BYTES[m.dtype]
    fits = not m.swizzle or inner <= m.swizzle
    yield fits, f"{inner} bytes of channels are longer than the swizzle of {m.swizzle}"
