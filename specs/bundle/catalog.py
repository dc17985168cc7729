"""The catalog: where each page lies, its digest, and the first key of each page of entries.

It is kept as the bytes that it is stored in; only what is asked for is taken out of them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pallasc.errors import CorruptError
from pallasc.specs.bundle.compress import most_stored
from pallasc.specs.bundle.format import (
    BLOBS_PER_PAGE,
    ENTRIES_PER_PAGE,
    MAX_COUNT,
    MAX_INFO_BYTES,
    MAX_PAGE_BYTES,
    Extent,
)
from pallasc.specs.canonical import canonical_json
from pallasc.specs.untrusted_json import parse_json

_COUNTS = struct.Struct("<IIII")
_ROW = struct.Struct("<QII32s")
_KEY_END = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class PageRow:
    """Where a page lies, its size when decompressed, and the digest of its stored bytes."""

    extent: Extent
    raw_bytes: int
    digest: bytes


def pack_catalog(
    blobs: int,
    entries: int,
    rows: Sequence[PageRow],
    first_keys: Sequence[bytes],
    info: Mapping[str, object],
) -> bytes:
    """Return the bytes of a catalog.

    Args:
        blobs: how many there are.
        entries: how many there are.
        rows: those of the pages of the blob table, then those of entries.
        first_keys: the first key of each page of entries.
        info: what compressed the bundle.
    """
    text = canonical_json(info)
    parts = [_COUNTS.pack(entries, blobs, len(text), 0)]
    parts += [_ROW.pack(row.extent.at, row.extent.size, row.raw_bytes, row.digest) for row in rows]
    end = 0
    for key in first_keys:
        end += len(key)
        parts.append(_KEY_END.pack(end))
    return b"".join((*parts, *first_keys, text))


class Catalog:
    """A catalog, checked as far as it can be without reading a page.

    Args:
        data: its bytes.
        extent: where they lie; all pages and blobs lie before it.

    Raises:
        CorruptError: they are not a catalog.
    """

    def __init__(self, data: bytes, extent: Extent) -> None:
        if len(data) < _COUNTS.size:
            raise CorruptError(f"its catalog has {len(data)} bytes")
        counts: tuple[int, int, int, int] = _COUNTS.unpack_from(data)
        self.entries, self.blobs, info_bytes, _ = counts
        self.blob_pages = pages(self.blobs, BLOBS_PER_PAGE)
        self.entry_pages = pages(self.entries, ENTRIES_PER_PAGE)
        self._ends_at = _COUNTS.size + (self.blob_pages + self.entry_pages) * _ROW.size
        self._keys_at = self._ends_at + self.entry_pages * _KEY_END.size
        self._info_at = len(data) - info_bytes
        self._data = data
        self._before = extent.at
        if max(self.entries, self.blobs) > MAX_COUNT or info_bytes > MAX_INFO_BYTES:
            raise CorruptError("its catalog counts more than a bundle holds")
        if self._keys_at > len(data):
            raise CorruptError("its catalog ends too early")
        self._key_ends = (0, *struct.unpack_from(f"<{self.entry_pages}I", data, self._ends_at))
        if self._keys_at + self._key_ends[-1] != self._info_at:
            raise CorruptError("the sizes in its catalog do not add up")

    @property
    def info(self) -> dict[str, object]:
        """What compressed the bundle.

        Raises:
            CorruptError: it is not a JSON object.
        """
        info = parse_json(self._data[self._info_at :])
        if not isinstance(info, dict):
            raise CorruptError("the information in its catalog is not a JSON object")
        return info

    def page(self, index: int) -> PageRow:
        """Return the row of a page, counted over both kinds.

        Each page follows the one before it, so that no few bytes are read as a great many pages.

        Raises:
            CorruptError: it cannot be one.
        """
        place = _COUNTS.size + index * _ROW.size
        at, size, raw_bytes, digest = _ROW.unpack_from(self._data, place)
        last = _ROW.unpack_from(self._data, place - _ROW.size) if index else (at, 0)
        is_possible = raw_bytes <= MAX_PAGE_BYTES and size <= most_stored(raw_bytes)
        if at != last[0] + last[1] or at + size > self._before or not is_possible:
            raise CorruptError(
                f"page {index} of {raw_bytes} bytes lies at {at} to {at + size}, the one before it "
                f"ends at {last[0] + last[1]}, and the catalog begins at {self._before}"
            )
        return PageRow(Extent(at, size), raw_bytes, digest)

    def first_key(self, page: int) -> bytes:
        """Return the first key of a page of entries."""
        start, end = self._key_ends[page], self._key_ends[page + 1]
        return self._data[self._keys_at + start : self._keys_at + end]

    def find(self, key: bytes) -> int:
        """Return the page of entries that holds `key`, or would."""
        low, high = 0, self.entry_pages
        while low < high:
            middle = (low + high) // 2
            if self.first_key(middle) <= key:
                low = middle + 1
            else:
                high = middle
        return max(0, low - 1)

    def entries_on(self, page: int) -> int:
        """Return how many entries a page holds."""
        return min(ENTRIES_PER_PAGE, self.entries - page * ENTRIES_PER_PAGE)

    def blobs_on(self, page: int) -> int:
        """Return how many blobs a page describes."""
        return min(BLOBS_PER_PAGE, self.blobs - page * BLOBS_PER_PAGE)


def pages(count: int, on_each: int) -> int:
    """Return how many pages hold so many rows."""
    return -(-count // on_each)
