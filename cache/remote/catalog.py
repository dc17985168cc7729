"""The format of a remote store: the names of its objects, and the catalog of a namespace.

    below the address:
    pallasc/v2/<namespace>/catalog          the only object that changes
    pallasc/v2/<namespace>/packs/<digest>   a pack, see `cache/packs.py`

    namespace = digest over the versions of the toolchain's parts and the salt: keeps catalogs small
    digest    = 64 lower-case hexadecimal digits, SHA-256 of all bytes of the object
    catalog   = "pallasc-remote 2" LF digest:32 { row }      newest pack first; SHA-256 of the rows
    row       = pack:32 tail:32 bytes:u32 offset:u32 used:u32 names:u32 { name:32 }
    tail      = SHA-256 of the pack from `offset` to its end: records, manifests, the pack's index
    used      = when a writer last wrote or read the pack, in seconds since 1970
    name      = of a manifest, as in `cache/format.py`

All numbers are little-endian. A pack is complete: it has the record and the blobs that its
manifests lead to, blobs before `offset`. Packs are written before the catalog that names them, so
a reader finds only complete ones, and a pack that no catalog names is garbage. Readers skip a pack
or frame that is over the limits below.

History:
    1  catalog, index, and cost objects in JSON.
    2  one binary catalog; a reader of this version ignores `pallasc/v1`.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from pallasc.cache.manifests import MAX_SETS
from pallasc.errors import CorruptError
from pallasc.specs.canonical import labelled_key

ROOT = "pallasc/v2"
MAX_CATALOG_BYTES = 4 * 2**20
"""About 125,000 variants; the oldest packs leave a catalog that would be larger."""
MAX_ROWS = 10_000
MAX_PACK_BYTES = 12 * 2**20
MAX_TAIL_BYTES = 4 * 2**20
MAX_FRAME_BYTES = 8 * 2**20
"""Of a frame's content."""
_MAGIC = b"pallasc-remote 2\n"
_HEAD = len(_MAGIC) + 32
_ROW = struct.Struct("<32s32sIIII")
_NAME, _PREFIX = 32, 16


class PackRow(NamedTuple):
    """A pack as the catalog has it; see the module for the fields."""

    pack: str
    tail: str
    size: int
    offset: int
    used: int
    names: bytes

    def each(self) -> Iterator[bytes]:
        """Yield the names of its manifests, 32 bytes each."""
        return (self.names[at : at + _NAME] for at in range(0, len(self.names), _NAME))


class Change(NamedTuple):
    """What a writer does to a catalog; it can be applied again to a newer one.

    Attributes:
        added: new packs.
        used: packs that were read, and when.
        dropped: packs that are gone, damaged, or no longer needed.
    """

    added: tuple[PackRow, ...] = ()
    used: Mapping[str, int] = {}
    dropped: Collection[str] = ()


class Catalog(NamedTuple):
    """The packs of a namespace, newest first."""

    rows: tuple[PackRow, ...] = ()

    def names(self) -> set[bytes]:
        """Return the names of all manifests."""
        return {name for row in self.rows for name in row.each()}

    def find(self, prefixes: Iterable[str]) -> dict[PackRow, list[str]]:
        """Return the names that begin with one of these prefixes, by pack, newest first."""
        left = dict.fromkeys(map(bytes.fromhex, prefixes), MAX_SETS)
        found: dict[PackRow, list[str]] = {}
        seen: set[bytes] = set()
        for row in self.rows:
            for name in row.each():
                if left.get(name[:_PREFIX], 0) and name not in seen:
                    left[name[:_PREFIX]] -= 1
                    seen.add(name)
                    found.setdefault(row, []).append(name.hex())
        return found

    def changed(self, change: Change) -> Catalog:
        """Return this catalog after a change; a name stays with the newest pack that has it."""
        added = {row.pack for row in change.added}
        rows = [*change.added]
        for row in self.rows:
            if row.pack not in change.dropped and row.pack not in added:
                rows.append(row._replace(used=max(row.used, change.used.get(row.pack, 0))))
        seen: set[bytes] = set()
        kept, size = [], _HEAD
        for row in rows[:MAX_ROWS]:
            if seen:
                names = b"".join(name for name in row.each() if name not in seen)
                row = row._replace(names=names)
            if row.pack in added:  # names of the other packs differ already
                seen.update(row.each())
            size += _ROW.size + len(row.names)
            if row.names and size <= MAX_CATALOG_BYTES:
                kept.append(row)
        return Catalog(tuple(kept))

    def has(self, change: Change) -> bool:
        """Return True if a change is in this catalog; times of use may be lost."""
        packs = {row.pack for row in self.rows}
        return packs.issuperset(row.pack for row in change.added) and packs.isdisjoint(
            change.dropped
        )

    def encode(self) -> bytes:
        """Return the object's bytes."""
        parts = []
        for row in self.rows:
            pack, tail = bytes.fromhex(row.pack), bytes.fromhex(row.tail)
            count = len(row.names) // _NAME
            parts += [_ROW.pack(pack, tail, *row[2:5], count), row.names]
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part)
        return b"".join([_MAGIC, digest.digest(), *parts])


def decode_catalog(data: bytes) -> Catalog:
    """Return a catalog from an object's bytes.

    Raises:
        CorruptError: it is not a complete catalog of this version.
    """
    if not data.startswith(_MAGIC):
        raise CorruptError("not a pallasc catalog (bad magic)")
    if hashlib.sha256(memoryview(data)[_HEAD:]).digest() != data[len(_MAGIC) : _HEAD]:
        raise CorruptError("the catalog is damaged or cut short")
    rows: list[PackRow] = []
    at = _HEAD
    while at < len(data):
        if len(data) - at < _ROW.size or len(rows) == MAX_ROWS:
            raise CorruptError("the catalog has an incomplete row, or too many")
        pack, tail, size, offset, used, count = _ROW.unpack_from(data, at)
        at += _ROW.size
        names = data[at : at + count * _NAME]
        at += count * _NAME
        small = size <= MAX_PACK_BYTES and 0 < size - offset <= MAX_TAIL_BYTES
        if not (small and count and at <= len(data)):
            raise CorruptError(f"the catalog has impossible sizes for pack {pack.hex()}")
        rows.append(PackRow(pack.hex(), tail.hex(), size, offset, used, names))
    return Catalog(tuple(rows))


def namespace_of(facts: Mapping[str, str]) -> str:
    """Return the namespace for facts: versions by the name of the part, a salt."""
    return labelled_key({"kind": "pallasc remote namespace", **facts})


def catalog_name(namespace: str) -> str:
    """Return the name of a namespace's catalog."""
    return f"{ROOT}/{namespace}/catalog"


def pack_name(namespace: str, digest: str) -> str:
    """Return the name of a pack."""
    return f"{ROOT}/{namespace}/packs/{digest}"
