"""The catalog and the packs of a remote store: their format, reading, and writing.

    below the address:
    pallasc/v4/<namespace>/catalog          the only object that changes
    pallasc/v4/<namespace>/packs/<digest>   a pack, see `cache/packs.py`

    namespace = digest over the versions of the toolchain's parts and the salt: keeps catalogs small
    digest    = 64 lower-case hexadecimal digits, SHA-256 of all bytes of the object
    catalog   = "pallasc-remote 4" LF sum:32 { row }     newest pack first; sum: SHA-256 of the rows
    row       = pack:32 bytes:u32 used:u32 names:u32 { name:32 }
    used      = when a writer last wrote or read the pack, in seconds since 1970
    name      = name of a manifest, as in `cache/format.py`

All numbers are little-endian. A pack is complete: it contains the record and the blobs that its
manifests lead to. Packs are written before the catalog that names them, so a reader finds only
complete ones, and a pack that no catalog lists is garbage. Packs are read whole. Readers skip a
pack or frame that exceeds the limits below.

Only accepted manifests, the record that each names by digest, and blobs, which are named by their
digest, become part of a local store. Decompression runs in the calling thread, so its time
counts as waiting for the remote.

History:
    1  catalog, index, and cost objects in JSON.
    2  one binary catalog.
    3  rows without the place of the pack's last part, because packs are read whole.
    4  packs of version 2; a reader of this version ignores earlier ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import random
import struct
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import NamedTuple

from pallasc.cache import files, format, packs
from pallasc.cache.folders import Folders
from pallasc.cache.manifests import MAX_SETS, Manifest, Trust, set_prefix
from pallasc.cache.pack_writer import PackWriter
from pallasc.cache.packs import Entry, Pack, open_pack, packed_name, unpacked_name
from pallasc.cache.remote.session import (
    OF_ONE_OBJECT,
    Failure,
    Objects,
    RemoteError,
    Session,
    Version,
)
from pallasc.cache.store import Store
from pallasc.cache.transfer import entries_of_manifest, publish_pack, unwritable
from pallasc.errors import CorruptError
from pallasc.specs.canonical import labelled_key

ROOT = "pallasc/v4"
MAX_CATALOG_BYTES = 4 * 2**20
"""About 125,000 variants; the oldest packs are dropped from a catalog that would be larger."""
MAX_ROWS = 10_000
MAX_PACK_BYTES = 12 * 2**20
MAX_INDEX_BYTES = 2 * 2**20
"""Maximum size of a pack's index: about 45,000 files."""
MAX_FRAME_BYTES = 8 * 2**20
"""Maximum size of a frame's content."""
MAX_VARIANT_BYTES = 7 * 2**20
"""A larger variant is not sent; kernels are far smaller."""
PACK_BYTES = 4 * 2**20
"""A pack is sent as soon as its variants have this size together, uncompressed."""
_UNDER_WAY, _UNDER_WAY_BYTES = 4, 8 * 2**20
"""Maximum number of simultaneous requests, and of bytes of packs that are being read."""
_LOCAL_PACK_BYTES = 8 * 2**20
_ATTEMPTS = 10
_LOCK_S = 1.0
_MAGIC = b"pallasc-remote 4\n"
_HEAD = len(_MAGIC) + 32
_ROW = struct.Struct("<32sIII")
_NAME, _PREFIX = 32, 16

Accept = Callable[[str, Manifest], bool]


class PackRow(NamedTuple):
    """A pack's row in the catalog; see the module for the fields."""

    pack: str
    size: int
    used: int
    names: bytes

    def each(self) -> Iterator[bytes]:
        """Yield the names of its manifests, 32 bytes each."""
        return (self.names[at : at + _NAME] for at in range(0, len(self.names), _NAME))


class Change(NamedTuple):
    """A writer's change of a catalog; it can be applied again to a newer one.

    Attributes:
        added: new packs.
        used: packs that were read, and when.
        dropped: packs that are missing, damaged, or no longer needed.
    """

    added: tuple[PackRow, ...] = ()
    used: Mapping[str, int] = {}
    dropped: Collection[str] = ()


