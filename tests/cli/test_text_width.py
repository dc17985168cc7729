"""Text on a terminal: its width, and what fits."""

from __future__ import annotations

import pytest

from pallasc.cli.output.text import cut, shorten, width


@pytest.mark.parametrize(
    ("text", "columns"),
    [("", 0), ("abc", 3), ("漢字", 4), ("e\u0301", 1), ("a\u200db", 2), ("…━", 2), ("ﾊﾝ", 2)],
)
def test_width_counts_wide_letters_twice_and_combining_ones_not_at_all(
    text: str, columns: int
) -> None:
    assert width(text) == columns


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


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (30, "matmul[m=1024,n=4096]@h100-sxm"),
        (29, "matmul[m=1024,…4096]@h100-sxm"),
        (12, "matmul…0-sxm"),
        (3, "m…m"),
        (1, "…"),
        (0, ""),
        (-5, ""),
    ],
)
def test_shorten_leaves_out_the_middle(columns: int, shown: str) -> None:
    assert shorten("matmul[m=1024,n=4096]@h100-sxm", columns) == shown


@pytest.mark.parametrize("columns", range(1, 25))
def test_what_is_shortened_fits_although_letters_are_wide(columns: int) -> None:
    assert columns - 2 <= width(shorten("行列の積[m=1,n=2]@h100-漢字漢字漢", columns)) <= columns
