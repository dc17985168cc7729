"""Limits as users write them."""

import pytest

from pallasc.cache.evict import DEFAULT_BYTES, Limits, parse_age, parse_size, read_limits
from pallasc.cache.format import size
from pallasc.errors import SpecError


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("5 gb", 5 * 10**9),
        ("1.5MiB", 3 * 2**19),
        (" 2TiB ", 2 * 2**40),
        ("0", None),
        ("none", None),
    ],
)
def test_a_size_is_read(text: str, count: int | None) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("5Gib5", "Write a number and a unit, such as 5GiB"),
        ("-5GiB", "Write a number and a unit"),
        ("1048576", "1048576' has no unit"),
        ("0GiB", "0 or none: no limit"),
    ],
)
def test_what_is_no_size_is_refused_with_what_to_write(text: str, hint: str) -> None:
    with pytest.raises(SpecError, match=hint):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "age_s"), [("12h", 43_200.0), ("90d", 7_776_000.0), ("2W", 1_209_600.0), ("0", None)]
)
def test_an_age_is_read(text: str, age_s: float | None) -> None:
    assert parse_age(text) == age_s


@pytest.mark.parametrize("text", ["90", "0d", "3 months", "-1d"])
def test_what_is_no_age_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(SpecError, match="12h, 90d, 2w, none"):
        parse_age(text)


def test_limits_are_finite_unless_the_environment_sets_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PALLASC_CACHE_SIZE", raising=False)
    monkeypatch.delenv("PALLASC_CACHE_AGE", raising=False)
    assert read_limits() == Limits(max_bytes=DEFAULT_BYTES, max_age_s=None)
    assert DEFAULT_BYTES == 10 * 2**30
    monkeypatch.setenv("PALLASC_CACHE_SIZE", "5GiB")
    monkeypatch.setenv("PALLASC_CACHE_AGE", "90d")
    wanted = Limits(max_bytes=5 * 2**30, max_age_s=90 * 86_400.0)
    assert read_limits() == wanted
    assert read_limits("none", "2w") == Limits(max_bytes=None, max_age_s=14 * 86_400.0)
    monkeypatch.setenv("PALLASC_CACHE_SIZE", "5Q")
    with pytest.raises(SpecError, match="PALLASC_CACHE_SIZE: '5Q' is not a size"):
        read_limits()
    with pytest.raises(SpecError, match="--age: '3 months' is not an age"):
        read_limits("1GiB", "3 months")


def test_sizes_are_for_people() -> None:
    counts = (0, 999, 1000, 2_150_000, 2_000_000_000, 3 << 30)
    shown = ["0 bytes", "999 bytes", "1 kB", "2.1 MB", "2 GB", "3 GiB"]
    assert [size(count) for count in counts] == shown
    assert size(1_500_000, limit=1 << 20) == "1.4 MiB"
