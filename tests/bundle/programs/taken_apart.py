"""A bundle in its parts, to change one and put all together again with digests that fit.

That is what somebody does who means harm: no digest stops him, only the checks behind them do.
"""

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from msgspec.structs import replace

from pallasc.specs.bundle.bundle import open_bundle
from pallasc.specs.bundle.compress import RAW, compress, store
from pallasc.specs.bundle.format import (
    BLOBS_PER_PAGE,
    HEAD_BYTES,
    BlobRow,
    Extent,
    Head,
    PageRow,
    pack_catalog,
    pack_head,
    pack_rows,
    sha256,
)


@dataclass
class Parts:
    """The parts of a bundle; `data` puts them together.

    Attributes:
        rows: the blob table; extents and digests are those of `stored`, see `set_content`.
        stored: the bytes of each blob in the file.
        entry_pages: pages of entries, decompressed.
        entries: how many there are said to be.
        first_keys: the keys in the catalog.
        info: what compressed it.
        provenance: its bytes.
        content: digest of what it holds.
        signatures: what follows the body.
        blob_pages: pages of the blob table, decompressed; made from `rows` where it is None.
        head: changes of the head's fields.
        gap: bytes between blobs and pages.
    """

    rows: list[BlobRow]
    stored: list[bytes]
    entry_pages: list[bytes]
    entries: int
    first_keys: list[bytes]
    info: dict[str, Any]
    provenance: bytes
    content: bytes
    signatures: bytes
    blob_pages: list[bytes] | None
    head: dict[str, Any]
    gap: bytes = b""

    @classmethod
    def of(cls, data: bytes) -> "Parts":
        """Take a bundle apart."""
        with open_bundle(data) as bundle:
            reader = bundle.reader
            catalog = reader.catalog
            rows = [reader.row(number) for number in range(catalog.blobs)]
            pages = range(catalog.blob_pages, catalog.blob_pages + catalog.entry_pages)
            return cls(
                rows=rows,
                stored=[reader.read(row.extent) for row in rows],
                entry_pages=[reader.page(page) for page in pages],
                entries=catalog.entries,
                first_keys=[catalog.first_key(page) for page in range(catalog.entry_pages)],
                info=catalog.info,
                provenance=reader.read(reader.head.provenance),
                content=reader.head.content,
                signatures=data[reader.head.body_end :],
                blob_pages=None,
                head={},
            )

    def contents(self) -> list[bytes]:
        """Return the contents of all blobs, and take the bases from them."""
        with open_bundle(self.data()) as bundle:
            contents = [bundle.reader.content(number) for number in range(len(self.rows))]
        for number, content in enumerate(contents):
            self.set_content(number, content)
        return contents

    def set_content(self, number: int, content: bytes, *, coding: int | None = None) -> None:
        """Give a blob another content and the digest of it, and no base."""
        if coding == RAW:
            self.stored[number] = content
        else:
            coding, self.stored[number] = store(content, 3)
        self.rows[number] = replace(
            self.rows[number], size=len(content), step=0, coding=coding, digest=sha256(content)
        )

    def data(self, frame: Callable[[bytes], bytes] = lambda raw: compress(raw, 3)) -> bytes:
        """Return the bytes of the bundle, its pages in frames of some kind."""
        data = bytearray(HEAD_BYTES)
        self._place_blobs(data)
        data += self.gap
        groups = range(0, len(self.rows), BLOBS_PER_PAGE)
        tables = [pack_rows(self.rows[at : at + BLOBS_PER_PAGE]) for at in groups]
        pages = []
        for raw in [*(self.blob_pages or tables), *self.entry_pages]:
            stored = frame(raw)
            pages.append(PageRow(_append(data, stored), len(raw), sha256(stored)))
        catalog = pack_catalog(len(self.rows), self.entries, pages, self.first_keys, self.info)
        places = _append(data, catalog), _append(data, self.provenance)
        head = Head(
            0,
            HEAD_BYTES,
            len(data),
            *places,
            content=self.content,
            catalog_digest=sha256(catalog),
            provenance_digest=sha256(self.provenance),
            body_digest=sha256(bytes(data[HEAD_BYTES:])),
        )
        data[:HEAD_BYTES] = pack_head(head._replace(**self.head))
        return bytes(data) + self.signatures

    def change_entry(self, number: int, change: Callable[[Any], bytes | None]) -> None:
        """Change what an entry of the first page says; a change may return the text to write."""
        page = self.entry_pages[0]
        ends = struct.unpack_from(f"<{self.entries}I", page)
        texts = [page[4 * self.entries :][a:b] for a, b in zip((0, *ends), ends, strict=False)]
        key, _, about = texts[number].partition(b"\n")
        value = json.loads(about)
        text = change(value) or json.dumps(value).encode()
        texts[number] = key + b"\n" + text
        lengths = accumulate(map(len, texts))
        self.entry_pages[0] = struct.pack(f"<{len(texts)}I", *lengths) + b"".join(texts)

    def _place_blobs(self, data: bytearray) -> None:
        for number, stored in enumerate(self.stored):
            extent = _append(data, stored)
            self.rows[number] = replace(self.rows[number], extent=extent)


def _append(data: bytearray, part: bytes) -> Extent:
    extent = Extent(len(data), len(part))
    data += part
    return extent
