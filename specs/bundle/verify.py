"""Read all of a bundle: every byte has its place, and is what its digest says."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator

from pallasc.errors import CorruptError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.bundle.format import MINOR, Extent
from pallasc.specs.bundle.manifest import Entry, Named, content_digest
from pallasc.specs.bundle.reader import Reader
from pallasc.specs.bundle.tuned import Agreement

_CHUNK_BYTES = 2**20


def verify(
    reader: Reader,
    entries: Iterable[Entry],
    artifact: Callable[[Entry], Artifact],
    reference: Callable[[Entry], object],
) -> None:
    """Verify a bundle, signatures and provenance aside.

    Args:
        reader: of the bundle.
        entries: all that it has.
        artifact: returns the artifact of one.
        reference: returns its reference values, after it has checked them.

    Raises:
        CorruptError: the first thing that is wrong, without the name of the file.
    """
    # What a later minor version adds, to entries or as parts of its own, is not known here.
    is_known = reader.head.minor <= MINOR
    if is_known:
        _check_places(reader)
    _check_keys(reader)
    used: dict[int, str] = {}
    contents = set()
    content = content_digest(_used(reader, entries, artifact, reference, used))
    if is_known and content != reader.head.content:
        raise CorruptError("its manifest does not match the digest of its content")
    for number in range(reader.catalog.blobs):
        if number not in used:
            raise CorruptError(f"no variant uses its blob {number}")
        contents.add(reader.row(number).digest)
        try:
            reader.content(number)
        except CorruptError as error:
            raise CorruptError(f"{error.message}; {used[number]} uses it") from error
    if len(contents) != reader.catalog.blobs:
        raise CorruptError("it has a blob twice")
    _check_body(reader)  # last, as the others say which part is wrong


def _check_body(reader: Reader) -> None:
    """Compare the body with its digest."""
    state = hashlib.sha256()
    at = reader.head.head_bytes
    while at < reader.head.body_end:
        size = min(_CHUNK_BYTES, reader.head.body_end - at)
        state.update(reader.read(Extent(at, size)))
        at += size
    if state.digest() != reader.head.body_digest:
        raise CorruptError("its bytes do not match their digest")


def _check_places(reader: Reader) -> None:
    """Check that every byte belongs to one part."""
    catalog, head = reader.catalog, reader.head
    parts = [reader.row(number).extent for number in range(catalog.blobs)]
    pages = range(catalog.blob_pages + catalog.entry_pages)
    parts += [catalog.page(page).extent for page in pages]
    parts += [head.catalog, head.provenance]
    at = head.head_bytes
    for part in parts:
        if part.at != at:
            raise CorruptError(f"bytes {at} to {part.at} of it belong to nothing, or to two things")
        at = part.end
    if at != head.body_end:
        raise CorruptError(f"bytes {at} to {head.body_end} of it belong to nothing")


def _check_keys(reader: Reader) -> None:
    """Check that entries are in order, and that the catalog has the first key of each page."""
    last = b""
    for page in range(reader.catalog.entry_pages):
        keys = reader.entry_page(page)
        if reader.catalog.first_key(page) != keys.key(0):
            raise CorruptError(f"page {page} of its entries begins with another key")
        for index in range(len(keys)):
            key = keys.key(index)
            if key <= last or keys.entry(index, reader.digest).key != key:
                raise CorruptError(f"entry {key[:80]!r} is out of order, or not canonical")
            last = key


def _used(
    reader: Reader,
    entries: Iterable[Entry],
    artifact: Callable[[Entry], Artifact],
    reference: Callable[[Entry], object],
    used: dict[int, str],
) -> Iterator[Named]:
    """Yield each entry with the digests of what it names; note who uses which blob."""
    agreement = Agreement()
    for entry in entries:
        if fault := agreement.disagreement(entry):
            raise CorruptError(fault)
        held = artifact(entry)
        _ = held.plan, held.kernels, held.source_lines, reference(entry)
        for number in (entry.record, *entry.blobs, entry.lines, entry.reference):
            if number is not None:
                used.setdefault(number, entry.id)
        blobs, lines, values = (
            [None if n is None else reader.digest(n) for n in numbers]
            for numbers in (entry.blobs, [entry.lines], [entry.reference])
        )
        yield Named(entry, blobs, lines[0], values[0])
