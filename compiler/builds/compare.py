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

from pallasc.errors import SpecError
from pallasc.specs.dtypes import parse_dtype
from pallasc.specs.spec import Tolerance

_SLICE = 1 << 22
"""Elements that are compared at a time, so that copies in double precision stay small."""
_ULPS = 4


def read_array(
    file: Path, dtype: str, shape: Sequence[int], layout: Sequence[int] | None = None
) -> Any:
    """Return an array of numpy from a file with the bytes of device memory.

    Args:
        file: the file.
        dtype: short name.
        shape: sizes of the dimensions.
        layout: the dimensions from the minor one, None for row-major.

    Raises:
        SpecError: numpy has no such type.
    """
    data = np.fromfile(file, np.uint8)
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
    found = getattr(np, name, None) or getattr(ml_dtypes, name, None)
    if found is None:
        raise SpecError(f"numpy has no type for {dtype}.", hint="Upgrade ml_dtypes.")
    return np.dtype(found)


def settle_tolerance(tolerance: Tolerance | None, dtype: str) -> tuple[float, float]:
    """Return `rtol` and `atol` for results of a type.

    What a tolerance does not say is 0. Without one, floating-point numbers may differ by four units
    in the last place, of their size or of 1.
    """
    if tolerance is not None:
        return tolerance.rtol or 0.0, tolerance.atol or 0.0
    if dtype == "bool" or dtype[0] in "iu":
        return 0.0, 0.0
    from jax import numpy as jnp

    limits: Any = jnp.finfo
    eps = _ULPS * float(limits(numpy_dtype(dtype)).eps)
    return eps, eps


def compare_arrays(got: Any, wanted: Any, *, rtol: float, atol: float) -> dict[str, Any]:
    """Return how far two arrays of one shape are apart, as plain data.

    An element is right where `|got - wanted| <= atol + rtol * |wanted|`, or both are the same
    infinity or NaN. `max_abs` and `max_rel` are those of pairs that are finite, None without any;
    `max_rel` leaves out where the reference has 0.
    """
    result, right = got.reshape(-1), wanted.reshape(-1)
    mismatches, first = 0, None
    max_abs: float | None = None
    max_rel: float | None = None
    for start in range(0, result.size, _SLICE):
        raw = [array[start : start + _SLICE] for array in (result, right)]
        a, b = map(_widened, raw)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            distance, size = np.abs(a - b), np.abs(b)
            if all(array.dtype.kind in "iu" for array in raw):
                # Double precision does not tell all neighbours of 64 bits apart.
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
    found = {"count": int(result.size), "mismatches": mismatches, "rtol": rtol, "atol": atol}
    return {**found, "max_abs": max_abs, "max_rel": max_rel, "first": _place(got, wanted, first)}


def _widened(array: Any) -> Any:
    return array.astype(np.complex128 if np.iscomplexobj(array) else np.float64)


def _largest(known: float | None, values: Any) -> float | None:
    if not values.size:
        return known
    # JSON has no infinity, which the distance of two large numbers may be.
    return max(min(float(values.max()), sys.float_info.max), 0.0 if known is None else known)


def _place(got: Any, wanted: Any, at: int | None) -> dict[str, Any] | None:
    """Return where the first wrong element is, and both numbers as text."""
    if at is None:
        return None
    return {
        "index": [int(position) for position in np.unravel_index(at, got.shape)],
        "got": str(got.reshape(-1)[at]),
        "wanted": str(wanted.reshape(-1)[at]),
    }
