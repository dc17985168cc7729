"""Contents of a store: records, manifests, blobs, and packs, and statistics.

The facts about each record and manifest are cached in the index, so that a command does not have to
read and parse thousands of files. The index is only a cache: a row counts only while its file has
the same inode, time, and size, and an index that is damaged or missing is rebuilt.

    index = { "facts": { pack SP area SP name: stamp, facts } }   a record of kind `index`
    stamp = inode SP mtime_ns SP bytes          "" in a pack, which is identified by its name
    facts = { "blobs": [digest] } | { "action", "about" }   empty ones are left out

`pack` is "" for a file in its area.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from msgspec import Struct, to_builtins

from pallasc.cache import files, format
from pallasc.cache.files import Identity
from pallasc.cache.folders import Folders, RefusedError, is_shard
from pallasc.cache.format import ARTIFACTS, BLOBS, KINDS, MANIFESTS, PACKS
from pallasc.cache.manifests import About, AboutJson, Digest, DigestOrNone
from pallasc.cache.store import Store
from pallasc.errors import CorruptError

INDEX = "stat/index"
_NAME = format.sha256(b"pallasc index")
_LONGEST_ABOUT = 10_000


class Facts(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Facts about a record (its blobs), or about a manifest."""

    blobs: tuple[Digest, ...] = ()
    action: DigestOrNone = ""
    about: AboutJson = {}


class StoredFile(NamedTuple):
    """A record or manifest, and the facts about it; `identity` is its file's or its pack's."""

    name: str
    identity: Identity
    facts: Facts
    pack: str = ""


class Unit(NamedTuple):
    """Something that is evicted as a whole: a record in its area, or a pack.

    Attributes:
        name: action key of the record, or digest of the pack.
        identity: identity of the file.
        keys: action keys of the records in it.
        blobs: blobs outside packs that the record names; empty for a pack, which has its own.
        is_pack: whether it is a pack.
    """

    name: str
    identity: Identity
    keys: frozenset[str]
    blobs: tuple[str, ...] = ()
    is_pack: bool = False


@dataclass(slots=True)
class Inventory:
    """Contents of a store.

    Attributes:
        records, manifests: by key and name; files in an area hide those in packs.
        blobs: blobs outside packs.
        packs: packs that can be read.
        faults: reasons why the inventory may be incomplete; nothing may be removed then.
        read: number of records and manifests that were not in the index.
    """

    records: dict[str, StoredFile] = field(default_factory=dict)
    manifests: dict[str, StoredFile] = field(default_factory=dict)
    blobs: dict[str, Identity] = field(default_factory=dict)
    packs: list[Unit] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    read: int = 0

    @property
    def bytes(self) -> int:
        """The size of records, blobs, manifests, and packs together."""
        files = [record.identity for record in self.records.values() if not record.pack]
        files += [found.identity for found in self.manifests.values() if not found.pack]
        files += [*self.blobs.values(), *(pack.identity for pack in self.packs)]
        return sum(identity[2] for identity in files)

    def variants(self, keys: set[str] | None = None) -> dict[str, list[About]]:
        """Return the variants that artifacts were compiled for, by action key."""
        found: dict[str, dict[str, About]] = {}
        for manifest in self.manifests.values():
            key = manifest.facts.action
            about = About.from_json(manifest.facts.about)
            if about is not None and (keys is None or key in keys):
                found.setdefault(key, {})[json.dumps(about, sort_keys=True)] = about
        return {key: [about for _, about in sorted(of.items())] for key, of in found.items()}


