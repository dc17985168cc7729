"""What lies in a store, as far as eviction decides by it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pallasc.cache.about import unpack_blobs
from pallasc.cache.files import Identity
from pallasc.cache.format import ARTIFACTS, BLOBS, MANIFESTS, PACKS
from pallasc.cache.index import Index
from pallasc.cache.packed import OpenPack
from pallasc.cache.scan import Scan
from pallasc.cache.store import Store


@dataclass(frozen=True, slots=True)
class Entry:
    """A record, with all that the index knows of it.

    Attributes:
        key: its action key.
        identity: its file.
        last_use_ns: when it was last used.
        blobs: the digests of its blobs, each once.
        hits: how often it was found.
        compile_s: how long it took to compile, 0 where that is not known.
    """

    key: str
    identity: Identity
    last_use_ns: int
    blobs: tuple[str, ...] = ()
    hits: int = 0
    compile_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest: its file, and the action key it leads to, "" where it leads to none."""

    identity: Identity
    action: str = ""


@dataclass(frozen=True, slots=True)
class PackFile:
    """A pack: its name, its file, and the action keys of the records in it.

    Attributes:
        digest: its name.
        identity: its file.
        keys: the action keys of the records that it holds.
        requests: the request keys of the manifests that it holds.
    """

    digest: str
    identity: Identity
    keys: frozenset[str] = frozenset()
    requests: frozenset[str] = frozenset()

    @property
    def last_use_ns(self) -> int:
        """Return when something in it was last used."""
        return self.identity[1]


@dataclass(frozen=True, slots=True)
class Inventory:
    """All that lies in a store.

    Attributes:
        entries: every record that does not lie in a pack.
        blobs: the file of every such blob, by digest.
        manifests: every such manifest, by request key.
        packs: every pack.
        complete: nothing was overlooked; if something was, nothing may be removed.
    """

    entries: tuple[Entry, ...] = ()
    blobs: Mapping[str, Identity] = field(default_factory=dict)
    manifests: Mapping[str, Manifest] = field(default_factory=dict)
    packs: tuple[PackFile, ...] = ()
    complete: bool = True

    @property
    def bytes(self) -> int:
        """Return the size of records, blobs, manifests and packs together."""
        return (
            sum(entry.identity[2] for entry in self.entries)
            + sum(blob[2] for blob in self.blobs.values())
            + sum(manifest.identity[2] for manifest in self.manifests.values())
            + sum(pack.identity[2] for pack in self.packs)
        )


def take_inventory(store: Store, index: Index, faults: list[str]) -> Inventory:
    """Return what lies in a store: records and manifests from the index, blobs from the disk.

    Args:
        store: the store.
        index: its index, up to date.
        faults: what cannot be looked at is added here; the inventory is not complete then.
    """
    scan = Scan(store.folders)
    blobs = dict(scan.area(BLOBS))
    shared = {digest: digest for digest in blobs}  # one string for each digest, however often named
    rows = index.read(
        "SELECT key, inode, mtime_ns, bytes, last_use_ns, blobs, hits, compile_s FROM artifacts"
        " WHERE pack = ''"
    )
    entries = tuple(
        Entry(
            key,
            (inode, mtime_ns, size),
            last_use_ns,
            tuple(shared.get(digest, digest) for digest, _ in unpack_blobs(packed)),
            hits,
            compile_s,
        )
        for key, inode, mtime_ns, size, last_use_ns, packed, hits, compile_s in rows
    )
    manifests = {
        request: Manifest((inode, mtime_ns, size), action)
        for request, inode, mtime_ns, size, action in index.read(
            "SELECT request, inode, mtime_ns, bytes, action FROM requests WHERE pack = ''"
        )
    }
    packs = tuple(_packs(store, scan, faults))
    faults += map(str, scan.faults)
    return Inventory(entries, blobs, manifests, packs, complete=not faults)


def _packs(store: Store, scan: Scan, faults: list[str]) -> Iterator[PackFile]:
    """Yield the packs; one that cannot be opened may hold anything, and is a fault."""
    opened: Mapping[str, OpenPack] = {}
    try:
        opened = opened if store.packed is None else store.packed.packs
    except OSError as error:
        faults.append(f"{store.folders.path(PACKS)}: cannot be listed: {error.strerror or error}")
    for digest, identity, _ in scan.packs():
        pack = opened.get(digest)
        if pack is None:
            faults.append(f"{store.folders.path(f'{PACKS}/{digest}')}: cannot be read")
            continue
        keys, requests = (frozenset(pack.listed(area)) for area in (ARTIFACTS, MANIFESTS))
        yield PackFile(digest, identity, keys, requests)
