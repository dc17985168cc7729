"""The bundle's format: one file, read lazily, every byte of it covered by a digest.

Numbers are little-endian; `u16`, `u32`, `u64` are unsigned; a digest is a SHA-256, 32 bytes here
and 64 lower-case hexadecimal digits in JSON. JSON is canonical (`specs/canonical.py`).

    bundle     = head body signatures
    head       = magic major minor head_bytes body_end
                 catalog_at catalog_bytes provenance_at provenance_bytes
                 content catalog_digest provenance_digest body_digest more root
    magic      = 89 "pallasc"
    major      = u16                1; another one is refused by its number
    minor      = u16                2 where a variant is tuned or has reference values, else 1
                                    where it has source lines, else 0; a reader takes a later
                                    one and passes over what is new in it
    head_bytes = u32                bytes of the head; `more` is what later minors add
    body_end   = u64                where the signatures begin
    …_at       = u64                counted from the beginning of the file, as all places are
    …_bytes    = u64
    content    = digest             what the bundle holds, see below
    root       = digest             of all of the head before it; what signatures sign

    body       = { blob } { page } catalog provenance
    blob       = raw bytes, or a zstd frame without magic number, content size and checksum (RFC
                 8878, descriptor 00), whose dictionary is the content of its bases, outermost first
    page       = a zstd frame as above: first the pages of the blob table, then those of entries,
                 one after the other

    catalog    = entries blobs info_bytes u32           three counts and one that is 0
                 { row }                                of each page of the blob table
                 { row }                                of each page of entries
                 { key_end }                            of each page of entries
                 { key } info
    row        = page_at page_bytes raw_bytes digest    u64 u32 u32; the page's digest as stored
    key_end    = u32                where the first key of the page ends, among the keys
    info       = JSON object: "codec": {"level": number, "zstd": version}

A page holds 64 rows or entries, the last one the rest. Decompressed they are

    blob page  = first_at { stored } { size } { step } { form } { digest }
    first_at   = u64                where the first blob of the page lies; each follows the other
    stored     = u32                its bytes in the file
    size       = u32                bytes of its content
    step       = u32                its base is the blob that many numbers before it; 0: it has none
    form       = kind + 16 × coding, one byte; kind: 0 record, 1 cubin, 2 PTX, 3 constant,
                 4 source lines, 5 reference values; coding: 0 raw, 1 zstd
    digest     = of its content

    entry page = { end } { entry }
    end        = u32                where the entry ends, counted from the first one's beginning
    entry      = key LF about
    key        = name NUL target NUL params
    params     = JSON object of the matrix's parameters
    about      = JSON object, see `specs/bundle/manifest.py`

Entries are in the order of their keys, as bytes; no two have the same key. So one is found by
bisecting the keys of the catalog, then those of one page, and only that page is read.

**What is compiled and what ships.** `record` in an entry is the number of the artifact's record
(`specs/artifacts/artifact.py`), byte for byte as the compiler made it, so its digest is the
artifact's in store and lock. `blobs` says for each blob of the record, in the order of their
digests, which number it has here, null for one left out (PTX). A cubin without its debug sections
(`specs/bundle/strip.py`) is another one: the record has the digest of what was compiled, the blob
table that of what ships. `Bundle.artifact` gives a record in which each digest is of what ships.

**Digests.** `root` covers the head, the head the catalog, the catalog each page, the blob table the
content of each blob: whatever is read lazily is checked on its way up to `root`. `body_digest` is
over the whole body as it lies there, for `verify`. `content` is over

    "pallasc bundle content 1" LF { key LF about LF }

with digests in place of numbers in `about`: bundles with the same content have the same one,
whatever compressed them.

**Determinism.** The body follows from the set of entries, the level and the version of the zstd
library, which stand in `info`, and from the provenance, which comes last and is not part of
`content`. Neither order, time, folder nor machine is in it.

    provenance = nothing, or a JSON array of objects, see `specs/bundle/provenance.py`
    signatures = { algorithm key_id root signature }
    algorithm  = "ed25519" NUL
    key_id     = digest of the 32 bytes of the public key
    signature  = 64 bytes, over "pallasc bundle 1" LF root

Signatures are in the order of their key ids, at most one of each key. Nothing else changes when a
bundle is signed.

History:
    1.0  the first version.
    1.1  source lines (`specs/artifacts/source_lines.py`): a blob of kind 4 that an entry names in
         `lines`. A bundle without any is written as 1.0; a reader of 1.0 refuses the kind where it
         comes across it, which is when it verifies.
    1.2  what a variant of a tuned kernel carries, `tune` of an entry, and reference values
         (`specs/bundle/reference.py`): a blob of kind 5 that an entry names in `reference`. A
         bundle without any is written as 1.1 or 1.0. An earlier reader passes over `tune`, and so
         chooses without rows.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import NamedTuple

from pallasc.errors import CorruptError

MAGIC = b"\x89pallasc"
MAJOR, MINOR = 1, 2
MINOR_WITH_LINES = 1
MINOR_OF_OLD = 0
CONTENT_SCHEMA = b"pallasc bundle content 1\n"

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
"""Most entries, and most blobs."""
MAX_DEPTH = 8
"""Most bases that are needed for one blob."""
MAX_PATH_BYTES = 2**24
"""Most bytes that these have together."""
MAX_SIGNATURES = 64

NO_DIGEST = bytes(32)

_HEAD = struct.Struct("<8sHHIQQQQQ32s32s32s32s")
_VERSION = struct.Struct("<8sHHI")
_DIGEST_BYTES = 32
HEAD_BYTES = _HEAD.size + _DIGEST_BYTES


class Extent(NamedTuple):
    """A part of the file: where it begins, and its size in bytes."""

    at: int
    size: int

    @property
    def end(self) -> int:
        """Where what follows it begins."""
        return self.at + self.size


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a bundle, as in the grammar; packing and parsing it fill in `root`."""

    minor: int
    head_bytes: int
    body_end: int
    catalog: Extent
    provenance: Extent
    content: bytes
    catalog_digest: bytes
    provenance_digest: bytes
    body_digest: bytes
    root: bytes = NO_DIGEST


