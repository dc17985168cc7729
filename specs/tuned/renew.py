"""Rows with the digests that their variants have today, and the record of what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pallasc.errors import SpecError
from pallasc.specs.fields import typed
from pallasc.specs.loading.tuned_table import Table
from pallasc.specs.spec import Variant
from pallasc.specs.tuned.row_check import checked, is_edited
from pallasc.specs.tuning import Row, key_text, use_text

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
    if measured_as is None:
        return checked(replace(row, artifact=digests[0]))
    if measured_as in digests:
        return replace(row, artifact=measured_as, measured_as=None)
    return replace(row, artifact=digests[0], measured_as=measured_as)


def edited_row(
    kernel: str, by: Sequence[str], row: Row, known: Mapping[str, Sequence[Variant]]
) -> SpecError | None:
    """Return the error of a row that was measured of another point than it chooses, else None.

    Its own check tells; where it has none, or it was written again, what is known of its digests.

    Args:
        kernel: its kernel.
        by: the parameters of its key.
        row: a row whose digest is not that of a variant that it chooses today.
        known: variants by the digests of their artifacts, all points of the kernel among them.
    """
    if is_edited(row):
        return SpecError(
            f"{kernel}: the row for {row.gpu}, {key_text(by, row.key)} was edited: its check "
            f"{row.check} is not that of its gpu, key, use and artifact; no table is written.",
            location=row.place,
            hint="Its times are of what it was: restore the row, or tune this key again. If they "
            "hold, remove check from the row.",
        )
    for digest in filter(None, (row.artifact, row.measured_as)):
        points = [each for each in known.get(digest, ()) if each.name == kernel]
        if not points or any(_is_chosen(each, row) for each in points):
            continue
        values = dict(points[0].params)
        own = {name: values[name] for name in row.use if name in values}
        other = use_text(own) if typed(own) != typed(row.use) else points[0].id
        return SpecError(
            f"{kernel}: the row for {row.gpu}, {key_text(by, row.key)} uses {use_text(row.use)}, "
            f"and its artifact {digest} is that of {other}; no table is written.",
            location=row.place,
            hint=f"Its times are of {other}: restore the row, or tune this key again.",
        )
    return None


def _is_chosen(variant: Variant, row: Row) -> bool:
    rows = () if variant.tuning is None else variant.tuning.rows
    return variant.target.name == row.gpu and row in rows


def with_rows(table: Table, rows: Mapping[RowKey, Row]) -> Table:
    """Return the rows of a kernel, those of these models and keys replaced."""
    return table._replace(rows=tuple(rows.get(row_key(row), row) for row in table.rows))