@dataclass(slots=True)
class Scan:
    """A walk through a store that lists names and identities without reading files.

    Attributes:
        folders: the folders of the store.
        faults: place and reason for everything that could not be listed; empty after a complete
            walk.
        foreign: places that are not in the store's grammar.
    """

    folders: Folders
    faults: list[tuple[str, str]] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def area(self, area: str) -> Iterator[tuple[str, Identity]]:
        """Yield name and identity of each file of an area, sorted by name."""
        for shard, _ in self._list(area):
            if is_shard(shard):
                yield from self._files(f"{area}/{shard}", shard)
            else:
                self.foreign.append(f"{area}/{shard}")

    def packs(self) -> Iterator[tuple[str, Identity]]:
        """Yield name and identity of each pack."""
        return self._files(PACKS, "")

    def _files(self, folder: str, prefix: str) -> Iterator[tuple[str, Identity]]:
        for name, status in self._list(folder):
            fits = name.startswith(prefix) and format.is_name(name)
            if fits and stat.S_ISREG(status.st_mode):
                yield name, files.identity(status)
            else:
                self.foreign.append(f"{folder}/{name}")

    def _list(self, folder: str) -> list[tuple[str, os.stat_result]]:
        listed: dict[str, os.stat_result] = {}
        try:
            with self.folders.opened(folder) as descriptor, os.scandir(descriptor) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):  # it is gone by now
                        listed[entry.name] = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            pass
        except OSError as error:
            if isinstance(error, RefusedError) and "/" in folder:
                self.foreign.append(folder)
            else:
                self.faults.append((folder, f"cannot be listed: {error.strerror or error}"))
        return sorted(listed.items())


class _StoredIndex(Struct, forbid_unknown_fields=True):
    facts: dict[str, tuple[str, Facts]]


def _load(folders: Folders) -> dict[str, tuple[str, Facts]]:
    """Return stamp and facts of each file in the index."""
    with contextlib.suppress(CorruptError):
        data = files.read_small(folders, INDEX)
        return dict(format.decode(format.INDEX, _NAME, data, _StoredIndex)[0].facts)
    return {}


def facts_of(area: str, body: Any) -> Facts:
    """Return the facts about a record or a manifest."""
    if area == ARTIFACTS:
        return Facts(blobs=tuple(sorted({blob.digest for blob in body.blobs.values()})))
    facts = Facts(action=body.action)
    if len(json.dumps(body.about)) <= _LONGEST_ABOUT:
        facts.about = body.about
    return facts


def take_inventory(store: Store, *, repair: bool = False) -> Inventory:
    """Return the contents of a store.

    Args:
        store: the store.
        repair: quarantine corrupt records and manifests; they are left out in any case.
    """
    return _Reader(store, repair).read()


class _Reader:
    def __init__(self, store: Store, repair: bool) -> None:
        self._store, self._repair = store, repair
        self._found, self._scan = Inventory(), Scan(store.folders)
        self._known = _load(store.folders)
        self._used: dict[str, tuple[str, Facts]] = {}
        """Facts to write to the index, by `pack area name`."""

    def read(self) -> Inventory:
        found, scan = self._found, self._scan
        found.blobs = dict(scan.area(BLOBS))
        for area in (ARTIFACTS, MANIFESTS):
            for name, identity in scan.area(area):
                self._read_loose(area, name, identity)
        for digest, identity in scan.packs():
            self._read_pack(digest, identity)
        found.faults = [f"{self._store.folders.path(at)}: {why}" for at, why in scan.faults]
        if not found.faults and self._used != self._known:
            data, _ = format.encode(format.INDEX, _NAME, to_builtins(_StoredIndex(self._used)))
            folders = self._store.folders
            with contextlib.suppress(OSError), files.temporary(folders, data) as place:
                folders.rename(place, INDEX)
        return found

    def _read_loose(self, area: str, name: str, identity: Identity) -> None:
        if self._is_known("", area, name, identity):
            return
        place, file = format.relative_path(area, name), None
        try:
            file = files.read(self._store.folders, place, limit_bytes=format.MAX_RECORD_BYTES)
            if file is None or file.identity is None:
                return
            if file.fault:
                raise CorruptError(file.fault)
            self._learn("", area, name, file.identity, file.data)
        except OSError as error:
            self._scan.faults.append((place, f"cannot be read: {error.strerror or error}"))
        except CorruptError as error:
            if self._repair:
                seen = None if file is None else file.identity
                self._store.put_away(area, name, error.message, seen)

    def _read_pack(self, digest: str, identity: Identity) -> None:
        try:
            packed = self._store.packed
            pack = None if packed is None else packed.packs.get(digest)
            if packed is None or pack is None:  # the pack may contain any record
                raise OSError("it is damaged")
            for area in (ARTIFACTS, MANIFESTS):
                for name in pack.area_names(area):
                    if self._is_known(digest, area, name, identity):
                        continue
                    data = packed.read_in(pack, area, name)
                    if data is None:
                        raise OSError("it is damaged")
                    with contextlib.suppress(CorruptError):  # it is a miss when it is used
                        self._learn(digest, area, name, identity, data)
            keys = frozenset(pack.area_names(ARTIFACTS))
            self._found.packs.append(Unit(digest, identity, keys, is_pack=True))
        except OSError as error:
            reason = f"cannot be read: {error.strerror or error}"
            self._scan.faults.append((f"{PACKS}/{digest}", reason))

    def _learn(self, pack: str, area: str, name: str, identity: Identity, data: bytes) -> None:
        """Read the facts about a file.

        Raises:
            CorruptError: the file is corrupt.
        """
        self._found.read += 1
        facts = facts_of(area, format.decode(KINDS[area], name, data)[0])
        self._add(pack, area, name, identity, facts)

    def _is_known(self, pack: str, area: str, name: str, identity: Identity) -> bool:
        """Add a file if the index has the facts about it."""
        stamp, facts = self._known.get(f"{pack} {area} {name}", ("unknown", None))
        if facts is None or stamp != _stamp(pack, identity):
            return False
        self._add(pack, area, name, identity, facts)
        return True

    def _add(self, pack: str, area: str, name: str, identity: Identity, facts: Facts) -> None:
        self._used[f"{pack} {area} {name}"] = _stamp(pack, identity), facts
        found = self._found.records if area == ARTIFACTS else self._found.manifests
        found.setdefault(name, StoredFile(name, identity, facts, pack))


