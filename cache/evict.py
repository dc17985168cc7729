"""What to take out of a store: a decision over what lies in it, without touching anything.

The order is least recently used first. Records go before the blobs that no other record names; what
a pin names or a running build holds stays, even where that leaves the store too large.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from pallasc.cache.files import Identity
from pallasc.cache.leases import Held
from pallasc.cache.limits import Limits

AGE, SIZE = "age", "size"


@dataclass(frozen=True, slots=True)
class Entry:
    """A record: its file, its last use, and the digests of its blobs, each once."""

    key: str
    identity: Identity
    last_use_ns: int
    blobs: tuple[str, ...] = ()


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


@dataclass(frozen=True, slots=True)
class Eviction:
    """A record that goes, the blobs and manifests that go with it, and why: "age" or "size"."""

    entry: Entry
    reason: str
    bytes: int
    blobs: tuple[str, ...] = ()
    manifests: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """What goes.

    Attributes:
        evictions: records, in the order in which they go.
        orphans: blobs that no record names.
        dangling: manifests that lead to no record, or were not made again for too long.
        bytes_before, bytes_after: the size of the store.
        held: how many records stay only because they are pinned or in use.
        excess_bytes: how much the store stays too large for that.
    """

    evictions: tuple[Eviction, ...] = ()
    orphans: tuple[str, ...] = ()
    dangling: tuple[str, ...] = ()
    bytes_before: int = 0
    bytes_after: int = 0
    held: int = 0
    excess_bytes: int = 0


def decide(inventory: Inventory, limits: Limits, held: Held, *, now_ns: int) -> Plan:
    """Return what has to go, so that what stays fits the limits.

    A blob that is younger than the grace period, or that a running build may have published, is not
    removed yet, though its record may be.
    """
    before = inventory.bytes
    if not inventory.complete:
        return Plan(bytes_before=before, bytes_after=before)
    return _Decision(inventory, limits, held, now_ns, before).plan()


class _Decision:
    """The state of one decision: what stays, as more and more goes."""

    def __init__(
        self, inventory: Inventory, limits: Limits, held: Held, now_ns: int, before: int
    ) -> None:
        self.inventory, self.limits, self.held = inventory, limits, held
        self.before, self.total = before, before
        self.grace_ns = now_ns - round(limits.grace_s * 1e9)
        self.oldest_ns = (
            None if limits.max_age_s is None else now_ns - round(limits.max_age_s * 1e9)
        )
        self.references = Counter(name for entry in inventory.entries for name in entry.blobs)
        self.leading: dict[str, list[str]] = {}
        for request, manifest in inventory.manifests.items():
            self.leading.setdefault(manifest.action, []).append(request)

    def plan(self) -> Plan:
        """Decide."""
        orphans = tuple(name for name in self.inventory.blobs if not self.references[name])
        orphans = tuple(name for name in orphans if self._may_go(name))
        dangling = self._dangling()
        self.total -= sum(self.inventory.blobs[name][2] for name in orphans)
        self.total -= sum(self.inventory.manifests[name].identity[2] for name in dangling)
        evictions, kept = self._evictions()
        limit = self.limits.max_bytes
        return Plan(
            evictions, orphans, dangling, self.before, self.total, kept,
            0 if limit is None else max(0, self.total - limit),
        )  # fmt: skip

    def _evictions(self) -> tuple[tuple[Eviction, ...], int]:
        evictions, kept = [], 0
        for entry in sorted(self.inventory.entries, key=lambda one: (one.last_use_ns, one.key)):
            reason = self._reason(entry)
            if not reason:
                break
            if self.held.holds(entry.key, entry.last_use_ns):
                kept += 1
            else:
                evictions.append(self._evict(entry, reason))
        return tuple(evictions), kept

    def _reason(self, entry: Entry) -> str:
        if self.oldest_ns is not None and entry.last_use_ns < self.oldest_ns:
            return AGE
        return SIZE if self._is_too_large() else ""

    def _is_too_large(self) -> bool:
        return self.limits.max_bytes is not None and self.total > self.limits.max_bytes

    def _evict(self, entry: Entry, reason: str) -> Eviction:
        gone = []
        for name in entry.blobs:
            self.references[name] -= 1
            if not self.references[name] and self._may_go(name):
                gone.append(name)
        manifests = tuple(self.leading.get(entry.key, ()))
        freed = entry.identity[2] + sum(self.inventory.blobs[name][2] for name in gone)
        freed += sum(self.inventory.manifests[name].identity[2] for name in manifests)
        self.total -= freed
        return Eviction(entry, reason, freed, tuple(gone), manifests)

    def _may_go(self, blob: str) -> bool:
        identity = self.inventory.blobs.get(blob)
        return identity is not None and self._is_old(identity)

    def _is_old(self, identity: Identity) -> bool:
        return identity[1] <= self.grace_ns and not self.held.is_recent(identity[1])

    def _dangling(self) -> tuple[str, ...]:
        keys = {entry.key for entry in self.inventory.entries}
        return tuple(
            request
            for request, manifest in self.inventory.manifests.items()
            if manifest.action not in keys and self._is_useless(manifest)
        )

    def _is_useless(self, manifest: Manifest) -> bool:
        if not self._is_old(manifest.identity):
            return False
        aged = self.oldest_ns is not None and manifest.identity[1] < self.oldest_ns
        return bool(manifest.action) or aged
