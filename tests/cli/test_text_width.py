"""Text on a terminal: what fits."""

from __future__ import annotations

import pytest

from pallasc.cli.output.text import cut


@pytest.mark.parametrize(
    ("text", "columns", "shown"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdef", 3, "abc"),
        ("abcdef", 0, ""),
        ("漢字漢", 4, "漢字"),
        ("漢字漢", 3, "漢"),
        ("e\u0301e\u0301", 1, "e\u0301"),
    ],
)
def test_cut_keeps_the_beginning_that_fits(text: str, columns: int, shown: str) -> None:
    assert cut(text, columns) == shown