def _stamp(pack: str, identity: Identity) -> str:
    return "" if pack else " ".join(map(str, identity))


class Listed(NamedTuple):
    """An artifact of a store, and the variants that it was compiled for."""

    key: str
    variants: tuple[About, ...]
    last_use: float


def artifacts(store: Store, *, key_prefix: str = "") -> list[Listed]:
    """Return the artifacts of a store, most recently used first.

    Args:
        store: the store.
        key_prefix: include only action keys that begin with this.
    """
    inventory = take_inventory(store)
    found = [r for r in inventory.records.values() if r.name.startswith(key_prefix)]
    found.sort(key=lambda record: (-record.identity[1], record.name))
    variants = inventory.variants({record.name for record in found})
    return [Listed(r.name, tuple(variants.get(r.name, ())), r.identity[1] / 1e9) for r in found]


class Stats(Struct, frozen=True):
    """Statistics of a store.

    Attributes:
        folder: its path.
        entries, manifests, blobs: number of each, including packs.
        packs: number of packs.
        bytes: total size of blobs, records, manifests, and packs.
        quarantined: number of corrupt files in the quarantine.
        oldest_use: last use of the entry that would be evicted first, seconds since the epoch.
        warnings: places that could not be listed.
    """

    folder: str
    entries: int
    manifests: int
    blobs: int
    packs: int
    bytes: int
    quarantined: int
    oldest_use: float | None
    warnings: list[str]


def stats(store: Store) -> Stats:
    """Return statistics of a store. A missing store is empty, and is not created."""
    inventory = take_inventory(store)
    records = inventory.records.values()
    uses_ns = [record.identity[1] for record in records]
    in_packs: set[str] = set()
    with contextlib.suppress(OSError):  # the inventory has reported it
        in_packs = set() if store.packed is None else store.packed.names(BLOBS)
    return Stats(
        folder=str(store.folder),
        entries=len(records),
        manifests=len(inventory.manifests),
        blobs=len(inventory.blobs.keys() | in_packs),
        packs=len(inventory.packs),
        bytes=inventory.bytes,
        quarantined=_quarantined(store),
        oldest_use=min(uses_ns) / 1e9 if uses_ns else None,
        warnings=inventory.faults,
    )


def _quarantined(store: Store) -> int:
    with contextlib.suppress(OSError):
        names = store.folders.names(files.QUARANTINE)
        return sum(not name.endswith(".reason") for name in names)
    return 0
