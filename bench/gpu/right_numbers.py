"""Run every kernel with random inputs and compare with numpy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from carried import Carried
from references import make_inputs, right_rows, row_axis, sample_rows, tolerances


def check_numbers(
    variants: Sequence[Carried], rows: int, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Return for each variant whether its numbers are right, and how wrong the worst one is."""
    found = []
    for variant in variants:
        began = time.perf_counter()
        try:
            row = _check(variant, rows)
        except Exception as error:  # noqa: BLE001 - it belongs into the report
            row = {"right": False, "error": f"{type(error).__name__}: {error}"}
        row = {"variant": variant.id, **row, "seconds": time.perf_counter() - began}
        found.append(row)
        say(f"{'right' if row['right'] else 'WRONG'}  {variant.id}  {row.get('error', '')}")
    return found


def _check(variant: Carried, count: int) -> dict[str, Any]:
    """Launch a variant on arrays of numpy and compare some rows of what comes back."""
    inputs = make_inputs(variant)
    result = variant.kernel()(**inputs)
    rows = sample_rows(variant, result.shape, count)
    wanted = right_rows(variant, inputs, rows).astype(result.dtype).astype(np.float32)
    got = np.take(result, rows, axis=row_axis(variant)).astype(np.float32)
    return compare(got, wanted, *tolerances(variant, wanted))


def compare(got: Any, wanted: Any, rtol: float, atol: float) -> dict[str, Any]:
    """Return whether all numbers are close, and by how many tolerances the worst one is off."""
    allowed = atol + rtol * np.abs(wanted)
    off = np.abs(got - wanted) / allowed
    worst = float(np.nanmax(off)) if np.isfinite(off).any() else float("inf")
    return {
        "right": bool(np.all(off <= 1)),  # not a number is not close
        "compared": int(got.size),
        "wrong": int(np.sum(~(off <= 1))),
        "worst": worst,
        "rtol": rtol,
        "atol": atol,
    }