class Catalog(NamedTuple):
    """The packs of a namespace, newest first."""

    rows: tuple[PackRow, ...] = ()

    def names(self) -> set[bytes]:
        """Return the names of all manifests."""
        return {name for row in self.rows for name in row.each()}

    def find(self, prefixes: Iterable[str]) -> dict[PackRow, list[str]]:
        """Return the names that begin with one of these prefixes, by pack, newest first."""
        left = dict.fromkeys(map(bytes.fromhex, prefixes), MAX_SETS)
        found: dict[PackRow, list[str]] = {}
        seen: set[bytes] = set()
        for row in self.rows:
            for name in row.each():
                if left.get(name[:_PREFIX], 0) and name not in seen:
                    left[name[:_PREFIX]] -= 1
                    seen.add(name)
                    found.setdefault(row, []).append(name.hex())
        return found

    def changed(self, change: Change) -> Catalog:
        """Return this catalog after a change; a name belongs to the newest pack that has it."""
        added = {row.pack for row in change.added}
        rows = [*change.added]
        for row in self.rows:
            if row.pack not in change.dropped and row.pack not in added:
                rows.append(row._replace(used=max(row.used, change.used.get(row.pack, 0))))
        seen: set[bytes] = set()
        kept, size = [], _HEAD
        for row in rows[:MAX_ROWS]:
            if seen:
                names = b"".join(name for name in row.each() if name not in seen)
                row = row._replace(names=names)
            if row.pack in added:  # the names of the other packs are distinct already
                seen.update(row.each())
            size += _ROW.size + len(row.names)
            if row.names and size <= MAX_CATALOG_BYTES:
                kept.append(row)
        return Catalog(tuple(kept))

    def has(self, change: Change) -> bool:
        """Return True if a change is in this catalog; times of use may be missing."""
        here = {row.pack for row in self.rows}
        added = {row.pack for row in change.added}
        return here >= added and here.isdisjoint(change.dropped)

    def encode(self) -> bytes:
        """Return the object's bytes."""
        parts = []
        for row in self.rows:
            count = len(row.names) // _NAME
            parts += [_ROW.pack(bytes.fromhex(row.pack), row.size, row.used, count), row.names]
        rows = b"".join(parts)
        return b"".join([_MAGIC, hashlib.sha256(rows).digest(), rows])


def decode_catalog(data: bytes) -> Catalog:
    """Return a catalog from an object's bytes.

    Raises:
        CorruptError: the bytes are not a complete catalog of this version.
    """
    if not data.startswith(_MAGIC):
        raise CorruptError("not a pallasc catalog (bad magic)")
    if hashlib.sha256(memoryview(data)[_HEAD:]).digest() != data[len(_MAGIC) : _HEAD]:
        raise CorruptError("the catalog is damaged or cut short")
    rows: list[PackRow] = []
    at = _HEAD
    while at < len(data):
        if len(data) - at < _ROW.size or len(rows) == MAX_ROWS:
            raise CorruptError("the catalog has an incomplete row, or too many")
        pack, size, used, count = _ROW.unpack_from(data, at)
        at += _ROW.size
        names = data[at : at + count * _NAME]
        at += count * _NAME
        if size > MAX_PACK_BYTES or not count or at > len(data):
            raise CorruptError(f"the catalog has impossible sizes for pack {pack.hex()}")
        rows.append(PackRow(pack.hex(), size, used, names))
    return Catalog(tuple(rows))


def namespace_of(facts: Mapping[str, str]) -> str:
    """Return the namespace for `facts`: the versions of the toolchain's parts, and the salt."""
    return labelled_key({"kind": "pallasc remote namespace", **facts})


def catalog_name(namespace: str) -> str:
    """Return the name of a namespace's catalog."""
    return f"{ROOT}/{namespace}/catalog"


def pack_name(namespace: str, digest: str) -> str:
    """Return the name of a pack."""
    return f"{ROOT}/{namespace}/packs/{digest}"


def read_catalog(session: Session, namespace: str) -> tuple[Catalog, Version]:
    """Return a catalog and its version; an empty one without version if it does not exist.

    Raises:
        CorruptError: the catalog is damaged.
        RemoteError: the catalog cannot be read.
    """
    try:
        get = session.submit(Objects.get, catalog_name(namespace), limit=MAX_CATALOG_BYTES)
        data, version = session.result(get)
    except RemoteError as error:
        if error.failure is Failure.MISSING:
            return Catalog(), {}
        raise
    with session.waiting():
        return decode_catalog(data), version


