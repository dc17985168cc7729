"""An open bundle: kernels by name, their variants, artifacts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pallasc.errors import CorruptError
from pallasc.specs.artifacts.artifact import Artifact, ArtifactRecord
from pallasc.specs.bundle.format import MAX_RECORD_BYTES, BlobRow, Extent, Kind, sha256
from pallasc.specs.bundle.manifest import (
    Entry,
    Item,
    Provenance,
    arrays_of,
    is_name,
    parse_provenance,
)
from pallasc.specs.bundle.reader import MemorySource, OpenFile, Reader, Source
from pallasc.specs.bundle.signature import (
    MAX_SIGNATURES_BYTES,
    Policy,
    PublicKey,
    Signature,
    check_signatures,
    parse_signatures,
)
from pallasc.specs.canonical import canonical_json, parse_json

if TYPE_CHECKING:
    from pallasc.specs.artifacts.source_lines import SourceLines
    from pallasc.specs.bundle.tuned import Reference


def open_bundle(file: str | os.PathLike[str] | bytes) -> Bundle:
    """Open a bundle: a path, which is read on demand, or its bytes.

    Raises:
        CorruptError: the file is not a bundle, has another major version, is truncated, or is
            damaged.
        SpecError: the file cannot be read.
    """
    if isinstance(file, bytes):
        return Bundle(MemorySource(file), "the bundle")
    source = OpenFile(file)
    try:
        return Bundle(source, os.fspath(file))
    except CorruptError:
        source.close()
        raise


class Bundle:
    """An open bundle; `with` closes it. It must stay open while its artifacts are read.

    Every method raises CorruptError, with the name of the file, if the data that it reads is
    damaged.

    Args:
        source: its bytes.
        name: its name in messages.

    Attributes:
        reader: the parts of the bundle as stored in the file.
        name: the path that it was opened from.
        signatures: its signatures, not yet checked.
    """

    def __init__(self, source: Source, name: str) -> None:
        self.reader = Reader(source, name)
        self.name = name
        body_end = self.reader.head.body_end
        # Reading one byte more than the limit detects that there are too many bytes.
        tail = Extent(body_end, min(source.size - body_end, MAX_SIGNATURES_BYTES + 1))
        with self.reader.naming():
            self.signatures: tuple[Signature, ...] = parse_signatures(self.reader.read(tail))

    def __enter__(self) -> Bundle:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.reader.catalog.entries

    def __repr__(self) -> str:
        return f"<Bundle {self.name} of {len(self)} variants>"

    def close(self) -> None:
        """Close the file."""
        self.reader.source.close()

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return self.reader.source.size

    @property
    def digest(self) -> str:
        """Digest of its content; compression and provenance do not change it."""
        return self.reader.head.content.hex()

    @property
    def root(self) -> str:
        """Digest of the head, which covers the whole file except the signatures."""
        return self.reader.head.root.hex()

    @property
    def codec(self) -> Mapping[str, object]:
        """The codec that compressed the bundle: level and version of the zstd library."""
        with self.reader.naming():
            codec = self.reader.catalog.info.get("codec")
        return codec if isinstance(codec, Mapping) else {}

    @property
    def provenance(self) -> tuple[Provenance, ...]:
        """The sources that the bundle was made from; several if bundles were merged."""
        head = self.reader.head
        with self.reader.naming():
            data = self.reader.read(head.provenance)
            if data and sha256(data) != head.provenance_digest:
                raise CorruptError("its provenance does not match the digest in its head")
            return parse_provenance(data)

    def names(self) -> list[str]:
        """Return the sorted names of the kernels; one page is read for each."""
        names = []
        number = 0
        with self.reader.naming():
            while number < len(self):
                name = self.reader.key(number).partition(b"\0")[0]
                text = name.decode("utf-8", "replace")
                if not is_name(text):
                    raise CorruptError(f"{name!r} cannot be the name of a kernel")
                names.append(text)
                number = max(number + 1, self.reader.find(name + b"\1"))
        return names

    def entries(self, name: str | None = None) -> Iterator[Entry]:
        """Yield the entries, of all kernels or of one, in the order of their keys."""
        prefix = b"" if name is None else name.encode("utf-8", "replace") + b"\0"
        with self.reader.naming():
            number = self.reader.find(prefix)
        while number < len(self):
            with self.reader.naming():
                if not self.reader.key(number).startswith(prefix):
                    return
                entry = self.reader.entry(number)
            yield entry
            number += 1

    def artifact(self, entry: Entry) -> Artifact:
        """Return the artifact of an entry as it ships; its blobs are read on demand.

        If debug sections or PTX were left out, its digest differs from `entry.digest`, and the PTX
        of its kernels is None.

        Raises:
            CorruptError: entry, record, and blobs do not match.
        """
        record, rows = self._parts(entry)
        with self.reader.naming():
            shipped = {row.digest.hex(): row for row in rows.values() if row is not None}
            artifact = Artifact(
                _shipped_record(entry, record, rows), lambda key: self._content(shipped[key])
            )
            _check(entry, artifact, shipped)
        artifact.source_lines = partial(self._source_lines, entry)
        return artifact

    def shipped(self, entry: Entry) -> dict[str, BlobRow | None]:
        """Return the shipped blob for each digest in the record, None for blobs left out."""
        return self._parts(entry)[1]

    def rows(self, entry: Entry) -> list[BlobRow]:
        """Return the rows of all blobs of an entry, each once."""
        with self.reader.naming():
            return [self.reader.row(number) for number in dict.fromkeys(entry.numbers)]

    def reference(self, entry: Entry) -> Reference | None:
        """Return the reference values for an entry's results, None if there are none.

        Raises:
            CorruptError: the values are damaged, or not for results of this entry.
        """
        data = self._beside(entry.reference, Kind.REFERENCE)
        if data is None:
            return None
        from pallasc.specs.bundle.tuned import parse_reference

        with self.reader.naming():
            return parse_reference(data, [output.shape for output in entry.outputs])

    def items(self, entries: Iterable[Entry] | None = None) -> Iterator[Item]:
        """Yield entries as items for writing another bundle; by default, all entries."""
        for entry in self.entries() if entries is None else entries:
            record, rows = self._parts(entry)
            yield Item(
                entry.name,
                dict(entry.params),
                Artifact(record, lambda key: b""),
                vmap=entry.vmap,
                lines=self._beside(entry.lines, Kind.LINES),
                tuning=entry.tuning,
                reference=self._beside(entry.reference, Kind.REFERENCE),
                read=partial(self._read, rows),
            )

    def check_signatures(self, trusted: Iterable[PublicKey]) -> tuple[PublicKey, ...]:
        """Return the trusted keys that signed the bundle, at least one.

        The signatures cover everything that is read afterwards.

        Raises:
            CorruptError: the bundle is not signed by a trusted key, or a signature is wrong.
            ToolError: the cryptography package is missing.
        """
        return check_signatures(self.signatures, self.reader.head.root, trusted, self.name)

    def check_policy(self, policy: Policy) -> list[PublicKey]:
        """Return the keys that signed the bundle, as a policy requires.

        Raises:
            CorruptError: a signature is missing or wrong.
            ToolError: the cryptography package is missing.
        """
        return policy.check(self.signatures, self.reader.head.root, self.name)

    def _content(self, row: BlobRow) -> bytes:
        with self.reader.naming():
            return self.reader.content(row.number)

    def _read(self, rows: Mapping[str, BlobRow | None], key: str) -> bytes | None:
        row = rows[key]
        return None if row is None else self._content(row)

    def _beside(self, number: int | None, kind: Kind) -> bytes | None:
        """Return the content of a blob that is not part of a record."""
        if number is None:
            return None
        with self.reader.naming():
            if self.reader.row(number).kind is not kind:
                raise CorruptError(
                    f"an entry names blob {number} as its {kind.name.lower()}, but it is none"
                )
            return self.reader.content(number)

    def _source_lines(self, entry: Entry) -> SourceLines | None:
        data = self._beside(entry.lines, Kind.LINES)
        if data is None:
            return None
        from pallasc.specs.artifacts.source_lines import from_json

        with self.reader.naming():
            return from_json(data)

    def record(self, entry: Entry) -> ArtifactRecord:
        """Return the artifact's record as it was compiled; its digest is `entry.digest`.

        Raises:
            CorruptError: the blob is not the record of this entry.
        """
        with self.reader.naming():
            row = self.reader.row(entry.record)
            if row.kind is not Kind.RECORD or row.digest.hex() != entry.digest:
                raise CorruptError(f"{entry.id} names blob {entry.record}, which is not its record")
            if row.size > MAX_RECORD_BYTES:
                raise CorruptError(f"the record of {entry.id} has {row.size} bytes")
            data = self.reader.content(entry.record)
            stored: Any = parse_json(data)
            record = Artifact(stored, lambda key: b"").record
            if canonical_json(record) != data:
                raise CorruptError(f"the record of {entry.id} is not canonical JSON")
            return record

    def _parts(self, entry: Entry) -> tuple[ArtifactRecord, dict[str, BlobRow | None]]:
        """Return the record of an entry, and the shipped blob for each of the record's blobs."""
        record = self.record(entry)
        with self.reader.naming():
            if len(record["blobs"]) != len(entry.blobs):
                raise _mismatch(entry)
            rows = [None if n is None else self.reader.row(n) for n in entry.blobs]
        return record, dict(zip(sorted(record["blobs"]), rows, strict=True))


