"""Numbers of bytes as people read them."""

from __future__ import annotations

import pytest

from pallasc.cache.format import size


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1 kB"),
        (2_150_000, "2.1 MB"),
        (2_000_000_000, "2 GB"),
        (3 << 30, "3 GiB"),
    ],
)
def test_sizes_are_for_people(count: int, text: str) -> None:
    assert size(count) == text


def test_what_is_compared_with_a_binary_limit_is_told_in_binary_units() -> None:
    assert size(1_500_000, limit=1 << 20) == "1.4 MiB"
