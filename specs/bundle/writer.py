"""Write a bundle: the same items give the same bytes in any order.

Blobs are sorted by kind, kernel, and size, and each is stored after its base, so that similar data
is close together.

**Bases.** Variants of a kernel often differ in only a few instructions, and cubins of neighboring
architectures in only a few more. So a blob may have a base: the blob is compressed with a
dictionary made of the base and the base's own bases. Reading a blob needs only this path of bases.
Blobs are compared by their pieces: 16-byte rows of a cubin, or items of a text. Pairs of blobs are
taken in the order of their shared pieces, most first. One blob of a pair becomes the base of the
other, unless a path would get too long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar
from zlib import crc32

from pallasc.errors import CorruptError, SpecError
from pallasc.specs.bundle.bundle import kinds_of, minimum_driver
from pallasc.specs.bundle.compress import DEFAULT_LEVEL, compress, library_version, store
from pallasc.specs.bundle.format import (
    BLOBS_PER_PAGE,
    ENTRIES_PER_PAGE,
    HEAD_BYTES,
    MAX_BLOB_BYTES,
    MAX_CATALOG_BYTES,
    MAX_COUNT,
    MAX_PAGE_BYTES,
    MINOR,
    MINOR_WITH_LINES,
    BlobRow,
    Extent,
    Head,
    Kind,
    PageRow,
    pack_catalog,
    pack_head,
    pack_rows,
    sha256,
)
from pallasc.specs.bundle.manifest import (
    Entry,
    Item,
    Provenance,
    arrays_of,
    content_digest,
    entry_key,
    pack_entries,
    pack_provenance,
)
from pallasc.specs.bundle.strip import strip_debug
from pallasc.specs.bundle.tuned import HINT, check_agreement
from pallasc.specs.canonical import canonical_json, digest

LONGEST_PATH = 5
"""Maximum number of bases that are read for one blob; the format allows more."""
_LARGEST_BYTES = 2**18
"""Maximum size of a blob that has a base or is a base."""
_ROW_BYTES = 16
_FEWEST_NEAR, _MOST_NEAR = 32, 128
_MOST_PAIRS = 2**18
_MOST_PIECES = 2**21


@dataclass(frozen=True, slots=True)
class Blob:
    """A blob as it ships: kind, content, and a name that similar blobs share."""

    kind: Kind
    data: bytes
    family: str


@dataclass(frozen=True, slots=True)
class _Packed:
    """An item as it ships.

    Attributes:
        item: the variant.
        record: digest of the artifact's record.
        shipped: for each blob of the record, in the order of `kinds_of`, the digest of its shipped
            form; None if it is left out.
        lines, reference: digests of source lines and reference values; None if they are left out.
        blobs: all shipped blobs, by digest.
    """

    item: Item
    record: str
    shipped: tuple[str | None, ...]
    lines: str | None
    reference: str | None
    blobs: Mapping[str, Blob]


def build_bundle(
    items: Iterable[Item],
    *,
    keep_debug: bool = False,
    keep_ptx: bool = False,
    level: int = DEFAULT_LEVEL,
    provenance: Iterable[Provenance] = (),
) -> bytes:
    """Build a bundle and return its bytes.

    Args:
        items: the variants, in any order.
        keep_debug: keep debug sections in the cubins; items of a bundle keep those they have.
        keep_ptx: include the PTX, which no launch needs; items of a bundle keep theirs.
        level: compression level of zstd, 1 to 22.
        provenance: the sources and tools that the artifacts were made from.

    Raises:
        SpecError: variants of a tuned kernel disagree, or a limit is exceeded.
        CorruptError: an artifact is damaged, or a variant has two artifacts.
    """
    origins = pack_provenance(provenance)
    variants = _sorted(_pack(item, keep_debug=keep_debug, keep_ptx=keep_ptx) for item in items)
    body = _Body(level)
    body.add_blobs(_blobs(variants))
    entries = [_entry(variant, body) for variant in variants]
    check_agreement(entries)
    return body.finish(entries, origins)


# ---- variants


def _pack(item: Item, *, keep_debug: bool, keep_ptx: bool) -> _Packed:
    """Return the parts of an item that ship.

    Raises:
        CorruptError: the record or a cubin is damaged, or a blob is missing.
    """
    artifact, is_copy = item.artifact, item.read is not None
    read = item.read or artifact.blob
    record = canonical_json(artifact.record)
    families = {key: own.name for own in artifact.kernels for key in (own.cubin, own.ptx)}
    blobs: dict[str, Blob] = {}

    def add(kind: Kind, data: bytes | None, family: str) -> str | None:
        if data is None:
            return None
        key = digest(data)
        blobs[key] = Blob(kind, data, family)
        return key

    add(Kind.RECORD, record, item.name)
    shipped = []
    for key, kind in kinds_of(artifact).items():
        data = None if kind is Kind.PTX and not (keep_ptx or is_copy) else read(key)
        if data is None and kind is not Kind.PTX:
            raise CorruptError(f"{item.name}: {kind.name.lower()} {key} is missing")
        if data is not None and kind is Kind.CUBIN and not (keep_debug or is_copy):
            data = strip_debug(data)
        shipped.append(add(kind, data, families.get(key, "")))
    lines = add(Kind.LINES, item.lines, item.name)
    reference = add(Kind.REFERENCE, item.reference, item.name)
    return _Packed(item, digest(record), tuple(shipped), lines, reference, blobs)


def _sorted(variants: Iterable[_Packed]) -> list[_Packed]:
    """Sort the variants by key and merge copies.

    Raises:
        CorruptError: two artifacts have the same key.
        SpecError: copies of a variant differ, or there are too many variants.
    """
    copies: dict[bytes, list[_Packed]] = {}
    for variant in variants:
        item = variant.item
        own = copies.setdefault(entry_key(item.name, item.target, item.params), [])
        own.append(variant)
        if own[0].record != variant.record:
            raise CorruptError(
                f"there are two artifacts of {item.id}: {own[0].record[:12]} and "
                f"{variant.record[:12]}.",
                hint="Build both from the same sources with one toolchain, or leave one out.",
            )
    if len(copies) > MAX_COUNT:
        raise SpecError(f"a bundle holds at most {MAX_COUNT} variants; there are {len(copies)}.")
    return [_most_complete(copies[key]) for key in sorted(copies)]


def _most_complete(copies: Sequence[_Packed]) -> _Packed:
    """Return the copy of a variant that has the most data, such as PTX.

    Raises:
        SpecError: copies have different batch kernels, or are tuned in different ways.
    """
    richest = max(copies, key=_richness)
    for copy in copies:
        for name in ("vmap", "tuning"):
            if getattr(copy.item, name) != getattr(richest.item, name):
                raise SpecError(f"two copies of {copy.item.id} have different {name}.", hint=HINT)
    return richest


def _richness(variant: _Packed) -> tuple[int, tuple[str, ...], bytes]:
    """Return a sort key that is largest for the copy with the most data, such as PTX.

    The digests and parameters break ties, so that the order of the items does not matter.
    """
    size = sum(len(blob.data) for blob in variant.blobs.values())
    digests = (*variant.shipped, variant.lines, variant.reference)
    return size, tuple(key or "" for key in digests), canonical_json(list(variant.item.params))


def _blobs(variants: Iterable[_Packed]) -> dict[str, Blob]:
    """Return all blobs by digest, with similar ones close together."""
    blobs: dict[str, Blob] = {}
    for variant in variants:
        for key, blob in variant.blobs.items():
            blobs[key] = min(blobs.get(key, blob), blob, key=lambda each: each.family)
            if len(blob.data) > MAX_BLOB_BYTES:
                raise SpecError(
                    f"a {blob.kind.name.lower()} of {variant.item.id} is {len(blob.data)} bytes; "
                    f"the limit of a bundle is {MAX_BLOB_BYTES}."
                )
    order = sorted(
        blobs, key=lambda key: (blobs[key].kind, blobs[key].family, len(blobs[key].data), key)
    )
    return {key: blobs[key] for key in order}


def _entry(variant: _Packed, body: _Body) -> Entry:
    item, numbers = variant.item, body.numbers
    target, plan = item.artifact.target, item.artifact.plan
    return Entry(
        name=item.name,
        params=tuple(item.params.items()),
        target=item.target,
        arch=target.arch,
        inputs=arrays_of(plan.inputs),
        outputs=arrays_of(plan.outputs),
        minimum_driver=minimum_driver(item.artifact.record),
        record=numbers[variant.record],
        blobs=tuple(None if key is None else numbers[key] for key in variant.shipped),
        digest_of=body.digest_of,
        vmap=item.vmap,
        lines=None if variant.lines is None else numbers[variant.lines],
        tuning=item.tuning,
        reference=None if variant.reference is None else numbers[variant.reference],
    )


# ---- bases


def choose_bases(blobs: Sequence[Blob]) -> list[int | None]:
    """Return the index of each blob's base, None if it has none.

    Args:
        blobs: the blobs, with similar ones close together.
    """
    bases: list[int | None] = [None] * len(blobs)
    heights = [0] * len(blobs)
    for _, first, second in _pairs(blobs):
        for item, base in ((second, first), (first, second)):
            path = _path(bases, base)
            fits = len(path) + heights[item] <= LONGEST_PATH
            if bases[item] is None and item not in path and fits:
                bases[item] = base
                for height, above in enumerate(path, heights[item] + 1):
                    heights[above] = max(heights[above], height)
    return bases


def _path(bases: Sequence[int | None], item: int) -> list[int]:
    """Return an item, its base, the base's base, and so on."""
    path = [item]
    while (base := bases[path[-1]]) is not None:
        path.append(base)
    return path


