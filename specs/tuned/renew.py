"""Rows with the digests that their variants have today, and the record of what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pallasc.specs.fields import typed
from pallasc.specs.loading.tuned_table import Table
from pallasc.specs.tuning import Row

RowKey = tuple[str, str]
"""What a row of a kernel is found by: its model, and its key with the types of its values."""


def row_key(row: Row) -> RowKey:
    """Return what a row of a kernel is found by."""
    return row.gpu, typed(row.key)


def renewed(row: Row, digests: Sequence[str]) -> Row:
    """Return a row with a digest of today.

    Args:
        row: the row.
        digests: those of the variants that it may have been measured of, that which stands for it
            first.
    """
    if row.artifact in digests:
        return row
    measured_as = row.measured_as or row.artifact
    if measured_as in digests:
        return replace(row, artifact=measured_as, measured_as=None)
    return replace(row, artifact=digests[0], measured_as=measured_as)


def with_rows(table: Table, rows: Mapping[RowKey, Row]) -> Table:
    """Return the rows of a kernel, those of these models and keys replaced."""
    return table._replace(rows=tuple(rows.get(row_key(row), row) for row in table.rows))
