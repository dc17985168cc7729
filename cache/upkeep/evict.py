"""What to take out of a store: a decision over what lies in it, without touching anything.

Records go in the order of `_urgency`, as long as there is a reason for the next one to go
(`_Decision._reason`). A blob goes with the last record that names it. A pack goes whole, in its
turn among the records. What the caller keeps or a running build holds stays, a pack with such a
record too, even where that leaves the store too large, and is reported with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from pallasc.cache.files import Identity
from pallasc.cache.leases import Held
from pallasc.cache.upkeep.inventory import Entry, Inventory, Manifest, PackFile
from pallasc.cache.upkeep.limits import Limits

AGE, SIZE, CLEAR = "age", "size", "clear"
"""Why a record goes."""
KEPT, IN_USE, YOUNG = "kept", "in use", "young"
"""Why a file stays although a limit asks for it."""


@dataclass(frozen=True, slots=True)
class Eviction:
    """A record that goes, the blobs and manifests that go with it, and why: see `decide`."""

    entry: Entry
    reason: str
    bytes: int
    blobs: tuple[str, ...] = ()
    manifests: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PackEviction:
    """A pack that goes, the manifests outside of it that lead into it, and why: see `decide`."""

    pack: PackFile
    reason: str
    bytes: int
    manifests: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Retained:
    """What pruning had to leave in place, for one reason.

    Attributes:
        reason: "kept": the caller keeps it · "in use": a running build holds it or may have made
            it · "young": no record needs it, but it has not been there for the grace period.
        records: how many artifacts.
        files: how many files: those records, blobs and manifests, or the packs they lie in.
        bytes: the size of those files; each counts for one reason only.
    """

    reason: str
    records: int = 0
    files: int = 0
    bytes: int = 0

    def to_json(self) -> dict[str, object]:
        """Return it as JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Plan:
    """What goes.

    Attributes:
        evictions: records, in the order in which they go.
        packs: packs, in the order in which they go.
        orphans: blobs that no record names.
        dangling: manifests that lead to no record, or were not made again for too long.
        bytes_before, bytes_after: the size of the store.
        retained: what stays although a limit asks for it, by reason.
        excess_bytes: how much the store stays larger than its limit; what is retained explains all
            that is left then.
        complete: nothing was overlooked; if something was, nothing goes.
    """

    evictions: tuple[Eviction, ...] = ()
    packs: tuple[PackEviction, ...] = ()
    orphans: tuple[str, ...] = ()
    dangling: tuple[str, ...] = ()
    bytes_before: int = 0
    bytes_after: int = 0
    retained: tuple[Retained, ...] = ()
    excess_bytes: int = 0
    complete: bool = True

    @property
    def held(self) -> int:
        """Return how many records stay only because they are kept or in use."""
        return sum(retained.records for retained in self.retained)


def decide(
    inventory: Inventory,
    limits: Limits,
    held: Held,
    *,
    now_ns: int,
    keep: frozenset[str] = frozenset(),
    clear: bool = False,
) -> Plan:
    """Return what has to go, so that what stays fits the limits.

    A blob that is younger than the grace period, or that a running build may have published, is not
    removed yet, though its record may be.

    Args:
        inventory: what lies in the store.
        limits: what may stay.
        held: what running builds hold.
        now_ns: the time now.
        keep: the keys of records that stay.
        clear: the reason of every eviction is "clear"; otherwise it is the limit that asks for it,
            "age" or "size".
    """
    before = inventory.bytes
    if not inventory.complete:
        excess = _excess(before, limits)
        return Plan(bytes_before=before, bytes_after=before, excess_bytes=excess, complete=False)
    return _Decision(inventory, limits, held, now_ns, before, keep, clear).plan()


def _excess(size: int, limits: Limits) -> int:
    return 0 if limits.max_bytes is None else max(0, size - limits.max_bytes)


