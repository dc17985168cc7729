"""Carry out what `cache/upkeep/evict.py` decides, and clear away what nobody needs any more."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from pallasc.cache import files, format, uses
from pallasc.cache.about import unpack_blobs
from pallasc.cache.format import ARTIFACTS, BLOBS, MANIFESTS
from pallasc.cache.index import LOCK_TIMEOUT_S, Index, open_index
from pallasc.cache.leases import Held, held_by_leases
from pallasc.cache.scan import Scan
from pallasc.cache.store import Store
from pallasc.cache.upkeep.evict import Entry, Eviction, Inventory, Manifest, Plan, decide
from pallasc.cache.upkeep.leftovers import Leftovers, clear_leftovers
from pallasc.cache.upkeep.limits import Limits, limits_from_environment
from pallasc.cache.upkeep.pins import held_by_pins
from pallasc.errors import CorruptError, ToolError

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
        plan: the decision. What a build began to use meanwhile stayed all the same.
        evictions: those of the plan that were carried out, or would be.
        records, blobs, manifests: how many files of each really went.
        freed_bytes: the size of those files.
        leftovers: what was cleared away beside them.
        names: names of kernels by action key, for those in the plan.
        warnings: what could not be looked at or removed.
    """

    dry_run: bool
    limits: Limits
    plan: Plan
    evictions: tuple[Eviction, ...]
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

    def to_json(self) -> dict[str, Any]:
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
            "kept": [one.to_json() for one in plan.kept],
            "complete": plan.complete,
            "evicted": [self._evicted(one) for one in self.evictions],
            "leftovers": self.leftovers.to_json(),
            "warnings": list(self.warnings),
        }

    def _evicted(self, one: Eviction) -> dict[str, Any]:
        return {
            "key": one.entry.key, "names": self.names.get(one.entry.key, []),
            "reason": one.reason, "bytes": one.bytes, "last_use": one.entry.last_use_ns / 1e9,
        }  # fmt: skip


def prune(
    store: Store,
    *,
    limits: Limits | None = None,
    dry_run: bool = False,
    now_ns: int | None = None,
    timeout_s: float = LOCK_TIMEOUT_S,
) -> Pruned:
    """Make a store fit its limits and clear what dead processes left in it.

    Args:
        store: the store.
        limits: `limits_from_environment()` by default.
        dry_run: only tell what would go; at most the log of uses is counted.
        now_ns: the time now.
        timeout_s: how long to wait for another process that has the index.

    Raises:
        SpecError: the environment says no size or age.
        CorruptError: something lies where a folder of the store should; nothing is touched then.
        ToolError: the store cannot be listed.
    """
    limits = limits_from_environment() if limits is None else limits
    store.folders.check()
    with open_index(store, timeout_s=timeout_s) as index:
        return _prune(store, index, limits, dry_run, time.time_ns() if now_ns is None else now_ns)


def tidy(store: Store, *, limits: Limits | None = None, now_ns: int | None = None) -> Pruned | None:
    """Prune if that was not done within the last hour; None if it was, or another process does it.

    A store that is far from its limits is not pruned, and the index not opened for it. For the end
    of a build that made something: no other process is waited for, and no fault of disk
    or index is raised.

    Raises:
        SpecError: the environment says no size or age.
    """
    limits = limits_from_environment() if limits is None else limits
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
    return sum(sizes) < limits.max_bytes


