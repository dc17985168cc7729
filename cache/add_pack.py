"""Take a pack into a store: every file in it is verified first, and it arrives whole or not."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from pallasc.cache import files, format
from pallasc.cache.format import ARTIFACTS, BLOBS, KINDS, MANIFESTS, StoredRecord
from pallasc.cache.packs.format import MAX_PACK_BYTES, Entry, packed_name
from pallasc.cache.packs.reader import Pack, open_pack
from pallasc.cache.packs.writer import PackWriter
from pallasc.cache.store import Store
from pallasc.errors import CorruptError


class Refusal(NamedTuple):
    """A file that was not taken, and why."""

    area: str
    name: str
    reason: str


class AddedPack(NamedTuple):
    """What became of a pack.

    Attributes:
        stored: the store holds all of it that was not refused.
        digest: of the pack in the store; "" where it held nothing new.
        records, manifests: how many of each were taken; those that the store had are not counted.
        refused: what was not taken.
        conflicts: action keys under which the store holds another record, and keeps it.
        reason: why it is not stored.
    """

    stored: bool
    digest: str = ""
    records: int = 0
    manifests: int = 0
    refused: tuple[Refusal, ...] = ()
    conflicts: tuple[str, ...] = ()
    reason: str = ""


def add_pack(store: Store, source: bytes | Path, *, replace_manifests: bool = True) -> AddedPack:
    """Verify every file of a pack, then publish it.

    A record stays out where the pack lacks a blob of it or the store has another record under its
    key. No manifest is signed by this: it is believed or not as it came.

    Args:
        store: the store.
        source: the pack's bytes, or its file.
        replace_manifests: a manifest takes the place of one that the store has, as `put_manifest`
            does; otherwise that one stays.

    Raises:
        CorruptError: it is not a pack, or its index is damaged; nothing was stored.
        OSError: the file cannot be read.
    """
    if isinstance(source, Path):
        if source.stat().st_size > MAX_PACK_BYTES:
            raise CorruptError(f"{source} is larger than a pack may be")
        source = source.read_bytes()
    pack = open_pack(source)
    arrival = _Arrival(store, pack, replace_manifests)
    if not arrival.records and not arrival.manifests:
        return arrival.result(stored=True)
    data = arrival.cleaned() if arrival.without or arrival.damaged else source
    try:
        digest = publish_pack(store, data, arrival.newer)
    except OSError as error:
        return arrival.result(stored=False, reason=store.not_written(error))
    return arrival.result(stored=True, digest=digest)


def publish_pack(store: Store, data: bytes, newer: Iterable[Entry] = ()) -> str:
    """Publish a pack in which every file was verified; return its digest.

    Args:
        store: the store.
        data: the pack.
        newer: manifests in whose place the store has other ones.

    Raises:
        OSError: it cannot be written.
    """
    digest = format.sha256(data)
    try:
        for area in (MANIFESTS, ARTIFACTS, BLOBS):  # looking into a folder is faster with one there
            with store.folders.opened(area, make=True):
                pass
        with files.temporary(store.folders, data) as place:
            to = f"{format.PACKS}/{digest}"
            # One of this name that is there already has lost files, or this would not be needed.
            with contextlib.suppress(FileNotFoundError):
                store.folders.unlink(f"{to}{format.GONE}")
            files.publish_last(store.folders, place, to)
        store.folders.sync(format.PACKS)
        for entry in newer:
            store.publish_manifest(entry.name, entry.data)
    finally:
        store.relist_packs()
    return digest


class _Arrival:
    """What is in a pack, verified and compared with a store."""

    def __init__(self, store: Store, pack: Pack, replace_manifests: bool) -> None:
        self._store, self._pack = store, pack
        self._replace = replace_manifests
        self.refused: list[Refusal] = []
        self.conflicts: list[str] = []
        self.damaged: set[int] = set()
        """Frames."""
        self.without: set[bytes] = set()
        """Packed names of what is not taken."""
        self.records: list[str] = []
        self.manifests: list[str] = []
        self.newer: list[Entry] = []
        """Manifests in whose place the store has another one."""
        self._sizes: dict[str, int] = {}
        self._blobs: dict[str, Mapping[str, int]] = {}
        self._digests: dict[str, str] = {}
        for number in range(len(pack.frames)):
            self._verify_frame(number)
        for key in sorted(self._blobs):
            self._compare_record(key)

    def result(self, *, stored: bool, digest: str = "", reason: str = "") -> AddedPack:
        """Return what became of the pack."""
        counts = (len(self.records), len(self.manifests)) if stored else (0, 0)
        return AddedPack(
            stored, digest, *counts, tuple(self.refused), tuple(self.conflicts), reason
        )

    def cleaned(self) -> bytes:
        """Return the pack without what is not taken."""
        out = io.BytesIO()
        writer = PackWriter(out)
        for number in range(len(self._pack.frames)):
            if number not in self.damaged:
                writer.copy_from(self._pack, number, without=self.without)
        writer.close()
        return out.getvalue()

    def _verify_frame(self, number: int) -> None:
        try:
            entries = self._pack.entries(number)
        except CorruptError as error:
            self.damaged.add(number)
            for area, name in self._pack.names_in(number):
                self._refuse(area, name, error.message)
            return
        for entry in entries:
            try:
                self._verify(entry)
            except CorruptError as error:
                self._refuse(entry.area, entry.name, error.message)

    def _verify(self, entry: Entry) -> None:
        if entry.area == BLOBS:
            actual = format.sha256(entry.data)
            if actual != entry.name:
                raise CorruptError(f"its SHA-256 is {actual}")
            self._sizes[entry.name] = len(entry.data)
        elif entry.area == ARTIFACTS:
            record, digest = format.decode_artifact(entry.name, entry.data)
            self._blobs[entry.name] = _sizes_of(record)
            self._digests[entry.name] = digest
        else:
            format.decode(KINDS[MANIFESTS], entry.name, entry.data)
            self._compare_manifest(entry)

    def _compare_manifest(self, entry: Entry) -> None:
        held = self._store.get_file(MANIFESTS, entry.name)
        if held is None:
            self.manifests.append(entry.name)
        elif held != entry.data and self._replace:
            self.manifests.append(entry.name)
            self.newer.append(entry)
        elif held != entry.data:
            self.without.add(packed_name(MANIFESTS, entry.name))

    def _compare_record(self, key: str) -> None:
        sizes = self._blobs[key]
        lost = next((name for name in sizes if self._sizes.get(name) != sizes[name]), "")
        if lost:
            self._refuse(ARTIFACTS, key, f"the pack lacks its blob {lost}")
            return
        held = self._store.get_artifact(key, verify=True)
        if held is None:
            self.records.append(key)
        elif held.digest != self._digests[key]:
            self.conflicts.append(key)
            self.without.add(packed_name(ARTIFACTS, key))

    def _refuse(self, area: str, name: str, reason: str) -> None:
        self.refused.append(Refusal(area, name, reason))
        self.without.add(packed_name(area, name))


def _sizes_of(record: StoredRecord) -> dict[str, int]:
    return {blob["digest"]: blob["size"] for blob in record["blobs"].values()}