def minimum_driver(record: ArtifactRecord) -> Mapping[str, str]:
    """Return `cuda` and `linux` of a record's minimum driver; empty if it has none."""
    return record.get("minimum_driver") or {}


def kinds_of(artifact: Artifact) -> dict[str, Kind]:
    """Return the kind of each blob of an artifact, by digest, in the order of the digests.

    Raises:
        CorruptError: the artifact is damaged, or lists a blob that it does not use.
    """
    kinds = {launch.cubin: Kind.CUBIN for launch in artifact.plan.launches}
    for kernel in artifact.kernels:
        kinds[kernel.cubin] = Kind.CUBIN
        if kernel.ptx is not None:
            kinds[kernel.ptx] = Kind.PTX
    for buffer in artifact.plan.buffers:
        if buffer.digest is not None:
            kinds[buffer.digest] = Kind.CONSTANT
    if kinds.keys() != artifact.record["blobs"].keys():
        raise CorruptError("an artifact's record does not list the blobs that it uses")
    return {key: kinds[key] for key in sorted(kinds)}


def _mismatch(entry: Entry) -> CorruptError:
    return CorruptError(f"the blobs of {entry.id} do not match its artifact")


def _shipped_record(
    entry: Entry, record: ArtifactRecord, rows: Mapping[str, BlobRow | None]
) -> Mapping[str, object]:
    """Return an artifact's record with the digests of the bytes that the bundle contains.

    Raises:
        CorruptError: a cubin does not ship, or the record is damaged.
    """
    names: dict[object, str] = {k: row.digest.hex() for k, row in rows.items() if row is not None}
    plan: Any = record["plan"]
    try:
        kernels = [
            {**kernel, "cubin": names[kernel["cubin"]], "ptx": names.get(kernel["ptx"])}
            for kernel in record["kernels"]
        ]
        steps = [
            {**step, "cubin": names[step["cubin"]]} if step["kind"] == "launch" else step
            for step in plan["steps"]
        ]
    except (LookupError, TypeError) as error:
        raise _mismatch(entry) from error
    return {
        **record,
        "blobs": {row.digest.hex(): row.size for row in rows.values() if row is not None},
        "kernels": kernels,
        "plan": {**plan, "steps": steps},
    }


def _check(entry: Entry, artifact: Artifact, shipped: Mapping[str, BlobRow]) -> None:
    """Check that a shipped artifact matches its entry and the blob table.

    Raises:
        CorruptError: the artifact does not match them, or is damaged.
    """
    if kinds_of(artifact) != {key: row.kind for key, row in shipped.items()}:
        raise _mismatch(entry)
    target, plan = artifact.target, artifact.plan
    inputs, outputs = arrays_of(plan.inputs), arrays_of(plan.outputs)
    made = target.name, target.arch, minimum_driver(artifact.record), inputs, outputs
    stated = entry.target, entry.arch, entry.minimum_driver, entry.inputs, entry.outputs
    if made != stated:
        raise CorruptError(f"the manifest and the artifact of {entry.id} disagree")
