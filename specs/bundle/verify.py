"""Check a whole bundle: `verify` its integrity, which signing requires, and `audit` its content.

Verifying reads the whole file, and checks that every byte belongs to one part and matches a digest.
An audit has findings of these kinds, with these severities:

* `target`: a target that was not requested has variants (warning), a requested target has none
  (error), or a kernel lacks variants for a requested target (warning)
* `spill`: a kernel spills more than allowed (warning), or it is unknown whether it spills (note)
* `size`: the bundle or the cubins of a variant are larger than allowed (error)
* `driver`: minimum driver of each architecture (note), or it is newer than allowed (error)
* `signature`: the bundle is not signed (warning)
* `debug`: debug sections, PTX, source lines, or reference values were not removed (warning)
* `architecture`: a cubin is not for the architecture of its variant (error)
* `provenance`: the bundle was made from files that differ from the commit (warning)
* `tuning`: a variant of a tuned kernel that no row and no default uses (warning)
* `lock`: the bundle lacks a variant of the lock file (note), or has another variant or another
  artifact (error)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pallasc.errors import CorruptError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.cubin import parse_cubin
from pallasc.specs.bundle.bundle import Bundle
from pallasc.specs.bundle.format import MINOR, Extent, Kind
from pallasc.specs.bundle.manifest import Entry, content_digest, differing, key_of, parse_entry
from pallasc.specs.bundle.reader import MemorySource, Reader
from pallasc.specs.bundle.signature import pack_signatures, sign
from pallasc.specs.bundle.strip import debug_bytes
from pallasc.specs.bundle.tuned import Agreement
from pallasc.specs.loading.lock import Lock

if TYPE_CHECKING:
    from pallasc.specs.bundle.signature import Ed25519PrivateKey

Severity = Literal["note", "warning", "error"]
SEVERITIES: tuple[Severity, ...] = ("note", "warning", "error")

_CHUNK_BYTES = 2**20
_LEFT_IN = {Kind.PTX: "PTX", Kind.LINES: "source lines", Kind.REFERENCE: "reference values"}


def verify(bundle: Bundle) -> None:
    """Read all of a bundle and compare it with its digests, except for the signatures.

    Raises:
        CorruptError: the first error found.
    """
    reader = bundle.reader
    # A later minor version may add fields to entries, or parts, that this reader cannot check.
    is_known = reader.head.minor <= MINOR
    with reader.naming():
        if is_known:
            _check_places(reader)
        users: dict[int, str] = {}
        content = content_digest(_checked(bundle, users))
        if is_known and content != reader.head.content:
            raise CorruptError("its manifest does not match the digest of its content")
        _check_blobs(reader, users)
        _ = bundle.provenance, bundle.codec
        _check_body(reader)  # last, because the other checks name the damaged part


def _check_blobs(reader: Reader, users: Mapping[int, str]) -> None:
    digests = set()
    for number in range(reader.catalog.blobs):
        if number not in users:
            raise CorruptError(f"no variant uses its blob {number}")
        digests.add(reader.digest(number))
        try:
            reader.content(number)
        except CorruptError as error:
            raise CorruptError(f"{error.message}; {users[number]} uses it") from error
    if len(digests) != reader.catalog.blobs:
        raise CorruptError("it has a blob twice")


def _check_body(reader: Reader) -> None:
    state = hashlib.sha256()
    end = reader.head.body_end
    for at in range(reader.head.head_bytes, end, _CHUNK_BYTES):
        state.update(reader.read(Extent(at, min(_CHUNK_BYTES, end - at))))
    if state.digest() != reader.head.body_digest:
        raise CorruptError("its bytes do not match their digest")


def _check_places(reader: Reader) -> None:
    """Check that every byte belongs to exactly one part."""
    catalog, head = reader.catalog, reader.head
    parts = [reader.row(number).extent for number in range(catalog.blobs)]
    pages = range(catalog.blob_pages + catalog.entry_pages)
    parts += [catalog.page(page).extent for page in pages]
    parts += [head.catalog, head.provenance]
    at = head.head_bytes
    for part in parts:
        if part.at != at:
            raise CorruptError(f"its bytes {at} to {part.at} belong to no part, or to two parts")
        at = part.end
    if at != head.body_end:
        raise CorruptError(f"its bytes {at} to {head.body_end} belong to no part")


def _checked(bundle: Bundle, users: dict[int, str]) -> Iterator[Entry]:
    """Yield each entry after checking all of its parts; record a user of each blob.

    Entries must be in order, and the catalog must have the first key of each page.
    """
    reader, agreement, last = bundle.reader, Agreement(), b""
    for page in range(reader.catalog.entry_pages):
        texts = reader.entry_page(page)
        if reader.catalog.first_key(page) != key_of(texts[0]):
            raise CorruptError(f"page {page} of its entries begins with another key")
        for text in texts:
            key, entry = key_of(text), parse_entry(text, reader.digest)
            if key <= last or entry.key != key:
                raise CorruptError(f"entry {key[:80]!r} is out of order, or not canonical")
            last = key
            if fault := agreement.disagreement(entry):
                raise CorruptError(fault)
            _ = bundle.artifact(entry).source_lines(), bundle.reference(entry)
            for number in entry.numbers:
                users.setdefault(number, entry.id)
            yield entry


def signed(data: bytes, private_key: Ed25519PrivateKey, name: str = "the bundle") -> bytes:
    """Return a bundle's bytes with a signature; an earlier signature by the same key is replaced.

    Args:
        data: the bytes of a bundle.
        private_key: the key to sign with.
        name: the bundle's name in messages.

    Raises:
        CorruptError: the bundle is damaged, so it is not signed.
    """
    with Bundle(MemorySource(data), name) as bundle:
        verify(bundle)
        head = bundle.reader.head
        signatures = [*bundle.signatures, sign(head.root, private_key)]
        return data[: head.body_end] + pack_signatures(signatures)


# ---- the audit


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding of an audit.

    Attributes:
        severity: its severity.
        kind: see the module's docstring.
        subject: a variant, a kernel, a target, or the bundle.
        message: one sentence.
    """

    severity: Severity
    kind: str
    subject: str
    message: str

    def at_least(self, severity: Severity) -> bool:
        """Return True if its severity is this one or a worse one."""
        return SEVERITIES.index(self.severity) >= SEVERITIES.index(severity)


