"""Bundles whose bytes can be changed anywhere and still be read far: for fuzzers.

`plain_bundle` has all pages in frames that zstd did not compress and all blobs raw, so that a
changed byte is a changed byte of what is parsed. `repair` makes every digest fit what is there, as
far as it can follow the bytes.
"""

from __future__ import annotations

import struct

from mutations import make_bundle
from taken_apart import Parts

from pallasc.specs.bundle.compress import RAW
from pallasc.specs.bundle.format import HEAD_BYTES, sha256

_PLACES = struct.Struct("<QQQQQ")
_PLACES_AT = 16
_DIGESTS_AT = _PLACES_AT + _PLACES.size + 32  # behind the digest of the content
_COUNTS = struct.Struct("<II")
_ROWS_AT = 16
_ROW = struct.Struct("<QII")
_ROW_BYTES = 48
_FRAME_BYTES = 5
_ON_EACH = 64


def frame(content: bytes) -> bytes:
    """Return a frame that holds a content as it is, in blocks of at most 128 KiB."""
    blocks = [content[at : at + 2**17] for at in range(0, len(content), 2**17)]
    parts = [b"\0\x50"]  # no sizes, a window of 1 MiB
    for number, block in enumerate(blocks):
        header = (len(block) << 3) | (number == len(blocks) - 1)
        parts.append(header.to_bytes(3, "little") + block)
    return b"".join(parts)


def plain_bundle(points: int = 4) -> bytes:
    """Return a bundle with everything in it and nothing compressed."""
    parts = Parts.of(make_bundle(points))
    for number, content in enumerate(parts.contents()):
        parts.set_content(number, content, coding=RAW)
    return parts.data(frame)


def repair(data: bytes) -> bytes:
    """Return the bytes with all digests made to fit, from the blobs to the root."""
    if len(data) < HEAD_BYTES:
        return data
    result = bytearray(data)
    body_end, catalog, catalog_bytes, origin, origin_bytes = _PLACES.unpack_from(data, _PLACES_AT)
    if catalog + catalog_bytes <= len(data) and catalog_bytes >= _ROWS_AT:
        _repair_pages(result, catalog, catalog_bytes)
    parts = [
        result[catalog : catalog + catalog_bytes],
        result[origin : origin + origin_bytes],
        result[HEAD_BYTES:body_end],
    ]
    for number, part in enumerate(parts):
        at = _DIGESTS_AT + 32 * number
        result[at : at + 32] = sha256(bytes(part))
    result[HEAD_BYTES - 32 : HEAD_BYTES] = sha256(bytes(result[: HEAD_BYTES - 32]))
    return bytes(result)


def _repair_pages(data: bytearray, catalog: int, size: int) -> None:
    entries, blobs = _COUNTS.unpack_from(data, catalog)
    tables = -(-blobs // _ON_EACH)
    pages = min(tables + -(-entries // _ON_EACH), (size - _ROWS_AT) // _ROW_BYTES)
    for number in range(pages):
        row = catalog + _ROWS_AT + number * _ROW_BYTES
        at, stored, raw = _ROW.unpack_from(data, row)
        if at + stored > len(data):
            continue
        if number < tables:
            _repair_table(data, at + _FRAME_BYTES, min(raw, stored - _FRAME_BYTES))
        data[row + 16 : row + 48] = sha256(bytes(data[at : at + stored]))


def _repair_table(data: bytearray, at: int, size: int) -> None:
    """Make the digests of raw blobs fit, in a page of the blob table."""
    count = (size - 8) // 45
    if count < 1 or at + 8 + 45 * count > len(data):
        return
    place = struct.unpack_from("<Q", data, at)[0]
    for number, stored in enumerate(struct.unpack_from(f"<{count}I", data, at + 8)):
        digest_at = at + 8 + 13 * count + 32 * number
        form = data[at + 8 + 12 * count + number]
        if form < 16 and place + stored <= len(data):
            data[digest_at : digest_at + 32] = sha256(bytes(data[place : place + stored]))
        place += stored