def _pairs(blobs: Sequence[Blob]) -> list[tuple[int, int, int]]:
    """Return pairs of nearby blobs, most similar first: negated count of shared pieces, indices."""
    pieces = _sampled([_pieces(blob) for blob in blobs])
    near = min(max(_MOST_PAIRS // max(1, len(blobs)), _FEWEST_NEAR), _MOST_NEAR)
    pairs = []
    for item, own in enumerate(pieces):
        for other in range(max(0, item - near), item) if own else ():
            if blobs[other].kind is blobs[item].kind and (shared := len(own & pieces[other])):
                pairs.append((-shared, other, item))
    return sorted(pairs)


def _pieces(blob: Blob) -> set[int]:
    """Return the checksums of a blob's pieces; none if the blob gets no base."""
    data = blob.data
    if len(data) > _LARGEST_BYTES or blob.kind is Kind.CONSTANT:
        return set()
    if blob.kind is Kind.CUBIN:
        rows = {data[at : at + _ROW_BYTES] for at in range(0, len(data), _ROW_BYTES)}
        rows.discard(bytes(_ROW_BYTES))
    else:
        rows = set(data.split(b"," if blob.kind is Kind.RECORD else b"\n"))
    return set(map(crc32, rows))


def _sampled(pieces: list[set[int]]) -> list[set[int]]:
    """Sample the pieces if there are very many, by the same rule in each blob."""
    each = 1 << max(0, (sum(map(len, pieces)) - 1) // _MOST_PIECES).bit_length()
    return [{piece for piece in own if piece % each == 0} for own in pieces]


def in_order(bases: Sequence[int | None]) -> list[int]:
    """Return the indices of blobs, ordered so that each blob closely follows its base."""
    children: list[list[int]] = [[] for _ in bases]
    for item, base in enumerate(bases):
        if base is not None:
            children[base].append(item)
    result: list[int] = []
    stack = [item for item, base in enumerate(bases) if base is None][::-1]
    while stack:
        item = stack.pop()
        result.append(item)
        stack += reversed(children[item])
    return result


# ---- the body


class _Body:
    """The body of a bundle that is being written."""

    def __init__(self, level: int) -> None:
        self.numbers: dict[str, int] = {}
        self._level = level
        self._data = bytearray(HEAD_BYTES)
        self._rows: list[BlobRow] = []

    def digest_of(self, number: int) -> str:
        """Return the digest of a blob by its number."""
        return self._rows[number].digest.hex()

    def add_blobs(self, blobs: Mapping[str, Blob]) -> None:
        """Append all blobs, each after its base."""
        keys, contents = list(blobs), list(blobs.values())
        bases = choose_bases(contents)
        order = in_order(bases)
        places = {item: number for number, item in enumerate(order)}
        self.numbers = {keys[item]: number for item, number in places.items()}

        def stored(item: int) -> tuple[int, bytes]:
            path = reversed(_path(bases, item)[1:])
            dictionary = b"".join(contents[base].data for base in path)
            return store(contents[item].data, self._level, dictionary)

        with ThreadPoolExecutor() as pool:
            for item, (coding, data) in zip(order, pool.map(stored, order), strict=True):
                base = bases[item]
                row = BlobRow(
                    number=places[item],
                    extent=self._append(data),
                    size=len(contents[item].data),
                    step=0 if base is None else places[item] - places[base],
                    kind=contents[item].kind,
                    coding=coding,
                    digest=bytes.fromhex(keys[item]),
                )
                self._rows.append(row)

    def finish(self, entries: Sequence[Entry], origins: bytes) -> bytes:
        """Append pages, catalog, and provenance, and return the bytes of the bundle."""
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
        places = self._append(catalog), self._append(origins)
        head = Head(
            _minor(entries),
            HEAD_BYTES,
            len(self._data),
            *places,
            content=content_digest(entries),
            catalog_digest=sha256(catalog),
            provenance_digest=sha256(origins) if origins else bytes(32),
            body_digest=sha256(memoryview(self._data)[HEAD_BYTES:]),
        )
        self._data[:HEAD_BYTES] = pack_head(head)
        return bytes(self._data)

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


def _minor(entries: Iterable[Entry]) -> int:
    """Return the lowest minor version that supports all entries."""
    minor = 0
    for entry in entries:
        if entry.tuning is not None or entry.reference is not None:
            return MINOR
        if entry.lines is not None:
            minor = MINOR_WITH_LINES
    return minor


_Row = TypeVar("_Row")


def _groups(rows: Sequence[_Row], on_each: int) -> list[Sequence[_Row]]:
    return [rows[at : at + on_each] for at in range(0, len(rows), on_each)]
