"""A bundle as its users see it: kernels by name, variants by key, artifacts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from pallasc.errors import CorruptError, SelectionError
from pallasc.specs.artifacts.artifact import Artifact, ArtifactRecord
from pallasc.specs.bundle.blobs import BlobRow, Kind
from pallasc.specs.bundle.format import MAX_RECORD_BYTES, Extent, sha256
from pallasc.specs.bundle.manifest import Entry, entry_key, is_name
from pallasc.specs.bundle.provenance import Provenance, parse_provenance
from pallasc.specs.bundle.reader import Reader
from pallasc.specs.bundle.records import (
    Shipped,
    kinds_of,
    minimum_driver,
    parse_record,
    shipped_record,
    signature,
)
from pallasc.specs.bundle.signature import (
    PublicKey,
    Signature,
    check_room,
    check_signatures,
    parse_signatures,
)
from pallasc.specs.bundle.source import Source, open_source
from pallasc.specs.canonical import canonical_json, variant_id
from pallasc.specs.gpus import DEFAULT_MODELS
from pallasc.specs.spelling import suggestion
from pallasc.specs.templates import Scalar

if TYPE_CHECKING:
    from pallasc.specs.artifacts.source_lines import SourceLines
    from pallasc.specs.bundle.items import Item
    from pallasc.specs.bundle.reference import Reference


_CALLED = {Kind.LINES: "source lines", Kind.REFERENCE: "reference values"}
_MOST_NAMED = 200
"""Variants that are compared with a misspelt one."""


def open_bundle(file: str | os.PathLike[str] | bytes) -> Bundle:
    """Open a bundle: a path, which is read in part, or the bytes of one.

    Raises:
        CorruptError: it is not a bundle, has another major version, is cut off or damaged.
        SpecError: the file cannot be read.
    """
    source, name = open_source(file)
    try:
        return Bundle(source, name)
    except CorruptError:
        source.close()
        raise


class Bundle:
    """An open bundle; `with` closes it. Its artifacts need it open for as long as they are read.

    Every method raises CorruptError, with the name of the file, where what it reads is damaged.

    Args:
        source: its bytes.
        name: what messages call it.
    """

    def __init__(self, source: Source, name: str) -> None:
        self._reader = Reader(source, name)
        head = self._reader.head
        with self._reader.naming:
            tail = Extent(head.body_end, source.size - head.body_end)
            check_room(tail.size)
            self.signatures: tuple[Signature, ...] = parse_signatures(self._reader.read(tail))

    def __enter__(self) -> Bundle:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self._reader.catalog.entries

    def __repr__(self) -> str:
        return f"<Bundle {self.name} of {len(self)} variants>"

    def close(self) -> None:
        """Close the file."""
        self._reader.source.close()

    @property
    def reader(self) -> Reader:
        """The parts of the bundle, as they lie in the file."""
        return self._reader

    @property
    def name(self) -> str:
        """The path that it was opened from."""
        return self._reader.name

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._reader.source.size

    @property
    def digest(self) -> str:
        """Digest of what it holds; compression and provenance do not change it."""
        return self._reader.head.content.hex()

    @property
    def root(self) -> str:
        """Digest of the head, which covers the whole file but the signatures."""
        return self._reader.head.root.hex()

    @property
    def codec(self) -> Mapping[str, object]:
        """What compressed it: level and version of the zstd library."""
        with self._reader.naming:
            codec = self._reader.catalog.info.get("codec")
        return codec if isinstance(codec, Mapping) else {}

    @property
    def provenance(self) -> tuple[Provenance, ...]:
        """The sources that it was made from; several where bundles were merged."""
        head = self._reader.head
        with self._reader.naming:
            data = self._reader.read(head.provenance)
            if data and sha256(data) != head.provenance_digest:
                raise CorruptError("its provenance does not match the digest in its head")
            return parse_provenance(data)

    def names(self) -> list[str]:
        """Return the names of the kernels, sorted; one page is read for each."""
        names = []
        number = 0
        with self._reader.naming:
            while number < len(self):
                name = self._reader.key(number).partition(b"\0")[0]
                text = name.decode("utf-8", "replace")
                if not is_name(text):
                    raise CorruptError(f"{name!r} cannot be the name of a kernel")
                names.append(text)
                number = max(number + 1, self._reader.find(name + b"\1"))
        return names

    def entries(
        self, name: str | None = None, *, target: str | None = None, arch: str | None = None
    ) -> Iterator[Entry]:
        """Yield entries in the order of their keys.

        Args:
            name: only those of this kernel; nothing else is read.
            target: only those for this model.
            arch: only those for this architecture.
        """
        prefix = b"" if name is None else name.encode("utf-8", "replace") + b"\0"
        if name is not None and target is not None:
            prefix += target.encode("utf-8", "replace") + b"\0"
        number = self._find(prefix)
        while number < len(self):
            with self._reader.naming:
                if not self._reader.key(number).startswith(prefix):
                    return
                entry = self._reader.entry(number)
            if target in (None, entry.target) and arch in (None, entry.arch):
                yield entry
            number += 1

    def find(self, name: str, params: Mapping[str, Scalar], target: str) -> Entry | None:
        """Return the entry of a variant, None where there is none.

        Args:
            name: the kernel.
            params: all its parameters, in any order.
            target: a model, or an architecture, which stands for its default model.
        """
        key = entry_key(name, DEFAULT_MODELS.get(target, target), params)
        number = self._find(key)
        with self._reader.naming:
            if number < len(self) and self._reader.key(number) == key:
                return self._reader.entry(number)
        return None

    def select(self, name: str, params: Mapping[str, Scalar], target: str) -> Entry:
        """Return the entry of a variant; arguments as for `find`.

        Raises:
            SelectionError: there is none; the hint lists variants that exist.
        """
        entry = self.find(name, params, target)
        if entry is not None:
            return entry
        others = [other.id for other in islice(self.entries(name), _MOST_NAMED)]
        variant = variant_id(name, params.items(), target)
        hint = suggestion(variant, others, otherwise="Variants")
        if not others:
            hint = suggestion(name, self.names(), otherwise="Kernels")
        raise SelectionError(f"{self.name} has no variant {variant}.", hint=hint)

    def artifact(self, entry: Entry) -> Artifact:
        """Return the artifact of an entry as it ships; its blobs are read when they are asked for.

        Where debug sections or PTX were left out, its digest is not `entry.digest`, and the PTX of
        its kernels is None.

        Raises:
            CorruptError: entry, record and blobs do not belong together.
        """
        with self._reader.naming:
            record = self._record(entry)
            rows = self._rows(entry, record)
            shipped = shipped_record(record, _places(rows))
            artifact = Artifact(shipped, self._content_of(entry, rows))
            _ = artifact.plan, artifact.kernels  # checked while the file can still be named
        artifact.find_source_lines = partial(self._source_lines, entry)
        return artifact

    def record(self, entry: Entry) -> ArtifactRecord:
        """Return the artifact's record as it was compiled: `entry.digest` is over it."""
        with self._reader.naming:
            return self._record(entry)

    def reference(self, entry: Entry) -> Reference | None:
        """Return what results of an entry are compared with, None where the bundle does not say.

        Raises:
            CorruptError: it is damaged, or not for results of this entry.
        """
        if entry.reference is None:
            return None
        from pallasc.specs.bundle.reference import parse_reference

        data = self._beside(entry.reference, Kind.REFERENCE)
        with self._reader.naming:
            return parse_reference(data, [output.shape for output in entry.outputs])

    def shipped(self, entry: Entry) -> Shipped:
        """Return digest and size of what ships for each blob of the record; None if left out."""
        with self._reader.naming:
            return _places(self._rows(entry, self._record(entry)))

    def _rows(self, entry: Entry, record: ArtifactRecord) -> dict[str, BlobRow | None]:
        """Return the row of each blob of a record, by the digest that it has there."""
        numbers = dict(zip(kinds_of(record), entry.blobs, strict=True))
        return {key: None if n is None else self._reader.row(n) for key, n in numbers.items()}

    def _content_of(
        self, entry: Entry, rows: Mapping[str, BlobRow | None]
    ) -> Callable[[str], bytes]:
        places = {
            row.digest.hex(): number
            for number, row in zip(entry.blobs, rows.values(), strict=True)
            if row is not None and number is not None
        }
        return lambda key: self._content(places[key])

    def items(self, entries: Iterable[Entry] | None = None) -> Iterator[Item]:
        """Yield entries, all by default, as items to write another bundle from."""
        from pallasc.specs.bundle.items import Item

        for entry in self.entries() if entries is None else entries:
            with self._reader.naming:
                record = self._record(entry)
                numbers = dict(zip(kinds_of(record), entry.blobs, strict=True))
            yield Item(
                entry.name,
                entry.params,
                record,
                self._read_of(numbers),
                entry.vmap,
                self._reader_of(entry.lines, Kind.LINES),
                entry.tuning,
                self._reader_of(entry.reference, Kind.REFERENCE),
            )

    def stored_bytes(self, entry: Entry) -> int:
        """Return the bytes that an entry's record and blobs take in the file, bases not counted."""
        named = (entry.record, entry.lines, entry.reference, *entry.blobs)
        numbers = {number for number in named if number is not None}
        with self._reader.naming:
            return sum(self._reader.row(number).extent.size for number in numbers)

    def declared_sizes(self, entry: Entry) -> list[int]:
        """Return the bytes that the files of an entry have: record, plan, blobs; none is read."""
        with self._reader.naming:
            record = self._reader.row(entry.record).size
            blobs = [self._reader.row(n).size for n in entry.blobs if n is not None]
        return [record, record, *blobs]

    def verify(self) -> None:
        """Read everything and compare all of it with its digests.

        Raises:
            CorruptError: the first thing that is wrong.
        """
        from pallasc.specs.bundle.verify import verify

        with self._reader.naming:
            verify(self._reader, self.entries(), self.artifact, self.reference)
            _ = self.provenance, self.codec

    def check_signatures(self, trusted: Iterable[PublicKey]) -> tuple[PublicKey, ...]:
        """Return the trusted keys that signed the bundle, at least one.

        All that is read afterwards is covered by the signatures, without `verify`.

        Raises:
            CorruptError: it is not signed, not by a trusted key, or a signature is wrong.
            ToolError: the cryptography package is missing.
        """
        return check_signatures(self.signatures, self._reader.head.root, trusted, self.name)

    def _find(self, key: bytes) -> int:
        with self._reader.naming:
            return self._reader.find(key)

    def _content(self, number: int) -> bytes:
        with self._reader.naming:
            return self._reader.content(number)

    def _read_of(self, numbers: Mapping[str, int | None]) -> Callable[[str], bytes | None]:
        def read(key: str) -> bytes | None:
            number = numbers[key]
            return None if number is None else self._content(number)

        return read

    def _reader_of(self, number: int | None, kind: Kind) -> Callable[[], bytes] | None:
        return None if number is None else partial(self._beside, number, kind)

    def _beside(self, number: int, kind: Kind) -> bytes:
        """Return the content of a blob of a kind that no record names."""
        with self._reader.naming:
            if self._reader.row(number).kind is not kind:
                raise CorruptError(f"blob {number} has no {_CALLED[kind]}, and an entry says so")
        return self._content(number)

    def _source_lines(self, entry: Entry) -> SourceLines | None:
        if entry.lines is None:
            return None
        from pallasc.specs.artifacts.source_lines import from_json

        data = self._beside(entry.lines, Kind.LINES)
        with self._reader.naming:
            return from_json(data)

    def _record(self, entry: Entry) -> ArtifactRecord:
        """Return the record of an entry, as it was compiled.

        Raises:
            CorruptError: it is not the one of this entry.
        """
        row = self._reader.row(entry.record)
        if row.kind is not Kind.RECORD or row.digest.hex() != entry.digest:
            raise CorruptError(f"{entry.id} names blob {entry.record}, which is not its record")
        if row.size > MAX_RECORD_BYTES:
            raise CorruptError(f"the record of {entry.id} has {row.size} bytes")
        data = self._reader.content(entry.record)
        record = parse_record(data)
        if canonical_json(record) != data:
            raise CorruptError(f"the record of {entry.id} is not canonical JSON")
        expected = (
            record["target"]["name"],
            record["target"]["arch"],
            minimum_driver(record),
            signature(record["plan"], "inputs"),
            signature(record["plan"], "outputs"),
        )
        stated = entry.target, entry.arch, entry.minimum_driver, entry.inputs, entry.outputs
        if stated != expected:
            raise CorruptError(f"the manifest and the artifact of {entry.id} disagree")
        kinds = list(kinds_of(record).values())
        rows = [None if n is None else self._reader.row(n).kind for n in entry.blobs]
        if len(rows) != len(kinds) or any(
            own not in (kind, None) or (own is None and kind is not Kind.PTX)
            for own, kind in zip(rows, kinds, strict=True)
        ):
            raise CorruptError(f"the blobs of {entry.id} do not match its artifact")
        return record


def _places(rows: Mapping[str, BlobRow | None]) -> Shipped:
    return {key: None if row is None else (row.digest.hex(), row.size) for key, row in rows.items()}
