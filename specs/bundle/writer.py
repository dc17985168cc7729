"""Write a bundle: the same items give the same bytes, whatever their order.

Contents lie in the order record, cubin, PTX, constant, each after its base, so that what is read
for one kernel lies close together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

from pallasc.errors import SpecError
from pallasc.specs.bundle.bases import Content, choose_bases, in_order
from pallasc.specs.bundle.blobs import BlobRow, pack_rows
from pallasc.specs.bundle.catalog import PageRow, pack_catalog
from pallasc.specs.bundle.compress import (
    DEFAULT_LEVEL,
    check_level,
    compress,
    library_version,
    store,
)
from pallasc.specs.bundle.format import (
    BLOBS_PER_PAGE,
    ENTRIES_PER_PAGE,
    HEAD_BYTES,
    MAX_BLOB_BYTES,
    MAX_CATALOG_BYTES,
    MAX_COUNT,
    MAX_PAGE_BYTES,
    MINOR,
    MINOR_OF_OLD,
    MINOR_WITH_LINES,
    NO_DIGEST,
    Extent,
    Head,
    pack_head,
    sha256,
)
from pallasc.specs.bundle.items import Blob, Item, Packed, pack_item
from pallasc.specs.bundle.manifest import Entry, Named, content_digest, pack_entries
from pallasc.specs.bundle.provenance import Provenance, pack_provenance
from pallasc.specs.bundle.tuned import check_agreement, joined
from pallasc.specs.canonical import canonical_json


def build_bundle(
    items: Iterable[Item],
    *,
    keep_debug: bool = False,
    keep_ptx: bool = False,
    level: int = DEFAULT_LEVEL,
    provenance: Iterable[Provenance] = (),
) -> bytes:
    """Return the bytes of a bundle.

    Args:
        items: the variants, in any order.
        keep_debug: leave debug sections in the cubins.
        keep_ptx: take the PTX along, which nothing needs that launches.
        level: of zstd, 1 to 22.
        provenance: from what the artifacts were made.

    Raises:
        SpecError: no such level, two artifacts of one variant, variants of a tuned kernel that
            disagree, or too much of something.
        CorruptError: an artifact is damaged.
    """
    check_level(level)
    origins = pack_provenance(provenance)
    variants = _sorted(pack_item(item, keep_debug=keep_debug, keep_ptx=keep_ptx) for item in items)
    body = _Body(level)
    body.add_blobs(_blobs(variants))
    numbers = body.numbers
    entries = [
        replace(
            variant.entry,
            record=numbers[variant.entry.digest],
            blobs=tuple(None if key is None else numbers[key] for key in variant.shipped),
            lines=None if variant.lines is None else numbers[variant.lines],
            reference=None if variant.reference is None else numbers[variant.reference],
        )
        for variant in variants
    ]
    check_agreement(entries)
    content = content_digest(Named(v.entry, v.shipped, v.lines, v.reference) for v in variants)
    return body.finish(entries, content, origins)


def _sorted(variants: Iterable[Packed]) -> list[Packed]:
    """Return the variants in the order of their keys, each once.

    Raises:
        SpecError: two artifacts have the same key, copies of one name different kernels for batches
            or are tuned differently, or there are too many.
    """
    by_key: dict[bytes, Packed] = {}
    for variant in variants:
        entry = variant.entry
        other = by_key.get(entry.key, variant)
        if other.entry.digest != entry.digest:
            raise SpecError(
                f"there are two artifacts of {entry.id}: {other.entry.digest[:12]} and "
                f"{entry.digest[:12]}.",
                hint="Leave one of them out.",
            )
        by_key[entry.key] = _joined(max(variant, other, key=_richness), variant, other)
    if len(by_key) > MAX_COUNT:
        raise SpecError(f"a bundle holds at most {MAX_COUNT} variants; there are {len(by_key)}.")
    return [by_key[key] for key in sorted(by_key)]


def _joined(richest: Packed, *copies: Packed) -> Packed:
    """Return a copy of an artifact with kernel for batches, rows and reference values of any copy.

    Raises:
        SpecError: two copies name different kernels for batches, or are tuned differently.
    """
    names = sorted({copy.entry.vmap for copy in copies if copy.entry.vmap is not None})
    if len(names) > 1:
        raise SpecError(
            f"there are two kernels for a batch of {richest.entry.id}: {' and '.join(names)}.",
            hint="Leave one of its copies out.",
        )
    tuning = joined(*(copy.entry for copy in copies))
    entry = replace(richest.entry, vmap=names[0] if names else None, tuning=tuning)
    return replace(richest, entry=entry)


def _richness(variant: Packed) -> tuple[int, tuple[str, ...], bytes]:
    """Return a key by which the copy with debug sections, PTX and the like is the largest.

    Its other parts make the choice independent of the order of the items.
    """
    size = sum(len(blob.data) for blob in variant.blobs.values())
    names = canonical_json([name for name, _ in variant.entry.params])
    return (
        size,
        tuple(key or "" for key in (*variant.shipped, variant.lines, variant.reference)),
        names,
    )


def _blobs(variants: Iterable[Packed]) -> dict[str, Blob]:
    """Return all blobs by digest, similar ones near each other."""
    blobs: dict[str, Blob] = {}
    for variant in variants:
        for key, blob in variant.blobs.items():
            other = blobs.setdefault(key, blob)
            if blob.family < other.family:
                blobs[key] = blob
            if len(blob.data) > MAX_BLOB_BYTES:
                raise SpecError(
                    f"a {blob.kind.name.lower()} of {variant.entry.id} is {len(blob.data)} bytes; "
                    f"the limit of a bundle is {MAX_BLOB_BYTES}."
                )
    order = sorted(
        blobs, key=lambda key: (blobs[key].kind, blobs[key].family, len(blobs[key].data), key)
    )
    return {key: blobs[key] for key in order}


def _minor(entries: Iterable[Entry]) -> int:
    """Return the first minor version that has all that the entries need."""
    minor = MINOR_OF_OLD
    for entry in entries:
        if entry.tuning is not None or entry.reference is not None:
            return MINOR
        if entry.lines is not None:
            minor = MINOR_WITH_LINES
    return minor


@dataclass(frozen=True, slots=True)
class _Job:
    """A content to compress, and the contents on the path from its root."""

    content: bytes
    path: tuple[bytes, ...]


class _Body:
    """The body of a bundle while it is written."""

    def __init__(self, level: int) -> None:
        self.numbers: dict[str, int] = {}
        self._level = level
        self._data = bytearray(HEAD_BYTES)
        self._rows: list[BlobRow] = []

    def add_blobs(self, blobs: Mapping[str, Blob]) -> None:
        """Append all blobs, each after its base."""
        keys = list(blobs)
        contents = [Content(blob.kind, blob.data) for blob in blobs.values()]
        bases = choose_bases(contents)
        order = in_order(bases)
        places = {item: number for number, item in enumerate(order)}
        self.numbers = {keys[item]: number for item, number in places.items()}
        jobs: dict[int, _Job] = {}
        for item in order:
            base = bases[item]
            path = () if base is None else (*jobs[base].path, contents[base].data)
            jobs[item] = _Job(contents[item].data, path)
        with ThreadPoolExecutor() as pool:
            stored = pool.map(self._store, (jobs[item] for item in order))
            for item, (coding, data) in zip(order, stored, strict=True):
                base = bases[item]
                row = BlobRow(
                    extent=self._append(data),
                    size=len(contents[item].data),
                    step=0 if base is None else places[item] - places[base],
                    kind=contents[item].kind,
                    coding=coding,
                    digest=bytes.fromhex(keys[item]),
                )
                self._rows.append(row)

    def finish(self, entries: Sequence[Entry], content: bytes, origins: bytes) -> bytes:
        """Append pages, catalog and provenance, and return the bytes of the bundle."""
        pages = [self._page(pack_rows(rows)) for rows in _groups(self._rows, BLOBS_PER_PAGE)]
        groups = _groups(entries, ENTRIES_PER_PAGE)
        pages += [self._page(pack_entries(group)) for group in groups]
        info = {"codec": {"level": self._level, "zstd": library_version()}}
        first_keys = [group[0].key for group in groups]
        catalog = pack_catalog(len(self._rows), len(entries), pages, first_keys, info)
        if len(catalog) > MAX_CATALOG_BYTES:
            raise SpecError(
                f"the catalog is {len(catalog)} bytes; the limit is {MAX_CATALOG_BYTES}.",
                hint="Split the bundle, or shorten the names of kernels and parameters.",
            )
        catalog_at, origins_at = self._append(catalog), self._append(origins)
        head = Head(
            minor=_minor(entries),
            head_bytes=HEAD_BYTES,
            body_end=len(self._data),
            catalog=catalog_at,
            provenance=origins_at,
            content=content,
            catalog_digest=sha256(catalog),
            provenance_digest=sha256(origins) if origins else NO_DIGEST,
            body_digest=sha256(memoryview(self._data)[HEAD_BYTES:]),
        )
        self._data[:HEAD_BYTES] = pack_head(head)
        return bytes(self._data)

    def _store(self, job: _Job) -> tuple[int, bytes]:
        return store(job.content, self._level, b"".join(job.path))

    def _page(self, raw: bytes) -> PageRow:
        if len(raw) > MAX_PAGE_BYTES:
            raise SpecError(
                f"{ENTRIES_PER_PAGE} variants take {len(raw)} bytes in the manifest; "
                f"the limit is {MAX_PAGE_BYTES}.",
                hint="Shorten their parameters.",
            )
        stored = compress(raw, self._level)
        return PageRow(self._append(stored), len(raw), sha256(stored))

    def _append(self, data: bytes) -> Extent:
        extent = Extent(len(self._data), len(data))
        self._data += data
        return extent


_Row = TypeVar("_Row")


def _groups(rows: Sequence[_Row], on_each: int) -> list[Sequence[_Row]]:
    return [rows[at : at + on_each] for at in range(0, len(rows), on_each)]
