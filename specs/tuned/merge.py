"""A kernel's rows of a table with new ones in them: which go, which stay, what has changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from pallasc.specs.canonical import canonical_text
from pallasc.specs.templates import Scalar
from pallasc.specs.tuned.rows import Picked
from pallasc.specs.tuning import Row, row_order

ChangeKind = Literal["added", "changed", "measured", "dropped", "same"]
"""What became of a row: `measured` has new figures or another artifact of the same variant."""


class RowChange(NamedTuple):
    """What became of a row.

    Attributes:
        kind: what.
        row: as it is now; as it was, of one that is dropped.
        before: as it was, None of one that is new.
    """

    kind: ChangeKind
    row: Row
    before: Row | None


def merged_rows(old: Sequence[Row], picked: Picked) -> list[RowChange]:
    """Return what becomes of each row, in the order of a table.

    Rows of other models stay, and those of keys and buckets that nothing was decided of. A key that
    was measured, and now uses what its bucket's row says, has no row of its own any more.
    """
    replaced = {_id(row) for row in picked.rows}
    gone = {canonical_text([picked.kernel.gpu, list(own.key.key)]) for own in picked.served}
    before = {_id(row): row for row in old}
    stay = [row for row in old if _id(row) not in gone | replaced]
    after = {_id(row): row for row in [*stay, *picked.rows]}
    changes = [RowChange(_kind(before.get(name), row), row, before.get(name))
               for name, row in after.items()]  # fmt: skip
    changes += [RowChange("dropped", row, row) for name, row in before.items() if name not in after]
    return sorted(changes, key=lambda change: row_order(change.row))


def rows_after(changes: Iterable[RowChange]) -> tuple[Row, ...]:
    """Return the rows that a table has now."""
    return tuple(change.row for change in changes if change.kind != "dropped")


def _id(row: Row) -> str:
    key: list[Scalar] = list(row.key)
    return canonical_text([row.gpu, key])


def _kind(before: Row | None, after: Row) -> ChangeKind:
    if before is None:
        return "added"
    if canonical_text(before.use) != canonical_text(after.use):
        return "changed"
    return "same" if before == after else "measured"