def known_catalog(session: Session, namespace: str) -> Catalog:
    """Return a catalog; a damaged one counts as empty, and the next writer replaces it.

    Raises:
        RemoteError: the catalog cannot be read.
    """
    try:
        return read_catalog(session, namespace)[0]
    except CorruptError as error:
        session.failed_with(CorruptError(f"{catalog_name(namespace)}: {error.message}"))
        return Catalog()


def change_catalog(session: Session, namespace: str, change: Change) -> Catalog:
    """Change a catalog that others may change at the same time; return the new one.

    Raises:
        RemoteError: the catalog cannot be written, or other writers keep changing it.
    """
    name, address = catalog_name(namespace), session.address
    lock: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if address.scheme == "file":  # some servers have conditional writes instead
        folders = Folders(Path(address.path, ROOT, namespace))
        most_s = min(_LOCK_S, session.left_s)
        lock = files.single_flight(folders, "lock", timeout_s=most_s, on_error=lambda error: None)
    with contextlib.ExitStack() as held:
        with session.waiting():
            held.enter_context(lock)
        for attempt in range(_ATTEMPTS):
            try:
                catalog, version = read_catalog(session, namespace)
            except CorruptError:
                catalog = Catalog()
                get = session.submit(Objects.get, name, limit=MAX_CATALOG_BYTES)
                version = session.result(get)[1]
            new = catalog.changed(change)
            if new == catalog:
                return catalog
            put = session.submit(Objects.put, name, new.encode(), over=version)
            if session.result(put):
                # Some servers ignore the condition, and some do not support it: check that the
                # change is there.
                with contextlib.suppress(CorruptError):
                    written, _ = read_catalog(session, namespace)
                    if written.has(change):
                        return written
            with session.waiting():
                time.sleep(min(session.left_s, random.uniform(0, 0.02 * 2 ** min(attempt, 5))))
    text = f"{session.stats.url}/{name}: other writers change it all the time"
    raise RemoteError(text, Failure.BROKEN)


class PackedVariant(NamedTuple):
    """A variant in a pack: its manifest, and the frames of its record and blobs by packed name.

    The blobs are not verified.
    """

    manifest: Manifest
    entry: Entry
    frames: dict[bytes, int]

    @classmethod
    def read(cls, pack: Pack, name: str) -> PackedVariant:
        """Read the manifest and record of a variant, given the name of its manifest.

        Raises:
            CorruptError: a part is missing in the pack, or is not the one that the manifest names.
        """
        data = pack.read(format.MANIFESTS, name)
        if data is None:
            raise CorruptError(f"manifest {name}: the pack lacks it")
        manifest: Manifest = format.check_file(format.MANIFESTS, name, data)[0]
        action = manifest.action
        if manifest.specs or manifest.check or manifest.toolchains or not manifest.record:
            # These are internal entries of a store, which are never sent.
            raise CorruptError(f"manifest {name}: it is not the manifest of a variant")
        stored = pack.read(format.ARTIFACTS, action)
        body, digest = format.check_file(format.ARTIFACTS, action, stored or b"")
        if digest != manifest.record:
            raise CorruptError(f"manifest {name}: the pack has another record")
        frames = {}
        for blob in body.blobs.values():
            packed = packed_name(format.BLOBS, blob.digest)
            if not pack.has(packed) or pack.place(packed).frame >= len(pack.frames):
                raise CorruptError(f"manifest {name}: the pack lacks a blob")
            frames[packed] = pack.place(packed).frame
        record = packed_name(format.ARTIFACTS, action)
        entry = Entry(format.MANIFESTS, name, data)
        return cls(manifest, entry, {record: pack.place(record).frame, **frames})


def read_pack(session: Session, namespace: str, row: PackRow) -> Future[tuple[bytes, Version]]:
    """Start reading a pack; the result has its bytes and version."""
    return session.submit(Objects.get, pack_name(namespace, row.pack), limit=row.size)


def open_remote_pack(row: PackRow, data: bytes) -> Pack:
    """Open a downloaded pack.

    Raises:
        CorruptError: the object is not the pack that the catalog names, or exceeds the limits.
    """
    digest = format.sha256(data)
    if digest != row.pack:
        raise CorruptError(f"the downloaded object is not this pack: its SHA-256 is {digest}")
    footer = packs.read_footer(data[-packs.FOOTER_BYTES :], len(data))
    if footer.size > MAX_INDEX_BYTES:
        raise CorruptError(f"its index has {footer.size:,} bytes")
    pack = open_pack(data, digest=digest)
    for number, frame in enumerate(pack.frames):
        if frame.raw_size > MAX_FRAME_BYTES:
            raise CorruptError(f"frame {number} has {frame.raw_size:,} bytes of content")
        pack.check_sizes(number)
    return pack


