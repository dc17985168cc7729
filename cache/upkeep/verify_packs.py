"""Verify packs: every byte of each, and every file in it as any other file of the store."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple, Protocol

from pallasc.cache import files, format
from pallasc.cache.format import ARTIFACTS, KINDS, MANIFESTS, PACKS, StoredRecord
from pallasc.cache.packed import put_away, read_gone
from pallasc.cache.packs.format import Entry, packed_name
from pallasc.cache.packs.reader import Pack, open_pack
from pallasc.cache.packs.writer import PackWriter
from pallasc.cache.store import Store
from pallasc.errors import CorruptError

CORRUPT = "corrupt"
"""The kind of a finding, see `cache/upkeep/verify.py`."""


class OpenedPack(NamedTuple):
    """A pack of a store, opened to be verified.

    Attributes:
        pack: the pack.
        identity: its file.
        gone: packed names of what counts as missing in it.
    """

    pack: Pack
    identity: files.Identity
    gone: frozenset[bytes]

    @property
    def place(self) -> str:
        """Return where it lies."""
        return f"{PACKS}/{self.pack.digest}"

    def examine(self) -> Iterator[Entry | str]:
        """Yield each file in it that does not count as missing, and each fault, in words.

        Raises:
            OSError: it cannot be read.
        """
        found = 0
        for number in range(len(self.pack.frames)):
            lost = self.pack.names_in(number)
            found += len(lost)
            try:
                entries = self.pack.entries(number)
            except CorruptError as error:
                yield f"{error.message}; it held {len(lost):,} files"
                continue
            yield from (e for e in entries if packed_name(e.area, e.name) not in self.gone)
            if len(entries) != len(lost):
                yield f"frame {number} holds other files than the index says"
        if found != len(self.pack):
            yield "its index names frames that do not exist"
        actual = self.pack.computed_digest()
        if actual != self.pack.digest:
            yield f"its SHA-256 is {actual}"


class Verification(Protocol):
    """What a verification of a store knows of all files, in packs or not."""

    def add_blob(self, digest: str, data: bytes) -> None:
        """Note a blob that is as it should be."""

    def add_record(self, key: str, body: StoredRecord) -> None:
        """Note a record; whether it counts is decided later."""

    def add_sound(self, area: str, name: str, body: Mapping[str, object]) -> None:
        """Count a record or manifest that is as it should be."""

    def fault_of_record(self, body: StoredRecord) -> tuple[str, str] | None:
        """Return the kind of what is wrong with a record beside its bytes, and what it is."""


class ExaminedPack:
    """What a verification finds in one pack.

    Attributes:
        faults: kind and reason of each.
        wrong: packed names of the files that do not fit their names, or lack a blob.
    """

    def __init__(self, verification: Verification, opened: OpenedPack) -> None:
        self._verification, self._opened = verification, opened
        self.faults: list[tuple[str, str]] = []
        self.wrong: frozenset[bytes] = frozenset()
        self._records: dict[str, StoredRecord] = {}

    def run(self) -> None:
        """Examine the pack; its records come last, as blobs may lie after them.

        Raises:
            OSError: it cannot be read.
        """
        for part in self._opened.examine():
            if isinstance(part, str):
                self.faults.append((CORRUPT, part))
                continue
            try:
                self._examine(part)
            except CorruptError as error:
                self._fault(CORRUPT, part.area, part.name, error.message)
        for key, body in self._records.items():
            self._verification.add_record(key, body)
            fault = self._verification.fault_of_record(body)
            if fault is None:
                self._verification.add_sound(ARTIFACTS, key, {})
            else:
                self._fault(fault[0], ARTIFACTS, key, fault[1])

    def _examine(self, entry: Entry) -> None:
        if entry.area == ARTIFACTS:
            self._records[entry.name] = format.decode_artifact(entry.name, entry.data)[0]
        elif entry.area == MANIFESTS:
            body, _ = format.decode(KINDS[MANIFESTS], entry.name, entry.data)
            self._verification.add_sound(MANIFESTS, entry.name, body)
        elif (actual := format.sha256(entry.data)) != entry.name:
            raise CorruptError(f"its SHA-256 is {actual}")
        else:
            self._verification.add_blob(entry.name, entry.data)

    def _fault(self, kind: str, area: str, name: str, reason: str) -> None:
        self.faults.append((kind, f"{area} {name}: {reason}"))
        self.wrong |= {packed_name(area, name)}


def open_for_verification(store: Store, digest: str) -> OpenedPack:
    """Open a pack of a store.

    Raises:
        CorruptError: it is not a pack, or its index is damaged.
        OSError: it cannot be read.
    """
    descriptor = store.folders.open_file(f"{PACKS}/{digest}")
    try:
        identity = files.identity(os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    gone = frozenset(read_gone(store.folders, digest))
    return OpenedPack(open_pack(descriptor, digest=digest), identity, gone)


def replace(store: Store, opened: OpenedPack, without: Collection[bytes]) -> bool:
    """Put a damaged pack away, and a pack of all that is right in it in its place.

    Args:
        store: the store.
        opened: the damaged pack.
        without: packed names of what is wrong or counts as missing.

    Returns:
        Whether what is right was kept; without that, nothing was changed.
    """
    out = io.BytesIO()
    writer = PackWriter(out)
    for number in range(len(opened.pack.frames)):
        with contextlib.suppress(CorruptError):
            writer.copy_from(opened.pack, number, without=without)
    summary = writer.close()
    if summary.digest == opened.pack.digest:
        return True
    try:
        if summary.names:
            with files.temporary(store.folders, out.getvalue()) as place:
                store.folders.touch(place, time_ns=opened.identity[1])
                files.publish_first(store.folders, place, f"{PACKS}/{summary.digest}")
    except OSError:
        return False
    put_away(store.folders, opened.pack.digest, "a part of it is damaged", opened.identity)
    store.relist_packs()
    return True


def put_pack_away(store: Store, digest: str, reason: str) -> bool:
    """Put a pack away that cannot be opened; tell whether it is gone."""
    put_away(store.folders, digest, reason, None)
    store.relist_packs()
    return not os.path.lexists(store.folders.path(f"{PACKS}/{digest}"))
