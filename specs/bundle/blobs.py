"""The blob table: where each blob lies, how it is stored, and the digest of its content."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate

from pallasc.errors import CorruptError
from pallasc.specs.bundle.compress import RAW, ZSTD, most_stored
from pallasc.specs.bundle.format import MAX_BLOB_BYTES, Extent

_FIRST = struct.Struct("<Q")
_DIGEST_BYTES = 32
_ROW_BYTES = 4 + 4 + 4 + 1 + _DIGEST_BYTES


class Kind(IntEnum):
    """What a blob is."""

    RECORD = 0
    CUBIN = 1
    PTX = 2
    CONSTANT = 3
    LINES = 4
    REFERENCE = 5


@dataclass(frozen=True, slots=True)
class BlobRow:
    """A row of the table.

    Attributes:
        extent: where the stored bytes lie.
        size: bytes of the content.
        step: how many numbers before it its base has; 0 where it has none.
        kind: what it is.
        coding: `RAW` or `ZSTD`.
        digest: of the content.
    """

    extent: Extent
    size: int
    step: int
    kind: Kind
    coding: int
    digest: bytes


def pack_rows(rows: Sequence[BlobRow]) -> bytes:
    """Return a page of the table, before it is compressed; the blobs lie one after the other."""
    count = len(rows)
    numbers = struct.Struct(f"<{count}I")
    return b"".join(
        (
            _FIRST.pack(rows[0].extent.at),
            numbers.pack(*(row.extent.size for row in rows)),
            numbers.pack(*(row.size for row in rows)),
            numbers.pack(*(row.step for row in rows)),
            bytes(row.kind + 16 * row.coding for row in rows),
            *(row.digest for row in rows),
        )
    )


class BlobPage:
    """A page of the blob table.

    Args:
        raw: the decompressed page.
        first: number of its first blob.
        count: rows that it must hold.

    Raises:
        CorruptError: it does not hold them.
    """

    def __init__(self, raw: bytes, first: int, count: int) -> None:
        if len(raw) != _FIRST.size + count * _ROW_BYTES:
            raise CorruptError(f"a page of {len(raw)} bytes does not describe {count} blobs")
        numbers = struct.unpack_from(f"<{3 * count}I", raw, _FIRST.size)
        self._stored = numbers[:count]
        self._sizes = numbers[count : 2 * count]
        self._steps = numbers[2 * count :]
        self._starts = list(accumulate(self._stored, initial=_FIRST.unpack_from(raw)[0]))
        self._forms_at = _FIRST.size + 12 * count
        self._digests_at = self._forms_at + count
        self._raw = raw
        self._first = first

    def __len__(self) -> int:
        return len(self._stored)

    def digest(self, index: int) -> bytes:
        """Return the digest of a blob's content."""
        at = self._digests_at + index * _DIGEST_BYTES
        return self._raw[at : at + _DIGEST_BYTES]

    def row(self, index: int) -> BlobRow:
        """Return a row.

        Raises:
            CorruptError: it describes no blob.
        """
        coding, kind = divmod(self._raw[self._forms_at + index], 16)
        size, step, stored = self._sizes[index], self._steps[index], self._stored[index]
        number = self._first + index
        if kind > max(Kind) or coding not in (RAW, ZSTD):
            raise CorruptError(f"blob {number} is of kind {kind} and coding {coding}: unknown")
        is_raw = coding == RAW and stored == size and not step
        is_zstd = coding == ZSTD and stored <= most_stored(size)
        if size > MAX_BLOB_BYTES or step > number or not (is_raw or is_zstd):
            raise CorruptError(
                f"blob {number} takes {stored} bytes for {size}, and its base is {step} before it"
            )
        extent = Extent(self._starts[index], stored)
        return BlobRow(extent, size, step, Kind(kind), coding, self.digest(index))
