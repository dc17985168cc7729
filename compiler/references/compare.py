"""Compare the results of a launch with those of a reference.

Imports numpy: only workers do this.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pallasc.compiler.references.comparison import Comparison, Mismatch
from pallasc.errors import SpecError
from pallasc.specs.dtypes import parse_dtype
from pallasc.specs.spec import Tolerance

_SLICE = 1 << 22
"""Number of elements compared at a time, to bound the copies in double precision."""
_ULPS = 4


def read_array(
    file: Path, dtype: str, shape: Sequence[int], layout: Sequence[int] | None = None
) -> Any:
    """Read a numpy array from a file with the bytes of device memory.

    Args:
        file: the file.
        dtype: short name.
        shape: sizes of the dimensions.
        layout: dimensions, minor to major; None for row-major.

    Raises:
        SpecError: numpy has no such type.
    """
    return array_of(np.fromfile(file, np.uint8), dtype, shape, layout)


def array_of(
    data: Any, dtype: str, shape: Sequence[int], layout: Sequence[int] | None = None
) -> Any:
    """Return a numpy array from the bytes of device memory, an array of uint8.

    Args:
        data: the bytes.
        dtype: short name.
        shape: sizes of the dimensions.
        layout: dimensions, minor to major; None for row-major.

    Raises:
        SpecError: numpy has no such type.
    """
    kind, bits = numpy_dtype(dtype), parse_dtype(dtype).bits
    if bits >= 8:
        if layout is None:
            return data.view(kind).reshape(shape)
        order = list(reversed(layout))
        return data.view(kind).reshape([shape[dim] for dim in order]).transpose(np.argsort(order))
    count = math.prod(shape)
    columns = np.unpackbits(data, bitorder="little")[: count * bits].reshape(count, bits)
    elements = np.packbits(columns, axis=1, bitorder="little").reshape(-1)
    if dtype.startswith("i"):
        half = 1 << (bits - 1)
        signed: Any = (elements.astype(np.int8) ^ half) - half
        return signed.astype(kind).reshape(shape)
    return (elements.view if dtype.startswith("f") else elements.astype)(kind).reshape(shape)


def numpy_dtype(dtype: str) -> Any:
    """Return numpy's type for a short name.

    Raises:
        SpecError: neither numpy nor ml_dtypes has it.
    """
    import ml_dtypes

    name = parse_dtype(dtype).jax_name
    kind = getattr(np, name, None) or getattr(ml_dtypes, name, None)
    if kind is None:
        raise SpecError(f"numpy has no type for {dtype}.", hint="Upgrade ml_dtypes.")
    return np.dtype(kind)


def settle_tolerance(tolerance: Tolerance | None, dtype: str) -> tuple[float, float]:
    """Return `rtol` and `atol` for results of a type.

    A missing field is 0. Without a tolerance, floating-point numbers may differ by four units in
    the last place, relative to their size or to 1.
    """
    if tolerance is not None:
        return tolerance.rtol or 0.0, tolerance.atol or 0.0
    limit = _ULPS * epsilon(dtype)
    return limit, limit


def epsilon(dtype: str) -> float:
    """Return the distance from 1 to the next number of a type, 0 where all numbers are whole."""
    if dtype == "bool" or dtype[0] in "iu":
        return 0.0
    from jax import numpy as jnp

    limits: Any = jnp.finfo
    return float(limits(numpy_dtype(dtype)).eps)


def compare_arrays(actual: Any, expected: Any, *, rtol: float, atol: float) -> Comparison:
    """Return the differences of two arrays of one shape.

    Elements match if `|actual - expected| <= atol + rtol * |expected|`, or if both are NaN or the
    same infinity. `max_abs` and `max_rel` cover finite pairs, and are None if there are none;
    `max_rel` skips zeros of the reference.
    """
    result, reference = actual.reshape(-1), expected.reshape(-1)
    mismatches, first = 0, None
    max_abs: float | None = None
    max_rel: float | None = None
    for start in range(0, result.size, _SLICE):
        raw = [array[start : start + _SLICE] for array in (result, reference)]
        a, b = map(_widened, raw)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            distance, size = np.abs(a - b), np.abs(b)
            if all(array.dtype.kind in "iu" for array in raw):
                # Neighbouring 64-bit integers may be equal in double precision.
                distance[(raw[0] != raw[1]) & (distance == 0)] = 1
            finite = np.isfinite(a) & np.isfinite(b)
            same = (a == b) | (np.isnan(a) & np.isnan(b))
            wrong = np.where(finite, distance > atol + rtol * size, ~same)
            relative = distance[finite & (size > 0)] / size[finite & (size > 0)]
        mismatches += int(np.count_nonzero(wrong))
        if first is None and wrong.any():
            first = start + int(np.argmax(wrong))
        max_abs = _largest(max_abs, distance[finite])
        max_rel = _largest(max_rel, relative)
    return Comparison(
        count=int(result.size),
        mismatches=mismatches,
        rtol=rtol,
        atol=atol,
        max_abs=max_abs,
        max_rel=max_rel,
        first=None if first is None else _mismatch(actual, expected, first),
    )


def _widened(array: Any) -> Any:
    return array.astype(np.complex128 if np.iscomplexobj(array) else np.float64)


def _largest(largest: float | None, values: Any) -> float | None:
    if not values.size:
        return largest
    # The distance of two large numbers may be infinite, which JSON cannot express.
    return max(min(float(values.max()), sys.float_info.max), largest or 0.0)


def _mismatch(actual: Any, expected: Any, at: int) -> Mismatch:
    index = tuple(int(position) for position in np.unravel_index(at, actual.shape))
    return Mismatch(index, str(actual.reshape(-1)[at]), str(expected.reshape(-1)[at]))
