"""Look variants up in the store: one request key, one manifest, one record each, nothing imported.

What many variants share is looked at once a build: the toolchain's key, a target's figures, the
folders of an entry point, data files, and whether the sources that a manifest names are still what
they were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pallasc.cache.about import seconds_of
from pallasc.cache.format import ARTIFACTS, KINDS, MANIFESTS
from pallasc.cache.signing import ANOTHER_RECORD, NOT_SIGNED
from pallasc.cache.store import Store
from pallasc.cache.stored import StoredArtifact
from pallasc.compiler.inputs.manifest import (
    changed_source,
    data_digests,
    folder_key,
    import_folders,
    key_of,
    names_of_entries,
    own_fields,
    toolchain_key,
)
from pallasc.compiler.toolchain.context import Context
from pallasc.errors import CorruptError, PallascError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.spec import Variant

_RECORD_GONE = "the store no longer has its record"
_NO_ACTION = "its manifest in the store was damaged"
_NEVER = "never compiled with this spec and toolchain"


@dataclass(frozen=True, slots=True)
class Keys:
    """The request key of a variant, and that of the same request from its own folder."""

    request: str
    folder: str


@dataclass(frozen=True, slots=True)
class Found:
    """The answer to a request: an artifact and its action key, or the reason why there is none.

    `cost_s` is what compiling it once took, `printed` what it printed (`kernel_output.unpack`),
    `diagnostics` what was said then (`diagnostics.from_json`), `manifest_key` the key of the
    manifest that led to it, and `missed` what it asked for and did not get to see (`withheld`).
    `doubted`: the store has an entry, and nobody who is trusted signed it.
    """

    action_key: str | None
    artifact: Artifact | None
    reason: str = ""
    cost_s: float = 0.0
    printed: str = ""
    manifest_key: str = ""
    diagnostics: Any = ()
    missed: Mapping[str, str] = field(default_factory=dict)
    doubted: bool = False


class Lookup:
    """Looks up the variants of one build.

    Args:
        context: the toolchain's identity and the digests of files.
        store: where to look.
    """

    def __init__(self, context: Context, store: Store) -> None:
        self.context = context
        self._store = store
        self._toolchain = toolchain_key(context)
        self._data: dict[tuple[str, tuple[str, ...]], Mapping[str, str]] = {}
        self._folders: dict[tuple[str, tuple[str, ...]], tuple[str, ...]] = {}
        self._changed: dict[tuple[str, str, tuple[str, ...]], str | None] = {}

    def keys(self, variant: Variant) -> Keys:
        """Return the keys that a variant's manifest may lie under.

        Raises:
            ToolError: a declared data file cannot be read.
        """
        place = (variant.base_dir, variant.files)
        if place not in self._data:
            self._data[place] = data_digests(variant, self.context.digests)
        request = key_of(own_fields(variant, self._data[place]), self._toolchain)
        return Keys(request, folder_key(request, variant.base_dir))

    def folders(self, variant: Variant) -> tuple[str, ...]:
        """Return the folders that a compilation of the variant can import from."""
        place = (variant.base_dir, tuple(names_of_entries(variant)))
        if place not in self._folders:
            self._folders[place] = import_folders(variant)
        return self._folders[place]

    def find(self, variant: Variant, keys: Keys | None = None) -> Found:
        """Look a variant up without compiling or importing anything.

        Args:
            variant: what is wanted.
            keys: what `keys` gave for it, if that was called already.

        Raises:
            ToolError: a declared data file cannot be read.
        """
        names = keys or self.keys(variant)
        reason, doubted = "", False
        for name in (names.folder, names.request):
            manifest = self._store.find_manifest(name)
            if manifest is None:
                continue
            found = self._follow(name, manifest, variant)
            if found.artifact is not None:
                return replace(found, manifest_key=name)
            reason, doubted = reason or found.reason, doubted or found.doubted
        return Found(None, None, reason or _NEVER, doubted=doubted)

    def believed(self, keys: Keys) -> dict[str, str] | None:
        """Return digests of records by action key that trusted keys vouch for; None for all.

        They are those of the manifests of a request, whose sources may have changed since.
        """
        if not self._store.trust.strict:
            return None
        found: dict[str, str] = {}
        for name in (keys.folder, keys.request):
            manifest = self._store.find_manifest(name) or {}
            known = {"action", "record"} <= manifest.keys()
            if known and self._store.trust.vouches(KINDS[MANIFESTS], name, manifest):
                found[manifest["action"]] = manifest["record"]
        return found

    def _follow(self, name: str, manifest: Mapping[str, Any], variant: Variant) -> Found:
        if not self._store.believes(name, manifest):
            return Found(None, None, NOT_SIGNED, doubted=True)
        action = manifest.get("action")
        if not action:
            self._store.put_away(MANIFESTS, name, f"manifest {name}: it has no action key", None)
            return Found(None, None, _NO_ACTION)
        changed = self._changed_source(manifest, variant)
        if changed:
            return Found(None, None, changed)
        record = manifest.get("record", "") if self._store.trust.required else None
        artifact = stored_artifact(self._store, action, record=record)
        if artifact is None and record is not None and self._store.get_artifact(action):
            return Found(action, None, ANOTHER_RECORD, doubted=True)
        told = manifest.get("about")
        cost_s = seconds_of(told.get("seconds")) if isinstance(told, Mapping) else 0.0
        reason = "" if artifact else _RECORD_GONE
        return Found(
            action,
            artifact,
            reason,
            cost_s,
            printed=manifest.get("printed", ""),
            diagnostics=manifest.get("diagnostics", ()),
            missed=manifest.get("missed", {}),
        )

    def _changed_source(self, manifest: Mapping[str, Any], variant: Variant) -> str | None:
        folders = self.folders(variant)
        place = (str(manifest.get("read")), variant.base_dir, folders)
        if place not in self._changed:
            self._changed[place] = changed_source(
                manifest, variant.base_dir, self.context.digests, folders, self.context.unchecked
            )
        return self._changed[place]


def not_believed(variant: Variant, reason: str) -> CorruptError:
    """Return the error of a variant that may not be compiled, and whose entry nobody signed."""
    return CorruptError(
        f"{variant.id}: {reason}.",
        location=variant.location,
        hint="Build it without --frozen, or trust the key that signed the store.",
    )


def find(variant: Variant, context: Context, store: Store) -> Found:
    """Look one variant up; for several, make a `Lookup`."""
    return Lookup(context, store).find(variant)


def stored_artifact(store: Store, action_key: str, *, record: str | None = None) -> Artifact | None:
    """Return the artifact under an action key, all its blobs verified, or None.

    What it takes is in memory; record and blobs are read again, and verified again, where somebody
    asks for them, so that a build of ten thousand variants stays small. A record that is no
    artifact's is put away.

    Args:
        store: where to look.
        action_key: what for.
        record: the digest that the record must have; None for any, or, where signatures are
            required, for what a signed manifest of the store names.
    """
    stored = store.get_artifact(action_key, verify=True)
    if stored is None or record not in (None, stored.digest):
        return None
    if record is None and store.trust.required and not _vouched_for(store, stored):
        return None
    try:
        artifact = Artifact(stored.artifact, blob_reader(store.get_blob))
        digest = stored.artifact_digest
        again = partial(_record_again, store, action_key, stored.digest)
        return artifact.deferred(again, digest=digest)
    except PallascError as error:
        store.put_away(ARTIFACTS, action_key, error.message, None)
        return None


def _vouched_for(store: Store, stored: StoredArtifact) -> bool:
    """Tell whether any manifest that may be believed leads to a record; it reads them all."""
    from pallasc.cache.scan import Scan

    for key in [key for key, _ in Scan(store.folders).area(MANIFESTS)]:
        manifest = store.find_manifest(key) or {}
        named = (manifest.get("action"), manifest.get("record"))
        if named == (stored.key, stored.digest) and store.believes(key, manifest):
            return True
    return False


def _record_again(store: Store, action_key: str, digest: str) -> Mapping[str, Any]:
    stored = store.get_artifact(action_key)
    if stored is None or stored.digest != digest:
        raise CorruptError(f"the store no longer has the record of action key {action_key}")
    return stored.artifact


def blob_reader(read: Callable[[str], bytes | None]) -> Callable[[str], bytes]:
    """Return a reader of blobs that answers b"" where the store has lost one: no digest fits it."""
    return lambda key: read(key) or b""