def sha256(data: bytes | memoryview) -> bytes:
    """Return the SHA-256 of `data`, 32 bytes."""
    return hashlib.sha256(data).digest()


def pack_head(head: Head) -> bytes:
    """Return the bytes of a head of this version."""
    data = _HEAD.pack(
        MAGIC,
        MAJOR,
        head.minor,
        HEAD_BYTES,
        head.body_end,
        *head.catalog,
        *head.provenance,
        head.content,
        head.catalog_digest,
        head.provenance_digest,
        head.body_digest,
    )
    return data + sha256(data)


def parse_head(start: bytes, size: int, name: str) -> Head:
    """Return the head of a file that begins with `start`.

    Args:
        start: its first bytes, `MAX_HEAD_BYTES` or all of them.
        size: bytes of the file.
        name: what messages call it.

    Raises:
        CorruptError: it is not a bundle, has another major version, is cut off or damaged.
    """
    if not start.startswith(MAGIC):
        what = "is empty" if not start else "is not a bundle"
        raise CorruptError(f"{name} {what}.")
    if len(start) < _VERSION.size:
        raise _cut_off(name, size, HEAD_BYTES)
    _, major, minor, head_bytes = _VERSION.unpack_from(start)
    if major != MAJOR:
        later = major > MAJOR
        raise CorruptError(
            f"{name} has version {major}.{minor} of the bundle format; this pallasc reads {MAJOR}.",
            hint="Install a newer pallasc." if later else "Make the bundle again.",
        )
    if not HEAD_BYTES <= head_bytes <= MAX_HEAD_BYTES:
        raise CorruptError(f"{name} is damaged: its head has {head_bytes} bytes.")
    if len(start) < head_bytes:
        raise _cut_off(name, size, head_bytes)
    covered = start[: head_bytes - _DIGEST_BYTES]
    root = start[head_bytes - _DIGEST_BYTES : head_bytes]
    if sha256(covered) != root:
        raise CorruptError(f"{name} is damaged: its head does not match its digest.")
    return _checked(_unpack(covered, root), size, name)


def _unpack(covered: bytes, root: bytes) -> Head:
    _, _, minor, head_bytes, end, *places, content, catalog, provenance, body = _HEAD.unpack_from(
        covered
    )
    return Head(
        minor=minor,
        head_bytes=head_bytes,
        body_end=end,
        catalog=Extent(*places[:2]),
        provenance=Extent(*places[2:]),
        content=content,
        catalog_digest=catalog,
        provenance_digest=provenance,
        body_digest=body,
        root=root,
    )


def _checked(head: Head, size: int, name: str) -> Head:
    if head.body_end > size:
        raise _cut_off(name, size, head.body_end)
    for label, part in (("catalog", head.catalog), ("provenance", head.provenance)):
        if not head.head_bytes <= part.at <= part.end <= head.body_end:
            raise CorruptError(
                f"{name} is damaged: its {label} (bytes {part.at} to {part.end}) ends after its "
                f"content, which has {head.body_end} bytes."
            )
    if head.catalog.size > MAX_CATALOG_BYTES:
        raise CorruptError(f"{name} has a catalog of {head.catalog.size} bytes: too many.")
    if head.provenance.size > MAX_PROVENANCE_BYTES:
        raise CorruptError(f"{name} has {head.provenance.size} bytes of provenance: too many.")
    return head


def _cut_off(name: str, size: int, expected: int) -> CorruptError:
    return CorruptError(
        f"{name} is cut off: it has {size} bytes of {expected} or more.",
        hint="Copy or download it again.",
    )
