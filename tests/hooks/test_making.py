"""What a build says of the bundles that it makes."""

from __future__ import annotations

from pallasc.hooks import making


def test_one_variant_is_one_and_many_are_counted() -> None:
    assert making._variants(1) == "1 variant"
    assert [making._variants(number) for number in (0, 2, 1024)] == [
        "0 variants", "2 variants", "1,024 variants",
    ]  # fmt: skip
