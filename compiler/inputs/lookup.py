"""Look variants up in the store: request, manifest, record. Nothing is imported.

A request has a manifest for each of the last sets of sources that it was compiled from: several
branches have one each. A manifest whose sources are all unchanged is a hit. Variants that read the
same sources share one check of these sources per build, and the set that fit the last variant of a
folder is tried first for the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pallasc.cache.format import ARTIFACTS, KINDS, MANIFESTS
from pallasc.cache.manifests import Manifest, set_name
from pallasc.cache.signing import ANOTHER_RECORD, NOT_SIGNED
from pallasc.cache.stat_digest import FileDigests
from pallasc.cache.store import Store
from pallasc.compiler.inputs.reads import change_of, digest_of, package_in, path_of
from pallasc.compiler.inputs.request import Request, Requests
from pallasc.compiler.toolchain.identity import located_digest
from pallasc.compiler.toolchain.modules import Found, Place
from pallasc.compiler.toolchain.setup import Context
from pallasc.errors import CorruptError, PallascError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.spec import Variant

_RECORD_GONE = "the store no longer has its record"
_NO_ACTION = "its manifest in the store was damaged"
_NO_MANIFEST = Manifest()
_NEVER = "never compiled with this spec and toolchain"


@dataclass(frozen=True, slots=True)
class SourceChange:
    """A source that differs from what a manifest recorded.

    Attributes:
        kind: field of the manifest that lists it; `unreadable` if it cannot be read.
        label: its label in that field; the error if unreadable.
        file: current path, relative to the spec's folder if inside it; "" if it is gone.
        packages: current digests of the installed packages that differ, None for missing ones.
        manifest: the manifest, for the recorded versions of packages.
    """

    kind: Literal["files", "packages", "opened", "absent", "hidden", "unreadable"]
    label: str = ""
    file: str = ""
    packages: Mapping[str, str | None] = field(default_factory=dict)
    manifest: Manifest | None = field(default=None, repr=False)

    def sentences(self) -> list[str]:
        """Return the change in words."""
        if self.kind == "files":
            return [self._file_sentence()]
        if self.kind == "packages":
            return self._package_sentences()
        if self.kind == "opened":
            return [change_of(self.label)]
        if self.kind == "absent":
            return [f"{self.label} was missing and can be imported now"]
        if self.kind == "hidden":
            return ["different modules of Python are shadowed by files of the same name"]
        return [f"a source listed in its manifest cannot be read: {self.label}"]

    def _file_sentence(self) -> str:
        """Name the source: `helper (lib/helper.py)`, `kernel.py`."""
        kind, _, name = self.label.partition(":")
        shown = f"{name} ({self.file})" if self.file and kind != "file" else name
        return f"{shown} {'has changed' if self.file else 'is gone'}"

    def _package_sentences(self) -> list[str]:
        """Name each package with both versions."""
        from pallasc.compiler.toolchain.identity import package_components
        from pallasc.compiler.toolchain.toolchain import version_of
        from pallasc.specs.lock import differences

        recorded = self.manifest or Manifest()
        before = {name: recorded.packages.get(name) for name in self.packages}
        versions = {name: version_of(name) for name, now in self.packages.items() if now}
        return differences(
            package_components(before, recorded.package_versions),
            package_components(self.packages, versions),
        )


@dataclass(frozen=True, slots=True)
class CurrentSources:
    """The current state of the sources that manifests list.

    Attributes:
        place: folders in which files and modules are searched for.
        digests: computes digests of files.
        unchecked: if not None, missing packages do not count as changed, and their names are added
            here.
    """

    place: Place
    digests: FileDigests
    unchecked: set[str] | None = None

    def first_change(self, manifest: Manifest) -> SourceChange | None:
        """Return the first source that has changed, None if none has."""
        return next(self.changes(manifest), None)

    def changes(self, manifest: Manifest) -> Iterator[SourceChange]:
        """Yield each source that has changed."""
        try:
            found = self.place.find(manifest)
            yield from self._files(manifest, found)
            yield from self._packages(manifest, found)
            yield from self._opened(manifest)
            yield from (SourceChange("absent", name) for name in found.importable)
            if manifest.hidden != found.hidden:
                yield SourceChange("hidden")
        except (OSError, ValueError) as error:  # a name that no file or package can have
            yield SourceChange("unreadable", str(error))

    def _files(self, manifest: Manifest, found: Found) -> Iterator[SourceChange]:
        for label, path in found.files.items():
            now = None if path is None else self._digest(path)
            if now != manifest.files[label]:
                yield SourceChange("files", label, "" if now is None else self._shown(path))

    def _packages(self, manifest: Manifest, found: Found) -> Iterator[SourceChange]:
        differing: dict[str, str | None] = {}
        for name, path in found.packages.items():
            now = None if path is None else located_digest(path, self.digests.digest)
            if now is None and self.unchecked is not None:
                self.unchecked.add(name)
            elif now != manifest.packages[name]:
                differing[name] = now
        if differing:
            yield SourceChange("packages", packages=differing, manifest=manifest)

    def _opened(self, manifest: Manifest) -> Iterator[SourceChange]:
        for label, recorded in sorted(manifest.opened.items()):
            path = path_of(label, self.place.base_dir)
            now = digest_of(label, path, self.digests.digest)
            package = package_in(label)
            if self.unchecked is not None and now is None and recorded is not None and package:
                self.unchecked.add(package)
            elif now != recorded:
                yield SourceChange("opened", label)

    def _digest(self, path: Path) -> str | None:
        try:
            return self.digests.digest(path)
        except PallascError:
            return None

    def _shown(self, path: Path | None) -> str:
        base = self.place.base_dir
        return str(path.relative_to(base) if path and path.is_relative_to(base) else path)


class LookupResult(NamedTuple):
    """A hit with its artifact, or a miss with its reason.

    Attributes:
        action_key: key of the artifact.
        artifact: artifact with all blobs verified; None for a miss.
        why: reason of a miss, unless a source has changed.
        changes: the changed sources that caused the miss, from the set with the fewest.
        manifest_key: key of the manifest that led to the artifact.
        manifest: that manifest.
        untrusted: whether the store has only entries without a trusted signature.
    """

    action_key: str | None = None
    artifact: Artifact | None = None
    why: str = ""
    changes: tuple[SourceChange, ...] = ()
    manifest_key: str = ""
    manifest: Manifest = _NO_MANIFEST
    untrusted: bool = False

    @property
    def is_new(self) -> bool:
        """True if the store has no entry of the request."""
        return self.why == _NEVER

    @property
    def reason(self) -> str:
        """The reason of a miss in words, "" for a hit."""
        return self.changes[0].sentences()[0] if self.changes else self.why


class Lookup:
    """Looks up the variants of one build.

    Args:
        context: the toolchain's identity and the digests of files.
        store: the store.
    """

    def __init__(self, context: Context, store: Store) -> None:
        self.context = context
        self.requests = Requests(context)
        self._store = store
        self._first: dict[tuple[str, Place], SourceChange | None] = {}
        self._changes: dict[tuple[str, Place], tuple[SourceChange, ...]] = {}
        self._fitting: dict[Place, str] = {}
        """The sources that fit the last variant found, by its folders."""

    def find(self, request: Request) -> LookupResult:
        """Return the hit of a request, or the miss with the fewest changed sources."""
        misses = []
        for name, manifest in self._candidates(request):
            result = self._follow(name, manifest, request.place)
            if result.artifact is not None:
                self._fitting[request.place] = manifest.read
                return result
            misses.append((result, manifest))
        results = [self._with_all_changes(*miss, request.place) for miss in misses]
        nearest = min(results, key=lambda miss: (miss.untrusted, len(miss.changes)), default=None)
        return nearest or LookupResult(why=_NEVER)

    def _candidates(self, request: Request) -> Iterator[tuple[str, Manifest]]:
        """Yield the manifests of a request, the most promising first, then the newest."""
        read = self._fitting.get(request.place)
        if read is not None:
            name = set_name(request.key, read)
            manifest = self._store.find_manifest(name)
            if manifest is not None and manifest.read == read:
                yield name, manifest
        yield from self._store.sets(request.key)

    def find_variant(self, _: Variant, request: Request) -> LookupResult:
        """Return `find` of a request; a lock, which takes its place, also asks for the variant."""
        return self.find(request)

    def current(self, place: Place) -> CurrentSources:
        """Return the current state of the sources in these folders."""
        return CurrentSources(place, self.context.digests, self.context.unchecked)

    def trusted_records(self, request: Request) -> dict[str, str] | None:
        """Return the records that trusted keys signed: digests by action key; None for all.

        All manifests of the request count, although their sources may have changed since.
        """
        if not self._store.trust.strict:
            return None
        records: dict[str, str] = {}
        for name, manifest in self._store.sets(request.key):
            is_complete = manifest.action and manifest.record
            if is_complete and self._store.trust.vouches(
                KINDS[MANIFESTS], name, manifest.to_json()
            ):
                records.setdefault(manifest.action, manifest.record)
        return records

    def fits(self, name: str, manifest: Manifest, request: Request) -> bool:
        """Return True if a manifest of another store is true here: believed, nothing changed."""
        return (
            name == set_name(request.key, manifest.read)
            and self._store.believes(name, manifest)
            and self.first_change(manifest, request.place) is None
        )

    def _follow(self, key: str, manifest: Manifest, place: Place) -> LookupResult:
        """Return the artifact of a manifest if its sources are unchanged, else the miss."""
        if not self._store.believes(key, manifest):
            return LookupResult(why=NOT_SIGNED, untrusted=True)
        if not manifest.action:
            return LookupResult(why=_NO_ACTION)  # compiling replaces the manifest
        change = self.first_change(manifest, place)
        if change is not None:
            return LookupResult(changes=(change,))
        record = manifest.record if self._store.trust.required else None
        artifact = stored_artifact(self._store, manifest.action, record=record)
        if artifact is not None:
            return LookupResult(manifest.action, artifact, "", (), key, manifest)
        if record is not None and self._store.get_artifact(manifest.action):
            return LookupResult(why=ANOTHER_RECORD, untrusted=True)
        return LookupResult(why=_RECORD_GONE)

    def first_change(self, manifest: Manifest, place: Place) -> SourceChange | None:
        """Return the first source of a manifest that has changed, None if none has."""
        sources = (manifest.read, place)
        if sources not in self._first:
            self._first[sources] = self.current(place).first_change(manifest)
        return self._first[sources]

    def _with_all_changes(
        self, miss: LookupResult, manifest: Manifest, place: Place
    ) -> LookupResult:
        if not miss.changes:
            return miss
        sources = (manifest.read, place)
        if sources not in self._changes:
            self._changes[sources] = tuple(self.current(place).changes(manifest))
        return miss._replace(changes=self._changes[sources])


def attempt(
    find: Callable[[Variant, Request], LookupResult], variant: Variant, request: Request
) -> LookupResult | PallascError:
    """Return what is found, or why a miss is an error in this build."""
    try:
        return find(variant, request)
    except PallascError as error:
        return error


def untrusted_entry(variant: Variant, reason: str, frozen_by: str) -> CorruptError:
    """Return the error of a variant that must not be compiled and has only an untrusted entry.

    Args:
        variant: the variant.
        reason: why its entry is not trusted.
        frozen_by: the option or setting that forbids compiling.
    """
    return CorruptError(
        f"{variant.id}: {reason}.",
        location=variant.location,
        hint=f"Build it without {frozen_by}, or trust the key that signed the store.",
        reason=reason,
    )


def stored_artifact(store: Store, action_key: str, *, record: str | None) -> Artifact | None:
    """Return the artifact under an action key, all its blobs verified, or None.

    Only its resources stay in memory: record and blobs are read and verified again on demand, so a
    build of ten thousand variants stays small. A record that is not an artifact's is quarantined.

    Args:
        store: the store.
        action_key: key of the artifact.
        record: required digest of the record; None accepts any, which must not be used for stores
            that require signatures.
    """
    stored = store.get_artifact(action_key, verify=True)
    if stored is None or record not in (None, stored.digest):
        return None
    try:
        artifact = Artifact(stored.artifact, blob_reader(store.get_blob))
        digest = stored.artifact_digest
        reread = partial(_reread_record, store, action_key, stored.digest)
        return artifact.deferred(reread, digest=digest)
    except PallascError as error:
        store.put_away(ARTIFACTS, action_key, error.message, None)
        return None


def artifact_of_action(store: Store, action_key: str) -> Artifact | None:
    """Return the artifact under an action key without a request, as `stored_artifact` does.

    If signatures are required, a trusted manifest must name its record; all manifests of the store
    are read to find it.
    """
    if not store.trust.required:
        return stored_artifact(store, action_key, record=None)
    manifests = (store.get_manifest(key) for key in store.names(MANIFESTS))
    records = {m.record for m in manifests if m is not None and m.action == action_key}
    artifacts = (stored_artifact(store, action_key, record=record) for record in sorted(records))
    return next(filter(None, artifacts), None)


def _reread_record(store: Store, action_key: str, digest: str) -> Mapping[str, Any]:
    stored = store.get_artifact(action_key)
    if stored is None or stored.digest != digest:
        raise CorruptError(f"the store no longer has the record of action key {action_key}")
    return stored.artifact


def blob_reader(read: Callable[[str], bytes | None]) -> Callable[[str], bytes]:
    """Return a reader that gives b"" for a blob the store has lost: it never matches the digest."""
    return lambda key: read(key) or b""
