"""The bundle's format: one file, read on demand, every byte of it covered by a digest.

Numbers are little-endian; `u16`, `u32`, `u64` are unsigned; a digest is a SHA-256, 32 bytes here
and 64 lower-case hexadecimal digits in JSON. JSON is canonical (`specs/canonical.py`).

    bundle     = head body signatures
    head       = magic major minor head_bytes body_end
                 catalog_at catalog_bytes provenance_at provenance_bytes
                 content catalog_digest provenance_digest body_digest more root
    magic      = 89 "pallasc"
    major      = u16                1; any other version is rejected
    minor      = u16                2 if a variant is tuned or has reference values, else 1
                                    if a variant has source lines, else 0; a reader accepts
                                    later minor versions and ignores their additions
    head_bytes = u32                bytes of the head; later minors add `more`
    body_end   = u64                offset of the signatures
    …_at       = u64                offset from the start of the file, like all offsets
    …_bytes    = u64
    content    = digest             of the bundle's content, see below
    root       = digest             of the head's fields before it; signatures sign it

    body       = { blob } { page } catalog provenance
    blob       = raw bytes, or a zstd frame without magic number, content size, and checksum (RFC
                 8878, descriptor 00); its dictionary is the joined contents of the blob's base, the
                 base's base, and so on; the last of this chain, which has no base, comes first
    page       = a zstd frame as above; the pages of the blob table come first, then the pages
                 of entries, without gaps

    catalog    = entries blobs info_bytes u32           three counts and a zero
                 { row }                                of each page of the blob table
                 { row }                                of each page of entries
                 { key_end }                            of each page of entries
                 { key } info
    row        = page_at page_bytes raw_bytes digest    u64 u32 u32, digest of the compressed page
    key_end    = u32                end of the first key of the page, relative to the keys
    info       = JSON object: "codec": {"level": number, "zstd": version}

A page has 64 rows or entries; the last page has the rest. Decompressed, a page is

    blob page  = first_at { stored } { size } { step } { form } { digest }
    first_at   = u64                offset of the first blob of the page; the others follow it
    stored     = u32                the blob's bytes in the file
    size       = u32                bytes of its content
    step       = u32                the blob's number minus its base's number; 0: no base
    form       = kind + 16 × coding, one byte; kind: 0 record, 1 cubin, 2 PTX, 3 constant,
                 4 source lines, 5 reference values; coding: 0 raw, 1 zstd
    digest     = of its content

    entry page = { end } { entry }
    end        = u32                end of the entry, relative to the start of the first one
    entry      = key LF about
    key        = name NUL target NUL params
    params     = JSON object of the matrix's parameters
    about      = JSON object, see `specs/bundle/manifest.py`

Entries are sorted by key, as bytes; no two have the same key. To find one, bisect the keys of the
catalog, then the keys of one page; only that page is read.

**Compiled and shipped.** `record` in an entry is the blob number of the artifact's record
(`specs/artifacts/artifact.py`). This blob has the bytes that the compiler made, so its digest is
the artifact's digest in store and lock. `blobs` lists the record's blobs in the order of their
digests: the number of each in the blob table, or null if it was left out (PTX). A cubin without its
debug sections (`specs/bundle/strip.py`) is a different blob: the record has the digest of the
compiled cubin, the blob table the digest of the shipped one. `Bundle.artifact` returns a record
with the shipped digests.

**Digests.** `root` covers the head, the head covers the catalog, the catalog covers each page, and
the blob table covers the content of each blob: data that is read on demand is checked up to `root`.
`body_digest` covers the whole body as stored, for `verify`. `content` covers

    "pallasc bundle content 1" LF { key LF about LF }

with digests instead of numbers in `about`: bundles with the same content have the same digest,
however they were compressed.

**Determinism.** The body depends only on the set of entries, on the level and the version of the
zstd library, which are in `info`, and on the provenance, which comes last and is not part of
`content`. It does not depend on order, time, folder, or machine.

    provenance = nothing, or a JSON array of objects, see `specs/bundle/manifest.py`
    signatures = { algorithm key_id root signature }
    algorithm  = "ed25519" NUL
    key_id     = digest of the 32 bytes of the public key
    signature  = 64 bytes, over "pallasc bundle 1" LF root

Signatures are sorted by key id, at most one for each key. Signing changes nothing else in a bundle.

History:
    1.0  the first version.
    1.1  adds source lines (`specs/artifacts/source_lines.py`): a blob of kind 4 that an entry
         names in `lines`. A bundle without any is written as 1.0. A reader of 1.0 rejects such a
         blob when it reads the blob's row, which only `verify` does.
    1.2  adds the tuning data of a variant, `tune` of an entry, and reference values
         (`specs/bundle/tuned.py`): a blob of kind 5 that an entry names in `reference`. A
         bundle without any is written as 1.1 or 1.0. An earlier reader ignores `tune`, so it
         does not use the rows of the tuning table when it chooses a variant.
"""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from enum import IntEnum
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from pallasc.errors import CorruptError
from pallasc.specs.bundle.compress import RAW, ZSTD, most_stored
from pallasc.specs.canonical import canonical_json, parse_json