def clear(store: Store, *, dry_run: bool = False, now_ns: int | None = None) -> Pruned:
    """Remove everything but what pins name and running builds hold; statistics begin anew.

    Raises:
        CorruptError: something lies where a folder of the store should; nothing is touched then.
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
    store: Store, index: Index, limits: Limits, dry_run: bool, now_ns: int, *, clear: bool = False
) -> Pruned:
    uses.fold(store, index)
    if not dry_run:
        for one in index.refreshed.corrupt:
            store.put_away(one.area, one.name, one.reason, one.identity)
    faults = list(index.refreshed.faults)
    inventory = _inventory(store, index, faults)
    pinned, held = _held(store, now_ns, faults)
    if faults:
        inventory = replace(inventory, complete=False)
    plan = decide(inventory, limits, held, now_ns=now_ns, pinned=pinned, clear=clear)
    effect = _Effect(store, inventory, faults)
    names = _names(index, plan)
    if not dry_run:
        effect.carry_out(plan)
        effect.forget(index)
    counts = _planned(plan) if dry_run else effect.counts
    evictions = plan.evictions if dry_run else effect.evictions
    leftovers = clear_leftovers(store, limits, now_ns=now_ns, dry_run=dry_run)
    return Pruned(dry_run, limits, plan, evictions, *counts, leftovers, names, tuple(faults))


def _inventory(store: Store, index: Index, faults: list[str]) -> Inventory:
    """Return what lies in the store: records and manifests from the index, blobs from the disk."""
    scan = Scan(store.folders)
    blobs = dict(scan.area(BLOBS))
    shared = {name: name for name in blobs}  # one string for each digest, however often named
    entries = tuple(
        Entry(key, (inode, mtime_ns, size), last_use_ns,
              tuple(shared.get(name, name) for name, _ in unpack_blobs(packed)))
        for key, inode, mtime_ns, size, last_use_ns, packed in index.read(
            "SELECT key, inode, mtime_ns, bytes, last_use_ns, blobs FROM artifacts"
        )
    )  # fmt: skip
    manifests = {
        request: Manifest((inode, mtime_ns, size), action)
        for request, inode, mtime_ns, size, action in index.read(
            "SELECT request, inode, mtime_ns, bytes, action FROM requests"
        )
    }
    faults += map(str, scan.faults)
    return Inventory(entries, blobs, manifests)


def _held(store: Store, now_ns: int, faults: list[str]) -> tuple[frozenset[str], Held]:
    """Return what is pinned, and what running builds hold."""
    try:
        return held_by_pins(store), held_by_leases(store.folders, now_ns=now_ns)
    except OSError as error:
        faults.append(f"{error.filename}: cannot be read: {error.strerror or error}")
        return frozenset(), Held()


def _planned(plan: Plan) -> tuple[int, int, int, int]:
    blobs = len(plan.orphans) + sum(len(one.blobs) for one in plan.evictions)
    manifests = len(plan.dangling) + sum(len(one.manifests) for one in plan.evictions)
    return len(plan.evictions), blobs, manifests, plan.bytes_before - plan.bytes_after


def _names(index: Index, plan: Plan) -> dict[str, list[str]]:
    going = {one.entry.key for one in plan.evictions}
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
        self._manifests: list[str] = []
        self._blobs = 0
        self._bytes = 0

    @property
    def evictions(self) -> tuple[Eviction, ...]:
        """Return those that were carried out."""
        return tuple(self._evictions)

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Return how many records, blobs and manifests went, and their bytes."""
        return len(self._evictions), self._blobs, len(self._manifests), self._bytes

    def carry_out(self, plan: Plan) -> None:
        """Remove what a plan names, each record before its blobs."""
        spared: set[str] = set()
        for one in plan.evictions:
            if self._remove(ARTIFACTS, one.entry.key, one.entry.identity):
                self._evictions.append(one)
                self._remove_manifests(one.manifests)
            else:
                spared.update(one.entry.blobs)
        going = [name for one in plan.evictions for name in one.blobs]
        for name in (*plan.orphans, *going):
            if name not in spared:
                self._blobs += self._remove(BLOBS, name, self._inventory.blobs[name])
        self._remove_manifests(plan.dangling)

    def forget(self, index: Index) -> None:
        """Take what went out of the index."""
        records = [(one.entry.key,) for one in self._evictions]
        manifests = [(request,) for request in self._manifests]

        def work(database: Any) -> None:
            database.conn.executemany("DELETE FROM artifacts WHERE key = ?", records)
            database.conn.executemany("DELETE FROM variants WHERE action = ?", records)
            database.conn.executemany("DELETE FROM requests WHERE request = ?", manifests)

        if records or manifests:
            index.write(work)

    def _remove_manifests(self, requests: Iterable[str]) -> None:
        for request in requests:
            if self._remove(MANIFESTS, request, self._inventory.manifests[request].identity):
                self._manifests.append(request)

    def _remove(self, area: str, name: str, known: files.Identity) -> bool:
        place = format.relative_path(area, name)
        try:
            removed = files.remove_same(self._store.folders, place, known)
        except OSError as error:
            self._faults.append(
                f"{self._store.folders.path(place)}: cannot be removed: {error.strerror or error}"
            )
            return False
        self._bytes += known[2] if removed else 0
        return removed