def _urgency(unit: Entry | PackFile) -> tuple[int, str]:
    """Order records and packs: what was used longest ago goes first."""
    return unit.last_use_ns, unit.digest if isinstance(unit, PackFile) else unit.key


class _Decision:
    """The state of one decision: what stays, as more and more goes."""

    def __init__(
        self,
        inventory: Inventory,
        limits: Limits,
        held: Held,
        now_ns: int,
        before: int,
        keep: frozenset[str],
        clear: bool,
    ) -> None:
        self.inventory, self.limits, self.held = inventory, limits, held
        self.keep, self.clear = keep, clear
        self.before, self.total = before, before
        self.grace_ns = now_ns - round(limits.grace_s * 1e9)
        self.oldest_ns = (
            None if limits.max_age_s is None else now_ns - round(limits.max_age_s * 1e9)
        )
        self.references = Counter(name for entry in inventory.entries for name in entry.blobs)
        self.leading: dict[str, list[str]] = {}
        for request, manifest in inventory.manifests.items():
            self.leading.setdefault(manifest.action, []).append(request)
        self.keys = Counter(entry.key for entry in inventory.entries)
        for pack in inventory.packs:
            self.keys.update(pack.keys)
        self.evictions: list[Eviction] = []
        self.packs: list[PackEviction] = []
        self.retained_packs: list[tuple[str, PackFile]] = []
        self.retained_entries: list[tuple[str, Entry]] = []
        self.retained_blobs: list[str] = []

    def plan(self) -> Plan:
        """Decide."""
        loose = [name for name in self.inventory.blobs if not self.references[name]]
        orphans = tuple(name for name in loose if self._may_go(name))
        dangling = self._dangling()
        self.total -= sum(self.inventory.blobs[name][2] for name in orphans)
        self.total -= sum(self.inventory.manifests[name].identity[2] for name in dangling)
        self._decide_units()
        dangling += self._last_manifests(set(dangling))
        retained = self._retained(set(loose) - set(orphans), set(dangling))
        excess = _excess(self.total, self.limits)
        evictions, packs = tuple(self.evictions), tuple(self.packs)
        return Plan(evictions, packs, orphans, dangling, self.before, self.total, retained, excess)

    def _decide_units(self) -> None:
        """Decide about each record and each pack."""
        units: list[Entry | PackFile] = [*self.inventory.entries, *self.inventory.packs]
        for unit in sorted(units, key=_urgency):
            reason = self._reason(unit)
            if not reason:
                break
            if isinstance(unit, PackFile):
                self._decide_pack(unit, reason)
            elif unit.key in self.keep:
                self.retained_entries.append((KEPT, unit))
            elif self.held.holds(unit.key, unit.last_use_ns):
                self.retained_entries.append((IN_USE, unit))
            else:
                self.evictions.append(self._evict(unit, reason))

    def _decide_pack(self, pack: PackFile, reason: str) -> None:
        if not self.keep.isdisjoint(pack.keys):
            self.retained_packs.append((KEPT, pack))
        elif self.held.holds_any(pack.keys, pack.last_use_ns):
            self.retained_packs.append((IN_USE, pack))
        else:
            manifests = self._leading_nowhere(pack.keys)
            freed = pack.identity[2]
            freed += sum(self.inventory.manifests[name].identity[2] for name in manifests)
            self.total -= freed
            self.packs.append(PackEviction(pack, reason, freed, manifests))

    def _leading_nowhere(self, keys: Iterable[str]) -> tuple[str, ...]:
        """Return the manifests that lead to records which go now, and lie nowhere else."""
        gone: list[str] = []
        for key in sorted(keys):
            self.keys[key] -= 1
            gone += [] if self.keys[key] else self.leading.get(key, ())
        return tuple(gone)

    def _reason(self, entry: Entry | PackFile) -> str:
        """Return why the next record is evicted, "" where it and all after it may stay."""
        if self.clear:
            return CLEAR
        if self.oldest_ns is not None and entry.last_use_ns < self.oldest_ns:
            return AGE
        return SIZE if self._is_too_large() else ""

    def _is_too_large(self) -> bool:
        return self.limits.max_bytes is not None and self.total > self.limits.max_bytes

    def _evict(self, entry: Entry, reason: str) -> Eviction:
        gone: list[str] = []
        for name in entry.blobs:
            self.references[name] -= 1
            if self.references[name]:
                continue
            (gone if self._may_go(name) else self.retained_blobs).append(name)
        manifests = self._leading_nowhere((entry.key,))
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
        return tuple(
            request
            for request, manifest in self.inventory.manifests.items()
            if manifest.action not in self.keys and self._is_useless(manifest)
        )

    def _is_useless(self, manifest: Manifest) -> bool:
        if not self._is_old(manifest.identity):
            return False
        aged = self.oldest_ns is not None and manifest.identity[1] < self.oldest_ns
        return bool(manifest.action) or aged

    def _last_manifests(self, gone: set[str]) -> tuple[str, ...]:
        """Take manifests that name no record, where nothing else may go: the oldest first."""
        taken = []
        names = (request for request in self.leading.get("", ()) if request not in gone)
        staying = {request: self.inventory.manifests[request] for request in names}
        for request, manifest in sorted(staying.items(), key=lambda item: item[1].identity[1]):
            if self._is_too_large() and self._is_old(manifest.identity):
                self.total -= manifest.identity[2]
                taken.append(request)
        return tuple(taken)

    def _retained(self, loose: set[str], dangling: set[str]) -> tuple[Retained, ...]:
        """Return the entries over the limit that are retained.

        Args:
            loose: blobs that no record named from the start, and that stay.
            dangling: manifests that go.
        """
        tally = _Tally()
        for reason, pack in self.retained_packs:
            tally.add_records(reason, len(pack.keys), pack.identity)
            self._add_leading(tally, reason, pack.keys)
        for reason, entry in self.retained_entries:
            tally.add_records(reason, 1, entry.identity)
            for name in entry.blobs:
                tally.add(reason, name, self.inventory.blobs.get(name))
            self._add_leading(tally, reason, (entry.key,))
        for name in self.retained_blobs:
            self._add_young(tally, name, self.inventory.blobs.get(name))
        if self._is_too_large():
            for name in loose:
                self._add_young(tally, name, self.inventory.blobs[name])
            for request, manifest in self.inventory.manifests.items():
                if manifest.action not in self.keys and request not in dangling:
                    self._add_young(tally, request, manifest.identity)
        return tally.retained

    def _add_leading(self, tally: _Tally, reason: str, keys: Iterable[str]) -> None:
        for key in keys:
            for request in self.leading.get(key, ()):
                tally.add(reason, request, self.inventory.manifests[request].identity)

    def _add_young(self, tally: _Tally, name: str, identity: Identity | None) -> None:
        if identity is not None:
            tally.add(YOUNG if identity[1] > self.grace_ns else IN_USE, name, identity)


class _Tally:
    """Counts what stays, each file once."""

    def __init__(self) -> None:
        self._sums = {reason: [0, 0, 0] for reason in (KEPT, IN_USE, YOUNG)}
        self._seen: set[str] = set()

    @property
    def retained(self) -> tuple[Retained, ...]:
        """Return the sums of the reasons that something stays for."""
        return tuple(Retained(reason, *sums) for reason, sums in self._sums.items() if sums[1])

    def add_records(self, reason: str, records: int, identity: Identity) -> None:
        """Count a file that holds records."""
        self._add(reason, records, identity)

    def add(self, reason: str, name: str, identity: Identity | None) -> None:
        """Count a blob or manifest unless it was counted before, or is not there."""
        if identity is not None and name not in self._seen:
            self._seen.add(name)
            self._add(reason, 0, identity)

    def _add(self, reason: str, records: int, identity: Identity) -> None:
        sums = self._sums[reason]
        self._sums[reason] = [sums[0] + records, sums[1] + 1, sums[2] + identity[2]]
