"""Look variants up in the store: one request, one manifest, one record each, nothing imported.

Whether the sources that a manifest names are still what they were is looked at once a build for
all variants that read the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pallasc.cache.format import ARTIFACTS, KINDS, MANIFESTS
from pallasc.cache.manifests import Manifest
from pallasc.cache.signing import ANOTHER_RECORD, NOT_SIGNED
from pallasc.cache.store import Store
from pallasc.compiler.inputs.changes import CurrentSources, SourceChange
from pallasc.compiler.inputs.request import Request, Requests
from pallasc.compiler.toolchain.context import Context
from pallasc.compiler.toolchain.modules import Place
from pallasc.errors import CorruptError, PallascError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.spec import Variant

_RECORD_GONE = "the store no longer has its record"
_NO_ACTION = "its manifest in the store was damaged"
_NEVER = "never compiled with this spec and toolchain"


@dataclass(frozen=True, slots=True)
class LookupResult:
    """The answer to a request: an artifact and its action key, or why there is none.

    Attributes:
        action_key: the key that the artifact lies under.
        artifact: the artifact, all its blobs verified.
        why: why there is none.
        change: the source that is no longer what it was, if that is why.
        manifest_key: the key of the manifest that led to it.
        manifest: that manifest.
        untrusted: the store has an entry, and nobody who is trusted signed it.
    """

    action_key: str | None = None
    artifact: Artifact | None = None
    why: str = ""
    change: SourceChange | None = None
    manifest_key: str = ""
    manifest: Manifest = field(default_factory=Manifest)
    untrusted: bool = False

    @property
    def reason(self) -> str:
        """Say why there is no artifact, "" where there is one."""
        return self.change.sentences()[0] if self.change else self.why


class Lookup:
    """Looks up the variants of one build.

    Args:
        context: the toolchain's identity and the digests of files.
        store: where to look.
    """

    def __init__(self, context: Context, store: Store) -> None:
        self.context = context
        self.requests = Requests(context)
        self._store = store
        self._changes: dict[tuple[str, Place], SourceChange | None] = {}

    def find(self, request: Request) -> LookupResult:
        """Look a request up without compiling or importing anything."""
        missed: LookupResult | None = None
        for key in request.keys:
            manifest = self._store.find_manifest(key)
            if manifest is None:
                continue
            found = self._follow(key, manifest, request.place)
            if found.artifact is not None:
                return found
            missed = missed or found
            missed = replace(missed, untrusted=missed.untrusted or found.untrusted)
        return missed or LookupResult(why=_NEVER)

    def current(self, place: Place) -> CurrentSources:
        """Return the sources of a place as they are now."""
        return CurrentSources(place, self.context.digests, self.context.unchecked)

    def trusted_records(self, request: Request) -> dict[str, str] | None:
        """Return digests of records by action key that trusted keys vouch for; None for all.

        They are those of the manifests of a request, whose sources may have changed since.
        """
        if not self._store.trust.strict:
            return None
        found: dict[str, str] = {}
        for key in request.keys:
            manifest = self._store.find_manifest(key) or Manifest()
            known = manifest.action and manifest.record
            if known and self._store.trust.vouches(KINDS[MANIFESTS], key, manifest.body):
                found[manifest.action] = manifest.record
        return found

    def _follow(self, key: str, manifest: Manifest, place: Place) -> LookupResult:
        """Return what a manifest leads to, if its sources are what they were."""
        if not self._store.believes(key, manifest):
            return LookupResult(why=NOT_SIGNED, untrusted=True)
        if not manifest.action:
            return LookupResult(why=_NO_ACTION)  # compiling it writes another in its place
        change = self._first_change(manifest, place)
        if change is not None:
            return LookupResult(change=change)
        record = manifest.record if self._store.trust.required else None
        artifact = stored_artifact(self._store, manifest.action, record=record)
        if artifact is not None:
            return LookupResult(manifest.action, artifact, "", None, key, manifest)
        if record is not None and self._store.get_artifact(manifest.action):
            return LookupResult(why=ANOTHER_RECORD, untrusted=True)
        return LookupResult(why=_RECORD_GONE)

    def _first_change(self, manifest: Manifest, place: Place) -> SourceChange | None:
        read = (manifest.read, place)
        if read not in self._changes:
            self._changes[read] = self.current(place).first_change(manifest)
        return self._changes[read]


def untrusted_entry(variant: Variant, reason: str) -> CorruptError:
    """Return the error of a variant that may not be compiled, and whose entry nobody signed."""
    return CorruptError(
        f"{variant.id}: {reason}.",
        location=variant.location,
        hint="Build it without --frozen, or trust the key that signed the store.",
    )


def stored_artifact(store: Store, action_key: str, *, record: str | None) -> Artifact | None:
    """Return the artifact under an action key, all its blobs verified, or None.

    What it takes is in memory; record and blobs are read again, and verified again, where somebody
    asks for them, so that a build of ten thousand variants stays small. A record that is no
    artifact's is put away.

    Args:
        store: where to look.
        action_key: what for.
        record: the digest that the record must have; None for any, which is not for stores where
            signatures are required.
    """
    stored = store.get_artifact(action_key, verify=True)
    if stored is None or record not in (None, stored.digest):
        return None
    try:
        artifact = Artifact(stored.artifact, blob_reader(store.get_blob))
        digest = stored.artifact_digest
        again = partial(_record_again, store, action_key, stored.digest)
        return artifact.deferred(again, digest=digest)
    except PallascError as error:
        store.put_away(ARTIFACTS, action_key, error.message, None)
        return None


def artifact_of_action(store: Store, action_key: str) -> Artifact | None:
    """Return the artifact under an action key that no request led to, as `stored_artifact` does.

    Where signatures are required, a manifest that is believed must name its record; this reads all
    manifests of the store.
    """
    if not store.trust.required:
        return stored_artifact(store, action_key, record=None)
    from pallasc.cache.scan import Scan

    manifests = (store.get_manifest(key) for key, _ in Scan(store.folders).area(MANIFESTS))
    records = {m.record for m in manifests if m is not None and m.action == action_key}
    found = (stored_artifact(store, action_key, record=record) for record in sorted(records))
    return next(filter(None, found), None)


def _record_again(store: Store, action_key: str, digest: str) -> Mapping[str, Any]:
    stored = store.get_artifact(action_key)
    if stored is None or stored.digest != digest:
        raise CorruptError(f"the store no longer has the record of action key {action_key}")
    return stored.artifact


def blob_reader(read: Callable[[str], bytes | None]) -> Callable[[str], bytes]:
    """Return a reader of blobs that answers b"" where the store has lost one: no digest fits it."""
    return lambda key: read(key) or b""
