"""Carries out what `cache/upkeep/evict.py` decides, and removes what nobody needs any more."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pallasc.cache import files, format, uses
from pallasc.cache.format import ARTIFACTS, BLOBS, GONE, MANIFESTS, PACKS
from pallasc.cache.index import LOCK_TIMEOUT_S, Index, open_index
from pallasc.cache.leases import Held, held_by_leases
from pallasc.cache.scan import Scan
from pallasc.cache.store import Store
from pallasc.cache.upkeep.evict import Eviction, PackEviction, Plan, decide
from pallasc.cache.upkeep.inventory import Inventory, take_inventory
from pallasc.cache.upkeep.leftovers import Leftovers, clear_leftovers
from pallasc.cache.upkeep.limits import Limits, read_limits
from pallasc.errors import CorruptError, ToolError

if TYPE_CHECKING:
    from sqlite_utils import Database

TIDY_EVERY_S = 3600.0
_TIDIED = "stat/tidied"
_MOST_LOGS = 100
"""Logs of uses that may pile up before they are folded into the index."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """What went, or would go.

    Attributes:
        dry_run: nothing was touched.
        limits: what the store was made to fit.
        plan: the decision. What a build began to use meanwhile was kept nevertheless.
        evictions, packs: those of the plan that were carried out, or would be.
        records, blobs, manifests: how many files of each really went, beside those in packs.
        freed_bytes: the size of those files.
        leftovers: what was cleared away beside them.
        names: names of kernels by action key, for those in the plan.
        warnings: what could not be looked at or removed.
    """

    dry_run: bool
    limits: Limits
    plan: Plan
    evictions: tuple[Eviction, ...]
    packs: tuple[PackEviction, ...]
    records: int
    blobs: int
    manifests: int
    freed_bytes: int
    leftovers: Leftovers
    names: dict[str, list[str]]
    warnings: tuple[str, ...]

    @property
    def excess_bytes(self) -> int:
        """Return how much the store stays larger than its limit."""
        limit, left = self.limits.max_bytes, self.plan.bytes_before - self.freed_bytes
        return 0 if limit is None else max(0, left - limit)

    def to_json(self) -> dict[str, object]:
        """Return it as JSON."""
        plan = self.plan
        return {
            "dry_run": self.dry_run,
            "limit_bytes": self.limits.max_bytes,
            "limit_age_s": self.limits.max_age_s,
            "bytes_before": plan.bytes_before,
            "bytes_after": plan.bytes_before - self.freed_bytes,
            "excess_bytes": self.excess_bytes,
            "records": self.records,
            "blobs": self.blobs,
            "manifests": self.manifests,
            "held": plan.held,
            "kept": [retained.to_json() for retained in plan.retained],
            "complete": plan.complete,
            "evicted": [self._evicted(eviction) for eviction in self.evictions],
            "packs": [self._evicted_pack(eviction) for eviction in self.packs],
            "leftovers": self.leftovers.to_json(),
            "warnings": list(self.warnings),
        }

    def _evicted_pack(self, eviction: PackEviction) -> dict[str, object]:
        return {
            "digest": eviction.pack.digest,
            "records": len(eviction.pack.keys),
            "reason": eviction.reason,
            "bytes": eviction.bytes,
            "last_use": eviction.pack.last_use_ns / 1e9,
        }

    def _evicted(self, eviction: Eviction) -> dict[str, object]:
        return {
            "key": eviction.entry.key,
            "names": self.names.get(eviction.entry.key, []),
            "reason": eviction.reason,
            "bytes": eviction.bytes,
            "last_use": eviction.entry.last_use_ns / 1e9,
        }


def prune(
    store: Store,
    *,
    limits: Limits | None = None,
    keep: frozenset[str] = frozenset(),
    dry_run: bool = False,
    now_ns: int | None = None,
    timeout_s: float = LOCK_TIMEOUT_S,
) -> Pruned:
    """Make a store fit its limits and clear what dead processes left in it.

    Args:
        store: the store.
        limits: `read_limits()` by default.
        keep: action keys of artifacts that stay.
        dry_run: only tell what would go; at most the log of uses is counted.
        now_ns: the time now.
        timeout_s: how long to wait for another process that has the index.

    Raises:
        SpecError: a variable of the environment is not a size or age.
        CorruptError: something is in the place of a folder of the store; nothing is touched then.
        ToolError: the store cannot be listed.
    """
    limits = read_limits() if limits is None else limits
    store.folders.check()
    with open_index(store, timeout_s=timeout_s) as index:
        now_ns = time.time_ns() if now_ns is None else now_ns
        return _prune(store, index, limits, dry_run, now_ns, keep=keep)


def tidy(store: Store, *, limits: Limits | None = None, now_ns: int | None = None) -> Pruned | None:
    """Prune if that was not done within the last hour; None if it was, or another process does it.

    This runs at the end of a build that made something. A store below its limits is not pruned, and
    its index not opened. No other process is waited for, and no fault of disk or index is raised.

    Raises:
        SpecError: a variable of the environment is not a size or age.
    """
    limits = read_limits() if limits is None else limits
    now_ns = time.time_ns() if now_ns is None else now_ns
    with contextlib.suppress(OSError):
        if abs(now_ns - store.folders.status(_TIDIED).st_mtime_ns) < TIDY_EVERY_S * 1e9:
            return None
    if not store.folder.is_dir():
        return None
    with contextlib.suppress(OSError, ToolError, CorruptError):
        store.folders.check()
        with files.temporary(store.folders, b"") as place:
            store.folders.touch(place, time_ns=now_ns)
            files.publish_last(store.folders, place, _TIDIED)
        if store.packed is not None:
            from pallasc.cache.upkeep.merge_packs import merge_packs

            merge_packs(store)
        if _fits(store, limits):
            return None
        with open_index(store, timeout_s=0) as index:
            # In memory it would read every record, which is for those who ask for it.
            return _prune(store, index, limits, False, now_ns) if index.durable else None
    return None


def _fits(store: Store, limits: Limits) -> bool:
    """Tell whether a store is surely below its limits, by the sizes of its files alone."""
    if limits.max_age_s is not None:
        return False
    if len(store.folders.names(uses.FOLDER)) >= _MOST_LOGS:
        return False
    if limits.max_bytes is None:
        return True
    scan = Scan(store.folders)
    sizes = (
        identity[2] for area in (BLOBS, ARTIFACTS, MANIFESTS) for _, identity in scan.area(area)
    )
    return sum(sizes) + sum(seen[2] for _, seen, _ in scan.packs()) < limits.max_bytes


def clear(store: Store, *, dry_run: bool = False, now_ns: int | None = None) -> Pruned:
    """Remove everything but what running builds hold; statistics begin anew.

    Raises:
        CorruptError: something is in the place of a folder of the store; nothing is touched then.
        ToolError: the store cannot be listed.
    """
    store.folders.check()
    # One nanosecond on, so that what was published this very moment counts as old.
    now_ns = (time.time_ns() if now_ns is None else now_ns) + 1
    nothing = Limits(max_bytes=0, max_age_s=0.0, grace_s=0.0, quarantine_s=0.0)
    with open_index(store) as index:
        pruned = _prune(store, index, nothing, dry_run, now_ns, clear=True)
        if not dry_run:
            for place in (uses.TOTALS, *_logs(store)):
                with contextlib.suppress(OSError):
                    store.folders.unlink(place)
            index.throw_away()
        return pruned


def _logs(store: Store) -> list[str]:
    with contextlib.suppress(OSError):
        return [f"{uses.FOLDER}/{name}" for name in store.folders.names(uses.FOLDER)]
    return []


def _prune(
    store: Store,
    index: Index,
    limits: Limits,
    dry_run: bool,
    now_ns: int,
    *,
    keep: frozenset[str] = frozenset(),
    clear: bool = False,
) -> Pruned:
    uses.fold(store, index)
    if not dry_run:
        for corrupt in index.refreshed.corrupt:
            store.put_away(corrupt.area, corrupt.name, corrupt.reason, corrupt.identity)
    faults = list(index.refreshed.faults)
    inventory = take_inventory(store, index, faults)
    held = _held(store, now_ns, faults)
    if faults:
        inventory = replace(inventory, complete=False)
    plan = decide(inventory, limits, held, now_ns=now_ns, keep=keep, clear=clear)
    effect = _Effect(store, inventory, faults)
    names = _names(index, plan)
    if not dry_run:
        effect.carry_out(plan)
        effect.forget(index)
    counts = _planned(plan) if dry_run else effect.counts
    evictions = plan.evictions if dry_run else effect.evictions
    packs = plan.packs if dry_run else effect.packs
    leftovers = clear_leftovers(store, limits, now_ns=now_ns, dry_run=dry_run)
    told = leftovers, names, tuple(faults)
    return Pruned(dry_run, limits, plan, evictions, packs, *counts, *told)


def _held(store: Store, now_ns: int, faults: list[str]) -> Held:
    try:
        return held_by_leases(store.folders, now_ns=now_ns)
    except OSError as error:
        faults.append(f"{error.filename}: cannot be read: {error.strerror or error}")
        return Held()


def _planned(plan: Plan) -> tuple[int, int, int, int]:
    blobs = len(plan.orphans) + sum(len(eviction.blobs) for eviction in plan.evictions)
    manifests = len(plan.dangling) + sum(len(eviction.manifests) for eviction in plan.evictions)
    manifests += sum(len(eviction.manifests) for eviction in plan.packs)
    return len(plan.evictions), blobs, manifests, plan.bytes_before - plan.bytes_after


def _names(index: Index, plan: Plan) -> dict[str, list[str]]:
    going = {eviction.entry.key for eviction in plan.evictions}
    names: dict[str, list[str]] = {}
    if going:
        for key, name in index.read("SELECT DISTINCT action, name FROM variants ORDER BY 1, 2"):
            if key in going:
                names.setdefault(key, []).append(name)
    return names


class _Effect:
    """Removes files, each only if it is still the one that was seen."""

    def __init__(self, store: Store, inventory: Inventory, faults: list[str]) -> None:
        self._store, self._inventory, self._faults = store, inventory, faults
        self._evictions: list[Eviction] = []
        self._packs: list[PackEviction] = []
        self._manifests: list[str] = []
        self._blobs = 0
        self._bytes = 0

    @property
    def evictions(self) -> tuple[Eviction, ...]:
        """Return those that were carried out."""
        return tuple(self._evictions)

    @property
    def packs(self) -> tuple[PackEviction, ...]:
        """Return the packs that were removed."""
        return tuple(self._packs)

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Return how many records, blobs and manifests went, and their bytes."""
        return len(self._evictions), self._blobs, len(self._manifests), self._bytes

    def carry_out(self, plan: Plan) -> None:
        """Remove what a plan names, each record before its blobs."""
        spared: set[str] = set()
        for eviction in plan.evictions:
            # A build that used the record since then has changed its time: it is another file now.
            if self._remove(ARTIFACTS, eviction.entry.key, eviction.entry.identity):
                self._evictions.append(eviction)
                self._remove_manifests(eviction.manifests)
            else:
                spared.update(eviction.entry.blobs)
        going = [digest for eviction in plan.evictions for digest in eviction.blobs]
        for digest in (*plan.orphans, *going):
            if digest not in spared:
                self._blobs += self._remove(BLOBS, digest, self._inventory.blobs[digest])
        self._remove_manifests(plan.dangling)
        for pack in plan.packs:
            # Its builds have changed its time, as they do a record's.
            place = f"{PACKS}/{pack.pack.digest}"
            if self._remove_place(place, pack.pack.identity):
                self._packs.append(pack)
                self._remove_manifests(pack.manifests)
                with contextlib.suppress(OSError):
                    self._store.folders.unlink(place + GONE)
        self._store.relist_packs()

    def forget(self, index: Index) -> None:
        """Take what went out of the index."""
        records = [(eviction.entry.key,) for eviction in self._evictions]
        manifests = [(request,) for request in self._manifests]

        def work(database: Database) -> None:
            database.conn.executemany("DELETE FROM artifacts WHERE key = ?", records)
            database.conn.executemany("DELETE FROM variants WHERE action = ?", records)
            database.conn.executemany("DELETE FROM requests WHERE request = ?", manifests)
            # A pack may hold them too, so each is read anew.
            database.execute("UPDATE packs SET inode = -1")

        if records or manifests:
            index.write(work)

    def _remove_manifests(self, requests: Iterable[str]) -> None:
        for request in requests:
            if self._remove(MANIFESTS, request, self._inventory.manifests[request].identity):
                self._manifests.append(request)

    def _remove(self, area: str, name: str, identity: files.Identity) -> bool:
        return self._remove_place(format.relative_path(area, name), identity)

    def _remove_place(self, place: str, identity: files.Identity) -> bool:
        try:
            removed = files.remove_same(self._store.folders, place, identity)
        except OSError as error:
            self._faults.append(
                f"{self._store.folders.path(place)}: cannot be removed: {error.strerror or error}"
            )
            return False
        self._bytes += identity[2] if removed else 0
        return removed
