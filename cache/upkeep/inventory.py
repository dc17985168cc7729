"""What lies in a store, as far as eviction decides by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pallasc.cache.about import unpack_blobs
from pallasc.cache.files import Identity
from pallasc.cache.format import BLOBS
from pallasc.cache.index import Index
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
class Inventory:
    """All that lies in a store.

    Attributes:
        entries: every record.
        blobs: the file of every blob, by digest.
        manifests: every manifest, by request key.
        complete: nothing was overlooked; if something was, nothing may be removed.
    """

    entries: tuple[Entry, ...] = ()
    blobs: Mapping[str, Identity] = field(default_factory=dict)
    manifests: Mapping[str, Manifest] = field(default_factory=dict)
    complete: bool = True

    @property
    def bytes(self) -> int:
        """Return the size of records, blobs and manifests together."""
        return (
            sum(entry.identity[2] for entry in self.entries)
            + sum(blob[2] for blob in self.blobs.values())
            + sum(manifest.identity[2] for manifest in self.manifests.values())
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
            "SELECT request, inode, mtime_ns, bytes, action FROM requests"
        )
    }
    faults += map(str, scan.faults)
    return Inventory(entries, blobs, manifests, complete=not faults)