@dataclass(frozen=True, slots=True)
class Rules:
    """The limits that a bundle is checked against; None and empty values disable a check.

    Attributes:
        targets: models or architectures that the bundle must support.
        bundle_bytes: maximum size of the file.
        variant_bytes: maximum size of a variant's cubins, as shipped.
        spill_bytes: maximum spill bytes per thread of a kernel.
        driver: newest driver API that may be required, "12.8".
    """

    targets: tuple[str, ...] = ()
    bundle_bytes: int | None = None
    variant_bytes: int | None = None
    spill_bytes: int = 0
    driver: str | None = None


def audit(bundle: Bundle, rules: Rules) -> list[Finding]:
    """Return the findings for a bundle, worst first.

    Raises:
        CorruptError: the bundle is damaged.
    """
    entries = list(bundle.entries())
    findings = [
        *_targets(entries, rules.targets),
        *_drivers(entries, rules.driver),
        *_unused(entries),
        *_bundle(bundle, rules),
        *_blobs(bundle, entries),
    ]
    for entry in entries:
        findings += _variant(entry.id, bundle.artifact(entry), rules)
    return sort_findings(findings)


def sort_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings, worst first."""
    return sorted(
        findings,
        key=lambda f: (-SEVERITIES.index(f.severity), f.kind, f.subject, f.message),
    )


def _targets(entries: Sequence[Entry], requested: Sequence[str]) -> Iterator[Finding]:
    if not requested:
        return
    for target, arch in sorted({(entry.target, entry.arch) for entry in entries}):
        if target not in requested and arch not in requested:
            count = sum(entry.target == target for entry in entries)
            text = f"{count} variant{'s' * (count > 1)} for a target that was not requested"
            yield Finding("warning", "target", target, text)
    points: dict[str, set[object]] = {}
    for entry in entries:
        points.setdefault(entry.name, set()).add(entry.params)
    for target in requested:
        there = {(e.name, e.params) for e in entries if target in (e.target, e.arch)}
        if not there:
            yield Finding("error", "target", target, "the bundle has no variant for it")
            continue
        for name, own in points.items():
            if lacking := [params for params in own if (name, params) not in there]:
                text = (
                    f"{len(lacking)} of its {len(own)} matrix points have no variant for {target}"
                )
                yield Finding("warning", "target", name, text)


def _drivers(entries: Sequence[Entry], newest: str | None) -> Iterator[Finding]:
    needs = {
        (e.arch, e.minimum_driver.get("cuda", ""), e.minimum_driver.get("linux", "unknown"))
        for e in entries
    }
    for arch, api, package in sorted(needs):
        text = f"it needs driver {package} or newer (CUDA {api or 'unknown'})"
        if newest is not None and version_of(api) > version_of(newest):
            text += f", and the limit is CUDA {newest}"
            yield Finding("error", "driver", arch, text)
        else:
            yield Finding("note", "driver", arch, text)


def _unused(entries: Iterable[Entry]) -> Iterator[Finding]:
    """Yield tuned variants that are never used, if their kernel has a row or a default."""
    tuned = [(entry, entry.tuning) for entry in entries if entry.tuning is not None]
    kernels = {entry.name for entry, tuning in tuned if tuning.rows or tuning.is_default}
    for entry, tuning in tuned:
        if entry.name in kernels and not (tuning.rows or tuning.is_default or tuning.rank):
            text = "it is in no row of its table, and not the default"
            yield Finding("warning", "tuning", entry.id, text)


def version_of(text: str) -> tuple[int, ...]:
    """Return a version as numbers to compare; other parts count as 0."""
    return tuple(int(part) if part.isdecimal() else 0 for part in text.split("."))


def _bundle(bundle: Bundle, rules: Rules) -> Iterator[Finding]:
    if rules.bundle_bytes is not None and bundle.size > rules.bundle_bytes:
        text = f"it has {bundle.size} bytes, and the limit is {rules.bundle_bytes}"
        yield Finding("error", "size", "the bundle", text)
    if not bundle.signatures:
        yield Finding("warning", "signature", "the bundle", "it is not signed")
    for origin in bundle.provenance:
        if origin.dirty:
            yield Finding("warning", "provenance", "the bundle", differing(origin))


def _variant(name: str, artifact: Artifact, rules: Rules) -> Iterator[Finding]:
    most, most_spilled = rules.variant_bytes, rules.spill_bytes
    if most is not None and artifact.cubin_bytes > most:
        text = f"its cubins have {artifact.cubin_bytes} bytes, and the limit is {most}"
        yield Finding("error", "size", name, text)
    for own in artifact.kernels:
        if own.spill_bytes is None:
            text = f"{own.name} has a stack of {own.stack_bytes} bytes, which may include spills"
            yield Finding("note", "spill", name, text)
        elif own.spill_bytes > most_spilled:
            text = f"{own.name} spills {own.spill_bytes} bytes, and the limit is {most_spilled}"
            yield Finding("warning", "spill", name, text)


def _blobs(bundle: Bundle, entries: Iterable[Entry]) -> Iterator[Finding]:
    """Yield findings about blobs; each blob is read once."""
    reader = bundle.reader
    users: dict[int, list[Entry]] = {}
    for entry in entries:
        for number in entry.numbers:
            users.setdefault(number, []).append(entry)
    for number, of in sorted(users.items()):
        with reader.naming():
            row = reader.row(number)
            if row.kind in _LEFT_IN:
                text = f"{row.size} bytes of {_LEFT_IN[row.kind]} are in it"
                yield Finding("warning", "debug", of[0].id, text)
            elif row.kind is Kind.CUBIN:
                yield from _cubin(reader.content(number), of)


def _cubin(content: bytes, users: Sequence[Entry]) -> Iterator[Finding]:
    if left := debug_bytes(content):
        text = f"{left} bytes of debug sections are in its cubin"
        yield Finding("warning", "debug", users[0].id, text)
    sm = parse_cubin(content).sm
    for entry in users:
        if entry.arch.rstrip("af") != f"sm_{sm}":
            text = f"it is for {entry.arch}, but its cubin is for sm_{sm}"
            yield Finding("error", "architecture", entry.id, text)


def compare_with_lock(entries: Iterable[Entry], lock: Lock) -> list[Finding]:
    """Return the differences between entries and a lock file, worst first.

    A missing entry is a note, because a bundle may be incomplete. Digests are for the artifacts as
    they were compiled, before anything was left out.
    """
    left = dict(lock.variants)
    findings = []
    for entry in entries:
        locked = left.pop(entry.id, None)
        if locked is None:
            text = "the lock file does not name it"
            findings.append(Finding("error", "lock", entry.id, text))
        elif locked.artifact != entry.digest:
            text = f"the lock file has artifact {locked.artifact[:12]}, the bundle "
            findings.append(Finding("error", "lock", entry.id, text + entry.digest[:12]))
    findings += [Finding("note", "lock", name, "the bundle lacks it") for name in left]
    return sort_findings(findings)