SUFFIX = ".pallasc"
MAGIC = b"\x89pallasc"
MAJOR, MINOR = 1, 2
MINOR_WITH_LINES = 1

ENTRIES_PER_PAGE = 64
BLOBS_PER_PAGE = 64

MAX_HEAD_BYTES = 4096
MAX_PAGE_BYTES = 2**22
MAX_CATALOG_BYTES = 2**26
MAX_INFO_BYTES = 2**16
MAX_PROVENANCE_BYTES = 2**20
MAX_RECORD_BYTES = 2**24
MAX_BLOB_BYTES = 2**30
MAX_COUNT = 2**24
"""Maximum number of entries, and of blobs."""
MAX_DEPTH = 8
"""Maximum number of bases for one blob."""
MAX_PATH_BYTES = 2**24
"""Maximum total size of these bases."""

_HEAD = struct.Struct("<8sHHIQQQQQ32s32s32s32s")
_VERSION = struct.Struct("<8sHHI")
_DIGEST_BYTES = 32
HEAD_BYTES = _HEAD.size + _DIGEST_BYTES
_BLOB_ROW_BYTES = 4 + 4 + 4 + 1 + _DIGEST_BYTES
_COUNTS = struct.Struct("<IIII")
_PAGE_ROW = struct.Struct("<QII32s")


class Extent(NamedTuple):
    """A part of the file: its offset and its size in bytes."""

    at: int
    size: int

    @property
    def end(self) -> int:
        """Offset of the first byte after it."""
        return self.at + self.size


class Head(NamedTuple):
    """The head of a bundle, as in the grammar; packing and parsing compute `root`."""

    minor: int
    head_bytes: int
    body_end: int
    catalog: Extent
    provenance: Extent
    content: bytes
    catalog_digest: bytes
    provenance_digest: bytes
    body_digest: bytes
    root: bytes = bytes(_DIGEST_BYTES)


class Kind(IntEnum):
    """Kinds of blobs."""

    RECORD = 0
    CUBIN = 1
    PTX = 2
    CONSTANT = 3
    LINES = 4
    REFERENCE = 5


class BlobRow(Struct, frozen=True):
    """A row of the blob table.

    Attributes:
        number: number of the blob.
        extent: extent of the stored bytes.
        size: bytes of the content.
        step: the blob's number minus its base's number; 0 if it has no base.
        kind: kind of its content.
        coding: `RAW` or `ZSTD`.
        digest: digest of the content.
    """

    number: int
    extent: Extent
    size: int
    step: int
    kind: Kind
    coding: int
    digest: bytes


class PageRow(NamedTuple):
    """Extent of a page, its decompressed size, and the digest of its stored bytes."""

    extent: Extent
    raw_bytes: int
    digest: bytes


def is_bundle(path: Path) -> bool:
    """Return True if a path is a bundle, by its name or by its first bytes."""
    # Check the name, too, so that messages call a truncated or missing bundle a bundle.
    if path.suffix == SUFFIX and not path.is_dir():
        return True
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def sha256(data: bytes | memoryview) -> bytes:
    """Return the SHA-256 of `data`, 32 bytes."""
    return hashlib.sha256(data).digest()


# ---- the head


def pack_head(head: Head) -> bytes:
    """Return the bytes of a head of this version."""
    data = _HEAD.pack(MAGIC, MAJOR, *head[:3], *head.catalog, *head.provenance, *head[5:-1])
    return data + sha256(data)


