"""Whether a kernel's numbers are right: some rows of each result against numpy's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from carried import Carried
from references import right_rows, row_axis, sample_rows, tolerances


class Judge:
    """Compares results of one variant for the same inputs.

    Args:
        variant: the variant.
        inputs: its inputs, arrays of numpy.
        count: how many rows are compared.
    """

    def __init__(self, variant: Carried, inputs: Mapping[str, Any], count: int) -> None:
        self._variant, self._inputs, self._count = variant, inputs, count
        self._wanted: list[Any] | None = None
        self._rows: Any = None
        self._first: bytes | None = None

    def compare(self, *got: Any) -> dict[str, Any]:
        """Return what is to be said of results; `same_bytes`: as those that were compared first."""
        axis = row_axis(self._variant)
        if self._wanted is None:
            self._rows = sample_rows(self._variant, got[0].shape, self._count)
            self._wanted = right_rows(self._variant, self._inputs, self._rows)
        rows = [
            self._one(np.take(array, self._rows, axis=axis), wanted)
            for array, wanted in zip(got, self._wanted, strict=False)
        ]
        data = b"".join(array.tobytes() for array in got)
        self._first = self._first or data
        worst = max(rows, key=lambda row: row["worst"])
        return {
            **worst,
            "right": all(row["right"] for row in rows),
            "wrong": sum(row["wrong"] for row in rows),
            "compared": sum(row["compared"] for row in rows),
            "results": f"{len(rows)} of {len(got)}",
            "same_bytes": data == self._first,
            "worst": worst["worst"] if math.isfinite(worst["worst"]) else None,
        }

    def _one(self, got: Any, wanted: Any) -> dict[str, Any]:
        rounded = wanted.astype(got.dtype).astype(np.float32)
        return compare(got.astype(np.float32), rounded, *tolerances(self._variant, rounded))


def compare(got: Any, wanted: Any, rtol: float, atol: float) -> dict[str, Any]:
    """Return whether all numbers are close, and by how many tolerances the worst one is off."""
    off = np.abs(got - wanted) / (atol + rtol * np.abs(wanted))
    worst = float(np.nanmax(off)) if np.isfinite(off).any() else float("inf")
    return {
        "right": bool(np.all(off <= 1)),  # not a number is not close
        "compared": int(got.size),
        "wrong": int(np.sum(~(off <= 1))),
        "worst": worst,
        "rtol": rtol,
        "atol": atol,
    }
