"""Read the parts of a bundle: entries by number or key, blobs by number.

Opening reads head and catalog, an entry its page, a blob its row and those of its bases, and their
bytes. Each is compared with its digest before it is used, and whatever is wrong is a CorruptError
with the name of the file. Several threads may read at once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

from pallasc.errors import CorruptError
from pallasc.specs.bundle.blobs import BlobPage, BlobRow
from pallasc.specs.bundle.catalog import Catalog
from pallasc.specs.bundle.compress import RAW, decompress
from pallasc.specs.bundle.format import (
    BLOBS_PER_PAGE,
    ENTRIES_PER_PAGE,
    MAX_DEPTH,
    MAX_HEAD_BYTES,
    MAX_PATH_BYTES,
    Extent,
    parse_head,
    sha256,
)
from pallasc.specs.bundle.manifest import Entry, EntryPage
from pallasc.specs.bundle.source import Source

_CACHED_BYTES = 2**23
"""Most bytes of recent pages, and of recent contents of bases."""

_Value = TypeVar("_Value")


class RecentValues(Generic[_Value]):
    """The values that were used last, up to a number of bytes.

    No thread waits for the lock: one that finds it taken does without the value. So a fork while it
    is taken does not stop the child.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._values: OrderedDict[int, tuple[_Value, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: int) -> _Value | None:
        """Return a value, or None."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            cached = self._values.get(key)
            if cached is None:
                return None
            self._values.move_to_end(key)
            return cached[0]
        finally:
            self._lock.release()

    def put(self, key: int, value: _Value, size: int) -> None:
        """Keep a value of so many bytes, and drop older ones."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if key in self._values or size > self._limit_bytes:
                return
            self._values[key] = value, size
            self._bytes += size
            while self._bytes > self._limit_bytes:
                _, (_, gone) = self._values.popitem(last=False)
                self._bytes -= gone
        finally:
            self._lock.release()


class _NamedError(CorruptError):
    """An error whose message already names the file."""


class Naming:
    """A reusable context that puts the file's name in front of error messages."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if isinstance(error, CorruptError) and not isinstance(error, _NamedError):
            message = f"{self._name} is damaged: {error.message}."
            raise _NamedError(message, hint=error.hint) from error


class Reader:
    """The parts of a bundle.

    Args:
        source: its bytes.
        name: what messages call it.

    Raises:
        CorruptError: it is not a bundle, has another major version, is cut off or damaged.
    """

    def __init__(self, source: Source, name: str) -> None:
        self.source = source
        self.name = name
        self.naming = Naming(name)
        start = source.read(0, min(source.size, MAX_HEAD_BYTES))
        self.head = parse_head(start, source.size, name)
        with self.naming:
            data = self.read(self.head.catalog)
            if sha256(data) != self.head.catalog_digest:
                raise CorruptError("its catalog does not match the digest in its head")
            self.catalog = Catalog(data, self.head.catalog)
        self._pages: RecentValues[EntryPage | BlobPage] = RecentValues(_CACHED_BYTES)
        self._contents: RecentValues[bytes] = RecentValues(_CACHED_BYTES)

    def read(self, extent: Extent) -> bytes:
        """Return the bytes of a part."""
        return self.source.read(extent.at, extent.size)

    def page_bytes(self, page: int) -> bytes:
        """Return a page, decompressed.

        Raises:
            CorruptError: it is not what the catalog names.
        """
        row = self.catalog.page(page)
        stored = self.read(row.extent)
        if sha256(stored) != row.digest:
            raise CorruptError(f"page {page} does not match the digest in the catalog")
        return decompress(stored, row.raw_bytes)

    def entry_page(self, page: int) -> EntryPage:
        """Return a page of entries."""
        number = self.catalog.blob_pages + page
        cached = self._pages.get(number)
        if not isinstance(cached, EntryPage):
            raw = self.page_bytes(number)
            cached = EntryPage(raw, self.catalog.entries_on(page))
            self._pages.put(number, cached, len(raw))
        return cached

    def blob_page(self, page: int) -> BlobPage:
        """Return a page of the blob table."""
        cached = self._pages.get(page)
        if not isinstance(cached, BlobPage):
            raw = self.page_bytes(page)
            cached = BlobPage(raw, page * BLOBS_PER_PAGE, self.catalog.blobs_on(page))
            self._pages.put(page, cached, len(raw))
        return cached

    def find(self, key: bytes) -> int:
        """Return the number of the first entry whose key is not less than `key`."""
        if not self.catalog.entries:
            return 0
        page = self.catalog.find(key)
        return page * ENTRIES_PER_PAGE + self.entry_page(page).find(key)

    def key(self, number: int) -> bytes:
        """Return the key of an entry."""
        page, index = divmod(number, ENTRIES_PER_PAGE)
        return self.entry_page(page).key(index)

    def entry(self, number: int) -> Entry:
        """Return an entry."""
        page, index = divmod(number, ENTRIES_PER_PAGE)
        return self.entry_page(page).entry(index, self._named_digest)

    def row(self, number: int) -> BlobRow:
        """Return the row of a blob."""
        if number >= self.catalog.blobs:
            raise CorruptError(f"it names blob {number} of {self.catalog.blobs}")
        page, index = divmod(number, BLOBS_PER_PAGE)
        row = self.blob_page(page).row(index)
        if not self.head.head_bytes <= row.extent.at <= row.extent.end <= self.head.catalog.at:
            raise CorruptError(f"blob {number} lies at {row.extent.at} to {row.extent.end}")
        return row

    def digest(self, number: int) -> str:
        """Return the digest of a blob's content."""
        return self.row(number).digest.hex()

    def _named_digest(self, number: int) -> str:
        with self.naming:
            return self.digest(number)

    def content(self, number: int) -> bytes:
        """Return the content of a blob.

        Raises:
            CorruptError: it is not what its row says.
        """
        path = self._path(number)
        dictionary = b""
        for place, row in path[:-1]:
            content = self._contents.get(place)
            if content is None:
                content = self._decode(place, row, dictionary)
                self._contents.put(place, content, len(content))
            dictionary += content
        return self._decode(*path[-1], dictionary)

    def _path(self, number: int) -> list[tuple[int, BlobRow]]:
        """Return a blob and its bases, outermost first."""
        path = [(number, self.row(number))]
        length = 0
        while step := path[-1][1].step:
            number -= step
            path.append((number, self.row(number)))
            length += path[-1][1].size
            if len(path) > MAX_DEPTH + 1 or length > MAX_PATH_BYTES:
                raise CorruptError(f"blob {path[0][0]} has {len(path) - 1} bases or more")
        return path[::-1]

    def _decode(self, number: int, row: BlobRow, dictionary: bytes) -> bytes:
        stored = self.read(row.extent)
        try:
            content = stored if row.coding == RAW else decompress(stored, row.size, dictionary)
        except CorruptError as error:
            raise CorruptError(f"{_what(number, row)} is wrong: {error.message}") from error
        if sha256(content) != row.digest:
            raise CorruptError(f"{_what(number, row)} does not match its digest")
        return content


def _what(number: int, row: BlobRow) -> str:
    return f"blob {number}, {row.kind.name.lower()} {row.digest.hex()[:12]},"