def parse_head(start: bytes, size: int, name: str) -> Head:
    """Parse the head of a file that begins with `start`.

    Args:
        start: the file's first bytes, `MAX_HEAD_BYTES` or all of them.
        size: size of the file in bytes.
        name: the file's name in messages.

    Raises:
        CorruptError: the file is not a bundle, has another major version, is truncated, or is
            damaged.
    """
    if not start.startswith(MAGIC):
        raise CorruptError(f"{name} {'is not a bundle' if start else 'is empty'}.")
    if len(start) < _VERSION.size:
        raise _cut_off(name, size, HEAD_BYTES)
    _, major, minor, head_bytes = _VERSION.unpack_from(start)
    if major != MAJOR:
        raise CorruptError(
            f"{name} has version {major}.{minor} of the bundle format; this pallasc reads {MAJOR}.",
            hint="Install a newer pallasc." if major > MAJOR else "Make the bundle again.",
        )
    if not HEAD_BYTES <= head_bytes <= MAX_HEAD_BYTES:
        raise CorruptError(f"{name} is damaged: its head has {head_bytes} bytes.")
    if len(start) < head_bytes:
        raise _cut_off(name, size, head_bytes)
    covered, root = start[: head_bytes - _DIGEST_BYTES], start[:head_bytes][-_DIGEST_BYTES:]
    if sha256(covered) != root:
        raise CorruptError(f"{name} is damaged: its head does not match its digest.")
    body_end, *places = _HEAD.unpack_from(covered)[4:]
    catalog, provenance, digests = Extent(*places[:2]), Extent(*places[2:4]), places[4:]
    head = Head._make((minor, head_bytes, body_end, catalog, provenance, *digests, root))
    if body_end > size:
        raise _cut_off(name, size, body_end)
    for label, part, most in (
        ("catalog", catalog, MAX_CATALOG_BYTES),
        ("provenance", provenance, MAX_PROVENANCE_BYTES),
    ):
        if not head_bytes <= part.at <= part.end <= body_end:
            raise CorruptError(
                f"{name} is damaged: its {label} (bytes {part.at} to {part.end}) is not inside its "
                f"body (bytes {head_bytes} to {body_end})."
            )
        if part.size > most:
            raise CorruptError(f"{name} has a {label} of {part.size} bytes; the limit is {most}.")
    return head


def _cut_off(name: str, size: int, expected: int) -> CorruptError:
    return CorruptError(
        f"{name} is cut off: it has {size} bytes of {expected} or more.",
        hint="Copy or download it again.",
    )


# ---- the blob table


def pack_rows(rows: Sequence[BlobRow]) -> bytes:
    """Return an uncompressed page of the table; its blobs must follow each other in the file."""
    numbers = [row.extent.size for row in rows]
    numbers += [row.size for row in rows]
    numbers += [row.step for row in rows]
    forms = bytes(row.kind + 16 * row.coding for row in rows)
    packed = struct.pack(f"<Q{len(numbers)}I", rows[0].extent.at, *numbers)
    return packed + forms + b"".join(row.digest for row in rows)


def parse_row(page: bytes, number: int, count: int) -> BlobRow:
    """Return the row of blob `number` from its page of the table, which has `count` rows.

    Raises:
        CorruptError: the page has another size, or the row does not describe a blob.
    """
    if len(page) != 8 + count * _BLOB_ROW_BYTES:
        raise CorruptError(f"a page of {len(page)} bytes does not describe {count} blobs")
    at, *numbers = struct.unpack_from(f"<Q{3 * count}I", page)
    index = number % BLOBS_PER_PAGE
    stored, size, step = numbers[index::count]
    coding, kind = divmod(page[8 + 12 * count + index], 16)
    digest_at = 8 + 13 * count + index * _DIGEST_BYTES
    if kind > max(Kind) or coding not in (RAW, ZSTD):
        raise CorruptError(f"blob {number} has an unknown kind or coding: {kind}, {coding}")
    is_raw = coding == RAW and stored == size and not step
    is_zstd = coding == ZSTD and stored <= most_stored(size)
    if size > MAX_BLOB_BYTES or step > number or not (is_raw or is_zstd):
        raise CorruptError(
            f"blob {number} has impossible sizes or an impossible base: {stored} stored bytes for "
            f"{size}, base {step} blobs before it"
        )
    extent = Extent(at + sum(numbers[:index]), stored)
    digest = page[digest_at : digest_at + _DIGEST_BYTES]
    return BlobRow(number, extent, size, step, Kind(kind), coding, digest)