class Fetch:
    """Downloads variants from one namespace into a store.

    Args:
        session: the remote.
        store: the local store.
        namespace: namespace of the toolchain.
        trust: the keys that must sign manifests; None if remotes need no signatures.
    """

    def __init__(self, session: Session, store: Store, namespace: str, trust: Trust | None) -> None:
        self._session, self._store, self._namespace = session, store, namespace
        self._trust = trust
        self._judged: set[str] = set()
        self._complete: dict[str, PackedVariant] = {}
        self._open()
        self.actions: dict[str, str] = {}
        """Action keys of the variants that the local store has now, by the name of the manifest."""
        self.bad: set[str] = set()
        """Packs that are missing or damaged."""
        self.used: set[str] = set()
        """Packs with entries that were used."""

    def _open(self) -> None:
        self._out = io.BytesIO()
        self._local = PackWriter(self._out)

    def run(self, wanted: Mapping[PackRow, Sequence[str]], accept: Accept) -> None:
        """Download variants into the store, and count them.

        Args:
            wanted: names of manifests, by pack, newest first.
            accept: called with the name of a manifest and the manifest; returns True to use it.

        Raises:
            RemoteError: the session is not a build's, and the remote fails.
            ToolError: the session is not a build's, and the store cannot be written.
        """
        waiting = deque(wanted)
        reads: dict[Future[tuple[bytes, Version]], PackRow] = {}
        while (waiting or reads) and self._session.failed is None:
            while waiting and _may_start(reads.values(), waiting[0]):
                row = waiting.popleft()
                if any(set_prefix(name) not in self._judged for name in wanted[row]):
                    reads[read_pack(self._session, self._namespace, row)] = row
            future = self._session.first(reads) if reads else None
            if future is None:
                continue
            row = reads.pop(future)
            try:
                self._take(row, wanted[row], future.result()[0], accept)
            except CancelledError:
                break
            except RemoteError as error:
                if error.failure is Failure.MISSING:
                    self.bad.add(row.pack)
                self._session.failed_with(error)
            except CorruptError as error:
                self.bad.add(row.pack)
                self._session.failed_with(CorruptError(f"pack {row.pack}: {error.message}"))
        self._publish()

    def _take(self, row: PackRow, names: Sequence[str], data: bytes, accept: Accept) -> None:
        """Copy the accepted variants of a pack into the pack for the local store."""
        with self._session.waiting():
            pack = open_remote_pack(row, data)
        self.used.add(row.pack)
        accepted: dict[str, PackedVariant] = {}
        for name in names:
            if self._session.failed is not None:
                return
            try:
                found = self._judge(pack, name, accept)
            except CorruptError as error:
                self._session.failed_with(error)
                continue
            if found is not None:
                accepted[name] = found
        needed: dict[int, set[bytes]] = {}
        for found in accepted.values():
            for packed, frame in found.frames.items():
                needed.setdefault(frame, set()).add(packed)
        for number, names_there in sorted(needed.items()):
            if self._session.failed is not None:
                return
            with self._session.waiting():
                for area, name in map(unpacked_name, names_there):
                    format.check_file(area, name, pack.read(area, name) or b"")
                self._local.copy_frame(pack, number, names_there)
        self._local.add(found.entry for found in accepted.values())
        self._complete |= accepted
        self._session.earn(len(accepted))
        if self._local.size >= _LOCAL_PACK_BYTES:
            self._publish()

    def _judge(self, pack: Pack, name: str, accept: Accept) -> PackedVariant | None:
        """Return the variant of a manifest if it should be copied."""
        if set_prefix(name) in self._judged:
            return None
        with self._session.waiting():
            found = PackedVariant.read(pack, name)
        manifest = found.manifest
        kind = format.KINDS[format.MANIFESTS]
        if self._trust is not None and not self._trust.vouches(kind, name, manifest.to_json()):
            self._session.stats.refuse(f"manifest {name}: no trusted key signed it")
            return None
        if not accept(name, manifest):
            return None
        held = self._store.get_artifact(manifest.action)
        is_same = held is not None and held.digest == manifest.record
        if not is_same and self._store.get_artifact(manifest.action, verify=True):
            self._session.stats.conflicts.append(
                f"action key {manifest.action}: the remote has record {manifest.record}, "
                "this store another"
            )
            return None
        self._judged.add(set_prefix(name))
        return found._replace(frames={}) if is_same else found

    def _publish(self) -> None:
        """Publish the complete variants as one pack of the local store."""
        complete, self._complete = [*self._complete.values()], {}
        if not complete:
            return
        self._local.close()
        data = self._out.getvalue()
        self._open()
        try:
            publish_pack(self._store, data, [found.entry for found in complete])
        except OSError as error:
            if not self._session.is_build:
                raise unwritable(self._store, error) from error
            self._store.not_written(error)
            return
        for found in complete:
            self.actions[found.entry.name] = found.manifest.action
            self._session.stats.hits += 1
            self._session.stats.saved_s += found.manifest.cost_s


