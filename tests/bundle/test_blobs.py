"""The blob table: rows come back, and what describes no blob is refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallasc.errors import CorruptError
from pallasc.specs.bundle.compress import RAW, ZSTD
from pallasc.specs.bundle.format import (
    BlobRow,
    Extent,
    Kind,
    check_blob_page,
    pack_rows,
    parse_row,
    sha256,
)


def _rows(sizes: list[tuple[int, int]], first: int = 216) -> list[BlobRow]:
    rows = []
    at = first
    for number, (stored, size) in enumerate(sizes):
        rows.append(
            BlobRow(
                number,
                Extent(at, stored),
                size,
                min(number, 3),
                Kind(number % 4),
                ZSTD,
                sha256(b"x"),
            )
        )
        at += stored
    return rows


ROWS = _rows([(10, 100), (20, 200), (30, 300)])
PAIRS = st.tuples(st.integers(0, 2**30), st.integers(0, 2**30)).map(
    lambda pair: tuple(sorted(pair))
)


@given(st.lists(PAIRS, min_size=1, max_size=64))
def test_rows_come_back(sizes: list[tuple[int, int]]) -> None:
    rows = _rows(sizes)
    page = check_blob_page(pack_rows(rows), len(rows))
    assert [parse_row(page, number) for number in range(len(rows))] == rows


def test_a_raw_blob_is_as_long_as_its_content() -> None:
    row = BlobRow(640, Extent(216, 5), 5, 0, Kind.CONSTANT, RAW, sha256(b"x"))
    assert parse_row(pack_rows([row]), 640) == row


@pytest.mark.parametrize("size", [0, 8, len(pack_rows(ROWS)) - 1, len(pack_rows(ROWS)) + 1])
def test_a_page_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(CorruptError, match="does not describe 3 blobs"):
        check_blob_page((pack_rows(ROWS) + b"\0")[:size], 3)


@pytest.mark.parametrize(
    ("at", "value", "words"),
    [(8 + 36 + 1, b"\x06", "kind 6 and coding 0"), (8 + 36 + 1, b"\x21", "kind 1 and coding 2"),
     (8 + 12 + 4, struct.pack("<I", 2**30 + 1), "blob 1 takes"),
     (8 + 24 + 4, struct.pack("<I", 2), "its base is 2 before it"),
     (8 + 36 + 1, b"\x01", "blob 1 takes 20 bytes for 200"),
     (8 + 4, struct.pack("<I", 2**32 - 1), "blob 1 takes 4294967295 bytes for 200")],
)  # fmt: skip
def test_a_row_that_describes_no_blob_is_refused(at: int, value: bytes, words: str) -> None:
    raw = bytearray(pack_rows(ROWS))
    raw[at : at + len(value)] = value
    assert parse_row(bytes(raw), 0) == ROWS[0]
    with pytest.raises(CorruptError, match=words):
        parse_row(bytes(raw), 1)