# ---- the catalog


def pack_catalog(
    blobs: int,
    entries: int,
    rows: Sequence[PageRow],
    first_keys: Sequence[bytes],
    info: Mapping[str, object],
) -> bytes:
    """Return the bytes of a catalog.

    Args:
        blobs: number of blobs.
        entries: number of entries.
        rows: rows of the pages of the blob table, then of the pages of entries.
        first_keys: the first key of each page of entries.
        info: the codec that compressed the bundle.
    """
    text = canonical_json(info)
    ends = pack_ends(first_keys)
    packed = [_PAGE_ROW.pack(*row.extent, row.raw_bytes, row.digest) for row in rows]
    return b"".join((_COUNTS.pack(entries, blobs, len(text), 0), *packed, ends, *first_keys, text))


class Catalog:
    """A catalog in its stored form.

    Args:
        data: its bytes.
        at: its offset; all pages and blobs come before it.

    Raises:
        CorruptError: the bytes are not a catalog.
    """

    def __init__(self, data: bytes, at: int) -> None:
        if len(data) < _COUNTS.size:
            raise CorruptError(f"its catalog has {len(data)} bytes")
        counts: tuple[int, ...] = _COUNTS.unpack_from(data)
        self.entries, self.blobs, info_bytes, _ = counts
        self.blob_pages = -(-self.blobs // BLOBS_PER_PAGE)
        self.entry_pages = -(-self.entries // ENTRIES_PER_PAGE)
        ends_at = _COUNTS.size + (self.blob_pages + self.entry_pages) * _PAGE_ROW.size
        self._keys_at = ends_at + self.entry_pages * 4
        self._info_at = len(data) - info_bytes
        self._data, self._at = data, at
        if max(self.entries, self.blobs) > MAX_COUNT or info_bytes > MAX_INFO_BYTES:
            raise CorruptError("its catalog counts more blobs or entries than a bundle may have")
        if self._keys_at > len(data):
            raise CorruptError("its catalog ends too early")
        self._key_ends = (0, *struct.unpack_from(f"<{self.entry_pages}I", data, ends_at))
        if self._keys_at + self._key_ends[-1] != self._info_at:
            raise CorruptError("the sizes in its catalog do not add up")

    @property
    def info(self) -> Mapping[str, object]:
        """The codec that compressed the bundle.

        Raises:
            CorruptError: the catalog's `info` is not a JSON object.
        """
        info = parse_json(self._data[self._info_at :])
        if not isinstance(info, dict):
            raise CorruptError("the information in its catalog is not a JSON object")
        return info

    def page(self, index: int) -> PageRow:
        """Return the row of a page; pages of both kinds are numbered together.

        Each page must start where the page before it ends. Otherwise, all rows of a forged catalog
        could name the same few bytes, and a small file could be decompressed to a huge amount.

        Raises:
            CorruptError: the row is invalid.
        """
        place = _COUNTS.size + index * _PAGE_ROW.size
        at, size, raw_bytes, digest = _PAGE_ROW.unpack_from(self._data, place)
        end = at
        if index:
            before_at, before_size, *_ = _PAGE_ROW.unpack_from(self._data, place - _PAGE_ROW.size)
            end = before_at + before_size
        is_possible = raw_bytes <= MAX_PAGE_BYTES and size <= most_stored(raw_bytes)
        if at != end or at + size > self._at or not is_possible:
            raise CorruptError(
                f"page {index} ({raw_bytes} bytes, stored at {at} to {at + size}) is too large or "
                f"misplaced: it must start at {end} and end before the catalog at {self._at}"
            )
        return PageRow(Extent(at, size), raw_bytes, digest)

    def first_key(self, page: int) -> bytes:
        """Return the first key of a page of entries."""
        start, end = self._key_ends[page], self._key_ends[page + 1]
        return self._data[self._keys_at + start : self._keys_at + end]

    def find(self, key: bytes) -> int:
        """Return the page of entries that contains `key`, or would contain it."""
        return max(0, bisect_right(range(self.entry_pages), key, key=self.first_key) - 1)


def pack_ends(texts: Sequence[bytes]) -> bytes:
    """Return the end of each text, relative to the start of the first one."""
    return struct.pack(f"<{len(texts)}I", *accumulate(map(len, texts)))