def _may_start(under_way: Collection[PackRow], row: PackRow) -> bool:
    size = sum(each.size for each in under_way) + row.size
    return not under_way or (len(under_way) < _UNDER_WAY and size <= _UNDER_WAY_BYTES)


class Writer:
    """Collects variants in packs, sends the packs, and changes the catalog at the end.

    Args:
        session: the remote.
        namespace: namespace of the toolchain.
        known: names of manifests that the remote has.
    """

    def __init__(self, session: Session, namespace: str, known: Collection[bytes]) -> None:
        self._session, self._namespace = session, namespace
        self._known = set(known)
        self._sent: list[tuple[Future[bool], PackRow]] = []
        self._open()

    def _open(self) -> None:
        self._out = io.BytesIO()
        self._pack = PackWriter(self._out)
        self._names: list[bytes] = []
        self._bytes = 0

    def add(self, store: Store, name: str, *, again: bool = False) -> bool | None:
        """Send a variant; return False if the remote has it, None if it is not in the store.

        Args:
            store: the store.
            name: the name of the variant's manifest.
            again: send the variant even if the remote has it.

        Raises:
            CorruptError: the variant is damaged or too large.
        """
        packed = bytes.fromhex(name)
        if packed in self._known and not again:
            return False
        entries = entries_of_manifest(store, name)
        if entries is None or len(entries) == 1:
            return None
        size = sum(len(entry.data) for entry in entries)
        if size > MAX_VARIANT_BYTES:
            raise CorruptError(f"manifest {name}: {size:,} bytes are too many for a remote store")
        self._known.add(packed)
        self._pack.add(entries)
        self._names.append(packed)
        self._bytes += size
        if self._bytes >= PACK_BYTES:
            self._flush()
        return True

    def _flush(self) -> None:
        """Send the pack that is being filled."""
        if not self._names:
            return
        summary = self._pack.close()
        row = PackRow(summary.digest, summary.size, int(time.time()), b"".join(self._names))
        data = self._out.getvalue()
        self._open()
        while self._session.failed is None:
            under_way = {future: row for future, row in self._sent if not future.done()}
            if _may_start(under_way.values(), row):
                break
            self._session.first(under_way)
        put = self._session.submit(Objects.put, pack_name(self._namespace, row.pack), data)
        self._sent.append((put, row))

    def finish(self, change: Change) -> None:
        """Send the rest, change the catalog, and count the variants that were sent.

        Args:
            change: other changes of the catalog.

        Raises:
            RemoteError: the remote fails, the budget is used up, or the session is not a build's
                and a pack could not be sent. The catalog lists the packs that were sent, unless the
                remote failed or the budget is used up.
        """
        self._flush()
        rows, unsent = [], None
        for future, row in self._sent:
            if self._session.first([future]) is None:
                break
            try:
                future.result()
            except RemoteError as error:
                if error.failure in OF_ONE_OBJECT:
                    unsent = unsent or error
                    continue
                self._session.fail(error)
                break
            rows.append(row)
            self._session.earn(len(row.names) // _NAME)
        if self._session.failed is not None:
            raise self._session.failed
        change = change._replace(added=tuple(reversed(rows)))
        if change != Change():
            change_catalog(self._session, self._namespace, change)
        self._session.stats.offered += sum(len(row.names) // _NAME for row in rows)
        if unsent is not None:
            self._session.fail(unsent)
