"""The head of a bundle: what it says, which versions are read, what is refused."""

from __future__ import annotations

import struct

import pytest

from pallasc.errors import CorruptError
from pallasc.specs.bundle.bundle import open_bundle
from pallasc.specs.bundle.format import (
    HEAD_BYTES,
    MAGIC,
    Head,
    pack_head,
    parse_head,
    sha256,
)

HEAD = Head(
    minor=0,
    head_bytes=HEAD_BYTES,
    body_end=1000,
    catalog_at=300,
    catalog_bytes=500,
    provenance_at=800,
    provenance_bytes=200,
    content=sha256(b"content"),
    catalog_digest=sha256(b"catalog"),
    provenance_digest=sha256(b"provenance"),
    body_digest=sha256(b"body"),
)


def _with_root(data: bytes) -> bytes:
    return data[:-32] + sha256(data[:-32])


def _changed(**fields: int) -> bytes:
    return pack_head(HEAD._replace(**fields))  # type: ignore[arg-type]


def test_a_head_comes_back() -> None:
    data = pack_head(HEAD)
    assert len(data) == HEAD_BYTES
    assert parse_head(data + bytes(784), 1000, "x") == HEAD._replace(root=data[-32:])


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
        (
            _with_root(pack_head(HEAD._replace(catalog_at=300, catalog_bytes=701))),
            1000,
            r"catalog \(bytes",
        ),
        (
            _with_root(pack_head(HEAD._replace(catalog_at=0, catalog_bytes=5))),
            1000,
            r"catalog \(bytes 0",
        ),
        (
            pack_head(HEAD._replace(provenance_at=2**63, provenance_bytes=2**63)),
            1000,
            r"provenance \(bytes",
        ),
        (_changed(body_end=2**40, provenance_at=300, provenance_bytes=2**21), 2**40, "too many"),
        (
            _changed(body_end=2**40, catalog_bytes=2**27, provenance_bytes=0),
            2**40,
            "a catalog of 134217728 bytes: too many",
        ),
        (pack_head(HEAD)[:12] + b"\0\0\0\0" + bytes(300), 1000, "its head has 0 bytes"),
        (pack_head(HEAD)[:12] + b"\xff\xff\0\0" + bytes(300), 1000, "its head has 65535 bytes"),
        (pack_head(HEAD)[:-1] + b"x", 1000, "does not match its digest"),
    ],
)
def test_what_is_no_head_is_refused(data: bytes, size: int, words: str) -> None:
    with pytest.raises(CorruptError, match=words):
        parse_head(data, size, "x")
