"""Rows take digests of today, and keep that of what was measured."""

from __future__ import annotations

import pytest

from pallasc.specs.loading.tuned_table import Table
from pallasc.specs.tuned.renew import renewed, row_key, with_rows
from pallasc.specs.tuning import Row


def row(artifact: str | None, measured_as: str | None = None) -> Row:
    return Row("b200", (1,), {"a": 1}, artifact, "", None, measured_as)


@pytest.mark.parametrize(
    ("before", "digests", "after"),
    [
        (row("a"), ["a"], row("a")),
        (row("a"), ["b", "a"], row("a")),
        (row("a"), ["b", "c"], row("b", "a")),
        (row("b", "a"), ["c"], row("c", "a")),
        (row("b", "a"), ["b"], row("b", "a")),
        (row("b", "a"), ["c", "a"], row("a")),
        (row(None), ["b"], row("b")),
    ],
)
def test_a_row_is_renewed(before: Row, digests: list[str], after: Row) -> None:
    assert renewed(before, digests) == after


def test_rows_are_replaced_by_model_and_key() -> None:
    other = Row("b200", (True,), {"a": 1}, "x")
    table = Table(("m",), (row("a"), other))
    assert with_rows(table, {row_key(row("a")): row("b")}).rows == (row("b"), other)
