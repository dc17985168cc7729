"""Read the parts of a bundle: entries by number or key, blobs by number.

Opening reads the head and the catalog. An entry is read with its page, and a blob with the rows and
bytes of its bases. All data is compared with its digest before it is used, and every error is a
CorruptError with the name of the file. Several threads may read at once.
"""

from __future__ import annotations

import os
import stat
import weakref
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from pallasc.errors import CorruptError, SpecError
from pallasc.specs.bundle.compress import RAW, decompress
from pallasc.specs.bundle.format import (
    BLOBS_PER_PAGE,
    ENTRIES_PER_PAGE,
    MAX_DEPTH,
    MAX_HEAD_BYTES,
    MAX_PATH_BYTES,
    BlobRow,
    Catalog,
    Extent,
    parse_head,
    parse_row,
    sha256,
)
from pallasc.specs.bundle.manifest import Entry, key_of, parse_entry, split_page

# A pipe in place of a file must not block.
_READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)

# Number of recent pages and bases that are cached. A page of the blob table has 3 KB; a page of
# entries in a forged bundle may have 4 MB.
_MOST_BLOB_PAGES, _MOST_ENTRY_PAGES, _MOST_BASES = 256, 8, 32
_LARGEST_KEPT_BYTES = 2**18

_Value = TypeVar("_Value")


class MemorySource:
    """The bytes of a bundle in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read(self, at: int, size: int) -> bytes:
        """Return `size` bytes at an offset."""
        return self._data[at : at + size]

    def close(self) -> None:
        """Do nothing: memory needs no closing."""


class OpenFile:
    """The bytes of a bundle in a file, read on demand.

    The file is not mapped: a process that touches a mapped page after the end of its file is
    killed, and a file can be truncated at any moment. Replace a bundle by renaming a new file; a
    process that has the old file open continues to read it. Several threads may read at once, and
    so may a process and its forked children.

    Raises:
        SpecError: the path cannot be read, or is not a file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._name = os.fspath(path)
        try:
            self._descriptor = os.open(path, _READ)
        except OSError as error:
            raise self._unreadable(error.strerror) from error
        self._close = weakref.finalize(self, os.close, self._descriptor)
        status = os.fstat(self._descriptor)
        self.size = status.st_size
        if not stat.S_ISREG(status.st_mode):
            self._close()
            raise self._unreadable("it is not a file")

    def read(self, at: int, size: int) -> bytes:
        """Return `size` bytes at an offset.

        Raises:
            CorruptError: the file has been truncated since it was opened.
            SpecError: the file was closed, or cannot be read.
        """
        if not self._close.alive:
            raise SpecError(
                f"{self._name} is closed.", hint="Keep the bundle open while it is used."
            )
        data = b""
        while len(data) < size:
            try:
                # pread has no file position, which threads and forked processes would share.
                more = os.pread(self._descriptor, size - len(data), at + len(data))
            except OSError as error:
                raise self._unreadable(error.strerror) from error
            if not more:
                raise CorruptError("it was cut off while it was open")
            data += more
        return data

    def close(self) -> None:
        """Close the file; closing it twice does nothing."""
        self._close()

    def _unreadable(self, reason: str | None) -> SpecError:
        return SpecError(
            f"{self._name} cannot be read: {reason}.", hint="Give the path of a bundle."
        )


Source = MemorySource | OpenFile


