"""The catalog: pages are found by number and by key."""

from __future__ import annotations

import struct

import pytest

from pallasc.errors import CorruptError
from pallasc.specs.bundle.format import Catalog, Extent, PageRow, pack_catalog

ROWS = [PageRow(Extent(100 * n, 100), 1000 + n, bytes([n]) * 32) for n in range(5)]
KEYS = [b"apple", b"melon", b"pear"]
PLACE = 500
DATA = pack_catalog(70, 130, ROWS, KEYS, {"codec": {"level": 3}})


def test_a_catalog_comes_back() -> None:
    catalog = Catalog(DATA, PLACE)
    assert (catalog.blobs, catalog.entries) == (70, 130)
    assert (catalog.blob_pages, catalog.entry_pages) == (2, 3)
    assert [catalog.page(n) for n in range(5)] == ROWS
    assert [catalog.first_key(n) for n in range(3)] == KEYS
    assert catalog.info == {"codec": {"level": 3}}


@pytest.mark.parametrize(
    ("key", "page"),
    [(b"", 0), (b"aaa", 0), (b"apple", 0), (b"lemon", 0), (b"melon", 1), (b"orange", 1),
     (b"pear", 2), (b"zzz", 2)],
)  # fmt: skip
def test_the_page_that_may_hold_a_key_is_found(key: bytes, page: int) -> None:
    assert Catalog(DATA, PLACE).find(key) == page


def test_a_catalog_of_nothing_has_no_pages() -> None:
    catalog = Catalog(pack_catalog(0, 0, [], [], {}), PLACE)
    assert (catalog.blob_pages, catalog.entry_pages, catalog.find(b"x")) == (0, 0, 0)


@pytest.mark.parametrize(
    ("at", "value", "words"),
    [(0, 2**32 - 1, "more than a bundle"), (0, 64, "do not add up"), (4, 2**24, "too early"),
     (4, 1, "do not add up"), (8, 2**20, "more than a bundle holds"), (8, 0, "do not add up"),
     (16 + 5 * 48 + 8, 0, "do not add up")],
)  # fmt: skip
def test_counts_that_do_not_fit_are_refused(at: int, value: int, words: str) -> None:
    data = bytearray(DATA)
    struct.pack_into("<I", data, at, value)
    with pytest.raises(CorruptError, match=words):
        Catalog(bytes(data), PLACE)


@pytest.mark.parametrize("size", [0, 15, 16, 100, len(DATA) - 1])
def test_a_catalog_that_was_cut_off_is_refused(size: int) -> None:
    with pytest.raises(CorruptError, match="catalog"):
        Catalog(DATA[:size], PLACE)


@pytest.mark.parametrize(
    ("at", "value"), [(0, 2**63), (0, 401), (0, 300), (8, 2**31), (8, 101), (12, 2**23)]
)
def test_a_page_outside_of_the_file_is_refused(at: int, value: int) -> None:
    data = bytearray(DATA)
    struct.pack_into("<Q" if at == 0 else "<I", data, 16 + 4 * 48 + at, value)
    with pytest.raises(CorruptError, match="page 4"):
        Catalog(bytes(data), PLACE).page(4)


def test_a_page_that_takes_more_than_compression_makes_of_it_is_refused() -> None:
    data = bytearray(DATA)
    struct.pack_into("<I", data, 16 + 4 * 48 + 8, 4096)
    with pytest.raises(CorruptError, match="page 4"):
        Catalog(bytes(data), 2**20).page(4)


def test_information_of_another_form_is_refused() -> None:
    data = DATA[: -len(b'{"codec":{"level":3}}')] + b'["codec",{"level":3}]'
    with pytest.raises(CorruptError, match="is not a JSON object"):
        _ = Catalog(data, PLACE).info
