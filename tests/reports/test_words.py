"""Numbers and statuses as people read them."""

from __future__ import annotations

import pytest

from pallasc.reports.words import status_count


@pytest.mark.parametrize(
    ("status", "amount", "text"),
    [("hit", 1, "1 hit"), ("hit", 4000, "4,000 hits"), ("compiled", 4, "4 compiled")],
)
def test_only_hits_are_counted_in_the_plural(status: str, amount: int, text: str) -> None:
    assert status_count(status, amount) == text