class Reader:
    """The parts of a bundle.

    Args:
        source: its bytes.
        name: its name in messages.

    Raises:
        CorruptError: the bytes are not a bundle, have another major version, are truncated, or are
            damaged.
    """

    def __init__(self, source: Source, name: str) -> None:
        self.source = source
        self.name = name
        start = source.read(0, min(source.size, MAX_HEAD_BYTES))
        self.head = parse_head(start, source.size, name)
        with self.naming():
            data = self.read(self.head.catalog)
            if sha256(data) != self.head.catalog_digest:
                raise CorruptError("its catalog does not match the digest in its head")
            self.catalog = Catalog(data, self.head.catalog.at)
        self._blob_pages: dict[int, bytes] = {}
        self._entry_pages: dict[int, list[bytes]] = {}
        self._bases: dict[int, bytes] = {}

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Prefix error messages with the file's name."""
        try:
            yield
        except CorruptError as error:
            if error.message.startswith(f"{self.name} is damaged: "):
                raise
            message = f"{self.name} is damaged: {error.message}."
            raise CorruptError(message, hint=error.hint) from error

    def read(self, extent: Extent) -> bytes:
        """Return the bytes of an extent."""
        return self.source.read(extent.at, extent.size)

    # ---- entries

    def find(self, key: bytes) -> int:
        """Return the number of the first entry whose key is not less than `key`."""
        if not self.catalog.entries:
            return 0
        page = self.catalog.find(key)
        return page * ENTRIES_PER_PAGE + bisect_left(self.entry_page(page), key)

    def key(self, number: int) -> bytes:
        """Return the key of an entry."""
        return key_of(self._text(number))

    def entry(self, number: int) -> Entry:
        """Return an entry."""
        return parse_entry(self._text(number), self.digest)

    def _text(self, number: int) -> bytes:
        page, index = divmod(number, ENTRIES_PER_PAGE)
        return self.entry_page(page)[index]

    def entry_page(self, page: int) -> list[bytes]:
        """Return the texts of a page of entries."""
        texts = self._entry_pages.get(page)
        if texts is None:
            count = min(ENTRIES_PER_PAGE, self.catalog.entries - page * ENTRIES_PER_PAGE)
            texts = split_page(self.page(self.catalog.blob_pages + page), count)
            _keep(self._entry_pages, page, texts, _MOST_ENTRY_PAGES)
        return texts

    # ---- blobs

    def row(self, number: int) -> BlobRow:
        """Return the row of a blob."""
        blobs = self.catalog.blobs
        if number >= blobs:
            raise CorruptError(f"it names blob {number}, but has only {blobs} blobs")
        index = number // BLOBS_PER_PAGE
        page = self._blob_pages.get(index)
        if page is None:
            page = self.page(index)
            _keep(self._blob_pages, index, page, _MOST_BLOB_PAGES)
        row = parse_row(page, number, min(BLOBS_PER_PAGE, blobs - index * BLOBS_PER_PAGE))
        if not self.head.head_bytes <= row.extent.at <= row.extent.end <= self.head.catalog.at:
            raise CorruptError(
                f"blob {number} (bytes {row.extent.at} to {row.extent.end}) overlaps the head or "
                "the catalog"
            )
        return row

    def digest(self, number: int) -> str:
        """Return the digest of a blob's content."""
        with self.naming():
            return self.row(number).digest.hex()

    def content(self, number: int) -> bytes:
        """Return the content of a blob.

        Raises:
            CorruptError: the content does not match the blob's row.
        """
        *bases, last = self._path(number)
        dictionary = b""
        for row in bases:
            content = self._bases.get(row.number)
            if content is None:
                content = self._decode(row, dictionary)
                if len(content) <= _LARGEST_KEPT_BYTES:
                    _keep(self._bases, row.number, content, _MOST_BASES)
            dictionary += content
        return self._decode(last, dictionary)

    def _path(self, number: int) -> list[BlobRow]:
        """Return a blob's bases, the one without a base first, and then the blob."""
        path = [self.row(number)]
        length = 0
        while step := path[-1].step:
            path.append(self.row(path[-1].number - step))
            length += path[-1].size
            if len(path) > MAX_DEPTH + 1 or length > MAX_PATH_BYTES:
                raise CorruptError(f"blob {number} has {len(path) - 1} bases or more")
        return path[::-1]

    def _decode(self, row: BlobRow, dictionary: bytes) -> bytes:
        blob = f"blob {row.number}, {row.kind.name.lower()} {row.digest.hex()[:12]},"
        stored = self.read(row.extent)
        try:
            content = stored if row.coding == RAW else decompress(stored, row.size, dictionary)
        except CorruptError as error:
            raise CorruptError(f"{blob} is wrong: {error.message}") from error
        if sha256(content) != row.digest:
            raise CorruptError(f"{blob} does not match its digest")
        return content

    def page(self, index: int) -> bytes:
        """Return a decompressed page."""
        page = self.catalog.page(index)
        stored = self.read(page.extent)
        if sha256(stored) != page.digest:
            raise CorruptError(f"page {index} does not match the digest in the catalog")
        return decompress(stored, page.raw_bytes)


def _keep(values: dict[int, _Value], key: int, value: _Value, most: int) -> None:
    """Cache a value; a full cache is cleared first.

    There is no lock, because a fork could leave it locked; two threads may create the same value.
    """
    if len(values) >= most:
        values.clear()
    values[key] = value
