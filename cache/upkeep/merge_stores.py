"""Take everything valid of another store into this one; the other one is only read.

What is taken arrives in packs, each whole or not at all, so that whatever ends this process leaves
both stores as sound as they were. Signatures travel with the manifests: nothing is signed by this.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pallasc.cache import format
from pallasc.cache.add_pack import add_pack
from pallasc.cache.entries import entries_of_action
from pallasc.cache.format import ARTIFACTS, KINDS, MANIFESTS
from pallasc.cache.packs.format import MAX_FILE_BYTES, Entry
from pallasc.cache.packs.writer import PackWriter
from pallasc.cache.store import Store
from pallasc.cache.upkeep.merge_packs import merge_packs
from pallasc.errors import ArgumentError, CorruptError, NotCachedError, ToolError

PACK_BYTES = 32 * 2**20
"""A pack is published when it has become so large."""


@dataclass(slots=True)
class MergedStore:
    """What became of one store that was merged into another.

    Attributes:
        folder: of the store that was read.
        records, manifests: how many of each were taken.
        existed: artifacts that were there already.
        unsigned: manifests that were left because signatures are required and no trusted key signed
            them.
        kept: request keys of manifests that were left because the store has another one that leads
            to an artifact.
        conflicts: action keys under which the two stores have different records: a compilation
            that is not deterministic. The store keeps its own.
        refused: what is damaged, incomplete or too large, and was left.
    """

    folder: str
    records: int = 0
    manifests: int = 0
    existed: int = 0
    unsigned: int = 0
    kept: int = 0
    conflicts: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Tell whether there were neither faults nor conflicts."""
        return not self.conflicts and not self.refused

    def to_json(self) -> dict[str, object]:
        """Return it as JSON."""
        return {**asdict(self), "ok": self.ok}


def merge_stores(store: Store, folders: Sequence[Path]) -> Iterator[MergedStore]:
    """Take what is valid in other stores into a store, one after the other.

    Args:
        store: takes it.
        folders: of the others; each is only read.

    Yields:
        What became of each.

    Raises:
        ArgumentError: one is the store itself.
        NotCachedError: one is not there.
        CorruptError: something else is in the place of a folder of one.
        ToolError: one cannot be listed, or the store cannot be written.
    """
    for folder in folders:
        if not (folder / format.FOLDER).is_dir():
            raise NotCachedError(
                f"{folder}: there is no store, as there is no folder {format.FOLDER} in it.",
                hint="Name the folder that --store or PALLASC_CACHE_DIR named when it was filled.",
            )
        if store.folder.exists() and (folder / format.FOLDER).samefile(store.folder):
            raise ArgumentError(f"{folder} is the store itself.", hint="Name another store.")
    for folder in folders:
        yield _Merge(store, folder).run()
    merge_packs(store)


class _Merge:
    """One store merged into another."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store = store
        self._source = Store(folder, read_only=True)
        self._result = MergedStore(str(folder))
        self._offered: set[str] = set()
        """Action keys that were looked at."""
        self._out = io.BytesIO()
        self._writer = PackWriter(self._out)

    def run(self) -> MergedStore:
        """Merge; manifests with what they lead to come first, then records that none leads to."""
        self._source.folders.check(readable=True)
        for request in self._requests():
            self._take_manifest(request)
        if not self._store.trust.required:  # which no manifest could vouch for
            for key in self._source.names(ARTIFACTS):
                self._take_record(key, [])
        self._publish()
        self._result.refused += self._source.warnings
        return self._result

    def _requests(self) -> list[str]:
        """Return the request keys, those of one kernel's variants side by side."""
        found = []
        for request in self._source.names(MANIFESTS):
            manifest = self._source.find_manifest(request)
            if manifest is not None:
                found.append((manifest.name, manifest.variant, request))
        return [request for _, _, request in sorted(found)]

    def _take_manifest(self, request: str) -> None:
        manifest = self._source.find_manifest(request)
        data = self._source.get_file(MANIFESTS, request)
        if manifest is None or data is None:
            return
        trust = self._store.trust
        if not trust.believes(KINDS[MANIFESTS], request, manifest.body):
            self._result.unsigned += 1
            return
        if self._store.get_file(MANIFESTS, request) == data:
            group = []
        elif self._is_kept(request):
            self._result.kept += 1
            return
        else:
            group = [Entry(MANIFESTS, request, data)]
        if manifest.action:
            record = manifest.record if trust.required else ""
            self._take_record(manifest.action, group, record=record)
        elif group:
            self._add(group)

    def _is_kept(self, request: str) -> bool:
        """Tell whether the store has a manifest of its own that leads to an artifact."""
        own = self._store.find_manifest(request)
        return own is not None and (
            not own.action or self._store.get_artifact(own.action, verify=True) is not None
        )

    def _take_record(self, key: str, manifests: list[Entry], *, record: str = "") -> None:
        """Take an artifact, and manifests that lead to it.

        Args:
            key: its action key.
            manifests: those that the store lacks.
            record: the digest that its record must have, where that was signed.
        """
        first, digest = key not in self._offered, self._digest(key)
        self._offered.add(key)
        if digest is None or (record and digest != record):
            if first and record:
                self._result.refused.append(f"artifact {key}: it is not the one that was signed")
            return
        own = self._store.get_artifact(key, verify=True)
        if own is not None and own.digest != digest:
            self._result.conflicts += [key] if first else []
        elif own is not None:
            self._result.existed += first
            self._add(manifests)
        elif self._writer.has(ARTIFACTS, key):
            self._add(manifests)
        else:
            entries = entries_of_action(self._source, key)
            self._add([*manifests, *entries] if entries is not None else [])

    def _digest(self, key: str) -> str | None:
        """Return the digest of the other store's record, if it is whole."""
        stored = self._source.get_artifact(key, verify=True)
        return None if stored is None else stored.digest

    def _add(self, group: list[Entry]) -> None:
        large = next((entry for entry in group if len(entry.data) > MAX_FILE_BYTES), None)
        if large is not None:
            self._result.refused.append(f"{large.area} {large.name}: it is too large for a pack")
        elif group:
            self._writer.add(group)
            if self._writer.bytes_so_far >= PACK_BYTES:
                self._publish()

    def _publish(self) -> None:
        """Publish what was gathered.

        Raises:
            ToolError: the store cannot be written.
        """
        summary = self._writer.close()
        if summary.names:
            self._publish_pack(self._out.getvalue())
        self._out = io.BytesIO()
        self._writer = PackWriter(self._out)

    def _publish_pack(self, data: bytes) -> None:
        try:
            added = add_pack(self._store, data)
        except CorruptError as error:  # memory or disk changed what was written just now
            raise ToolError(f"{self._store.root}: cannot be written: {error.message}") from error
        if not added.stored:
            raise ToolError(
                f"the store {self._store.root} cannot be written: {added.reason}",
                hint="Name another store with --store or PALLASC_CACHE_DIR.",
            )
        self._result.records += added.records
        self._result.manifests += added.manifests
        self._result.conflicts += added.conflicts
        self._result.refused += [f"{area} {name}: {reason}" for area, name, reason in added.refused]
