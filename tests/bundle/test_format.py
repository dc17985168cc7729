"""The head, the blob table and the catalog: what is packed comes back, what is none is refused."""

import struct

import pytest

from pallasc.errors import CorruptError
from pallasc.specs.bundle.bundle import open_bundle
from pallasc.specs.bundle.compress import ZSTD
from pallasc.specs.bundle.format import (
    HEAD_BYTES,
    MAGIC,
    BlobRow,
    Catalog,
    Extent,
    Head,
    Kind,
    PageRow,
    pack_catalog,
    pack_head,
    pack_rows,
    parse_head,
    parse_row,
    sha256,
)

HEAD = Head(
    minor=0,
    head_bytes=HEAD_BYTES,
    body_end=1000,
    catalog=Extent(300, 500),
    provenance=Extent(800, 200),
    content=sha256(b"content"),
    catalog_digest=sha256(b"catalog"),
    provenance_digest=sha256(b"provenance"),
    body_digest=sha256(b"body"),
)


def _with_root(data: bytes) -> bytes:
    return data[:-32] + sha256(data[:-32])


def _changed(**fields: int | Extent) -> bytes:
    return pack_head(HEAD._replace(**fields))  # type: ignore[arg-type]


def test_every_changed_bit_of_a_head_is_seen(small: bytes) -> None:
    for at in range(HEAD_BYTES):
        for bit in (1, 128):
            data = bytearray(small)
            data[at] ^= bit
            with pytest.raises(CorruptError):
                open_bundle(bytes(data))


def test_a_later_minor_version_with_a_longer_head_is_read() -> None:
    longer = bytearray(pack_head(HEAD._replace(minor=7))[:-32] + b"what is new in it")
    struct.pack_into("<I", longer, 12, len(longer) + 32)
    data = _with_root(bytes(longer) + bytes(32))
    head = parse_head(data + bytes(800), 1000, "x")
    assert (head.minor, head.head_bytes, head.catalog) == (7, len(data), HEAD.catalog)


@pytest.mark.parametrize(
    ("major", "hint"), [(2, "newer pallasc"), (9, "newer pallasc"), (0, "again")]
)
def test_another_major_version_is_refused_by_its_number(major: int, hint: str) -> None:
    data = bytearray(pack_head(HEAD))
    struct.pack_into("<HH", data, 8, major, 3)
    message = rf"^k\.pallasc has version {major}\.3 of the bundle format; this pallasc reads 1\."
    with pytest.raises(CorruptError, match=message) as caught:
        parse_head(bytes(data), 1000, "k.pallasc")
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize(
    ("data", "size", "words"),
    [
        (b"", 0, "x is empty"),
        (b"PK\3\4" + bytes(300), 304, "x is not a bundle"),
        (MAGIC[:5], 5, "x is not a bundle"),
        (MAGIC, 8, "x is cut off: it has 8 bytes of 216 or more"),
        (pack_head(HEAD)[:100], 100, "x is cut off: it has 100 bytes of 216"),
        (pack_head(HEAD), 999, "x is cut off: it has 999 bytes of 1000"),
        (_changed(catalog=Extent(300, 701)), 1000, r"catalog \(bytes"),
        (_changed(catalog=Extent(0, 5)), 1000,
         r"its catalog \(bytes 0 to 5\) is not inside its body \(bytes 216 to 1000\)\."),
        (_changed(provenance=Extent(2**63, 2**63)), 1000, r"provenance \(bytes"),
        (_changed(body_end=2**40, provenance=Extent(300, 2**21)), 2**40, "the limit is 1048576"),
        (_changed(body_end=2**40, catalog=Extent(300, 2**27), provenance=Extent(800, 0)), 2**40,
         "a catalog of 134217728 bytes; the limit is 67108864"),
        (pack_head(HEAD)[:12] + b"\0\0\0\0" + bytes(300), 1000, "its head has 0 bytes"),
        (pack_head(HEAD)[:12] + b"\xff\xff\0\0" + bytes(300), 1000, "its head has 65535 bytes"),
        (pack_head(HEAD)[:-1] + b"x", 1000, "does not match its digest"),
    ],
)  # fmt: skip
def test_what_is_no_head_is_refused(data: bytes, size: int, words: str) -> None:
    with pytest.raises(CorruptError, match=words):
        parse_head(data, size, "x")


# ---- the blob table


def _rows(sizes: list[tuple[int, int]], first: int = 216) -> list[BlobRow]:
    rows = []
    at = first
    for number, (stored, size) in enumerate(sizes):
        kind, place = Kind(number % 4), Extent(at, stored)
        rows.append(BlobRow(number, place, size, min(number, 3), kind, ZSTD, sha256(b"x")))
        at += stored
    return rows


BLOBS = _rows([(10, 100), (20, 200), (30, 300)])


@pytest.mark.parametrize(
    ("at", "value", "words"),
    [(8 + 36 + 1, b"\x06", "kind or coding: 6, 0"), (8 + 36 + 1, b"\x21", "kind or coding: 1, 2"),
     (8 + 12 + 4, struct.pack("<I", 2**30 + 1), "20 stored bytes for 1073741825"),
     (8 + 24 + 4, struct.pack("<I", 2), "base 2 blobs before it"),
     (8 + 36 + 1, b"\x01", "20 stored bytes for 200"),
     (8 + 4, struct.pack("<I", 2**32 - 1), "4294967295 stored bytes for 200")],
)  # fmt: skip
def test_a_row_that_describes_no_blob_is_refused(at: int, value: bytes, words: str) -> None:
    raw = bytearray(pack_rows(BLOBS))
    raw[at : at + len(value)] = value
    assert parse_row(bytes(raw), 0, len(BLOBS)) == BLOBS[0]
    with pytest.raises(CorruptError, match=words):
        parse_row(bytes(raw), 1, len(BLOBS))


# ---- the catalog

PAGES = [PageRow(Extent(100 * n, 100), 1000 + n, bytes([n]) * 32) for n in range(5)]
KEYS = [b"apple", b"melon", b"pear"]
PLACE = 500
CATALOG = pack_catalog(70, 130, PAGES, KEYS, {"codec": {"level": 3}})


@pytest.mark.parametrize(
    ("at", "value", "words"),
    [(0, 2**32 - 1, "more blobs or entries"), (0, 64, "do not add up"), (4, 2**24, "too early"),
     (4, 1, "do not add up"), (8, 2**20, "more blobs or entries"), (8, 0, "do not add up"),
     (16 + 5 * 48 + 8, 0, "do not add up")],
)  # fmt: skip
def test_counts_that_do_not_fit_are_refused(at: int, value: int, words: str) -> None:
    data = bytearray(CATALOG)
    struct.pack_into("<I", data, at, value)
    with pytest.raises(CorruptError, match=words):
        Catalog(bytes(data), PLACE)
