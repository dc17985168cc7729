"""What goes into a bundle: a variant by name, parameters and artifact, and what ships of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pallasc.errors import CorruptError
from pallasc.specs.artifacts.artifact import Artifact, ArtifactRecord
from pallasc.specs.bundle.blobs import Kind
from pallasc.specs.bundle.manifest import Entry
from pallasc.specs.bundle.records import kinds_of, minimum_driver, parse_record, signature
from pallasc.specs.bundle.strip import strip_debug
from pallasc.specs.canonical import canonical_json, digest
from pallasc.specs.templates import Scalar
from pallasc.specs.tuning import Tuning


@dataclass(frozen=True, slots=True)
class Item:
    """A variant to put into a bundle.

    Attributes:
        name: the kernel.
        params: parameters and their values, in the order of the matrix.
        record: the artifact's record, as it was compiled.
        read: returns the bytes of a blob of the record; None where an earlier bundle left it out.
        vmap: the kernel that does the same to a batch, None where the spec names none.
        lines: returns the record of its source lines; None where none ship.
        tuning: what decides where it is used, None where the kernel is not tuned.
        reference: returns its reference values (`specs/bundle/reference.py`); None where none ship.
    """

    name: str
    params: tuple[tuple[str, Scalar], ...]
    record: ArtifactRecord
    read: Callable[[str], bytes | None]
    vmap: str | None = None
    lines: Callable[[], bytes | None] | None = None
    tuning: Tuning | None = None
    reference: Callable[[], bytes | None] | None = None


@dataclass(frozen=True, slots=True)
class Blob:
    """A blob of an item as it ships.

    Attributes:
        kind: what it is.
        data: its content.
        family: blobs with the same are probably alike.
    """

    kind: Kind
    data: bytes
    family: str


@dataclass(frozen=True, slots=True)
class Packed:
    """An item as it ships.

    Attributes:
        entry: its entry, whose numbers are not known yet.
        shipped: digest of what ships for each of the record's blobs, in the order of their digests.
        blobs: what ships, the record included, by digest.
        lines: digest of the source lines, None where none ship.
        reference: digest of the reference values, None where none ship.
    """

    entry: Entry
    shipped: tuple[str | None, ...]
    blobs: Mapping[str, Blob]
    lines: str | None = None
    reference: str | None = None


def item_of(
    name: str,
    params: Mapping[str, Scalar],
    artifact: Artifact,
    *,
    vmap: str | None = None,
    lines: bytes | None = None,
    tuning: Tuning | None = None,
    reference: bytes | None = None,
) -> Item:
    """Return the item of an artifact.

    Args:
        name: the kernel.
        params: parameters and their values, in the order of the matrix.
        artifact: what was compiled.
        vmap: the kernel that does the same to a batch.
        lines: the record of its source lines; None for none.
        tuning: what decides where it is used.
        reference: its reference values; None for none.
    """
    return Item(
        name,
        tuple(params.items()),
        artifact.record,
        artifact.blob,
        vmap,
        None if lines is None else lambda: lines,
        tuning,
        None if reference is None else lambda: reference,
    )


def pack_item(item: Item, *, keep_debug: bool, keep_ptx: bool) -> Packed:
    """Return the parts of an item that ship.

    Args:
        item: the variant.
        keep_debug: leave debug sections in cubins.
        keep_ptx: take the PTX along.

    Raises:
        CorruptError: the record or a cubin is damaged, or a blob is missing.
    """
    data = canonical_json(item.record)
    record = parse_record(data)
    own = digest(data)
    families = _families(record)
    blobs = {own: Blob(Kind.RECORD, data, item.name)}
    shipped: list[str | None] = []
    for key, kind in kinds_of(record).items():
        content = None if kind is Kind.PTX and not keep_ptx else item.read(key)
        if content is None and kind is not Kind.PTX:
            raise CorruptError(f"{item.name}: its {kind.name.lower()} {key} was left out")
        if content is not None and kind is Kind.CUBIN and not keep_debug:
            content = strip_debug(content)
        name = None if content is None else digest(content)
        shipped.append(name)
        if content is not None and name is not None:
            blobs[name] = Blob(kind, content, families.get(key, ""))
    lines = _beside(Kind.LINES, item.lines, item, blobs)
    reference = _beside(Kind.REFERENCE, item.reference, item, blobs)
    return Packed(_entry(item, record, own), tuple(shipped), blobs, lines, reference)


def _beside(
    kind: Kind, read: Callable[[], bytes | None] | None, item: Item, blobs: dict[str, Blob]
) -> str | None:
    """Add what ships beside the record's blobs; return its digest, None where there is nothing."""
    content = None if read is None else read()
    if content is None:
        return None
    name = digest(content)
    blobs[name] = Blob(kind, content, item.name)
    return name


def _families(record: ArtifactRecord) -> dict[str, str]:
    """Return the kernel that each cubin and each PTX is of."""
    return {
        str(kernel[key]): str(kernel["name"])
        for kernel in record["kernels"]
        for key in ("cubin", "ptx")
    }


def _entry(item: Item, record: ArtifactRecord, own: str) -> Entry:
    return Entry(
        name=item.name,
        params=item.params,
        target=str(record["target"]["name"]),
        arch=str(record["target"]["arch"]),
        inputs=signature(record["plan"], "inputs"),
        outputs=signature(record["plan"], "outputs"),
        minimum_driver=minimum_driver(record),
        record=0,
        blobs=(),
        digest_of=lambda _: own,
        vmap=item.vmap,
        tuning=item.tuning,
    )
