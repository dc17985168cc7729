"""Pruning: carries out the decision of `evict.decide`, and removes files no longer needed."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from pallasc.cache import files, format, uses
from pallasc.cache.evict import Eviction, Limits, Plan, decide, read_limits
from pallasc.cache.format import ARTIFACTS, BLOBS, MANIFESTS, PACKS
from pallasc.cache.inventory import INDEX, Inventory, Scan, take_inventory
from pallasc.cache.pack_writer import PackWriter
from pallasc.cache.packs import open_stored
from pallasc.cache.store import Store
from pallasc.errors import CorruptError, ToolError

TIDY_EVERY_S = 3600.0
MOST_PACKS = 32
"""Packs are merged if there are more than this."""
MAX_MERGED_BYTES = 64 * 2**20
"""Maximum size of a merged pack: it is evicted whole, so it must not be a large part of a store."""
_TIDIED = "stat/tidied"


@dataclass(slots=True)
class Leftovers:
    """Numbers and sizes of leftover files that were removed, or would be."""

    temporaries: int = 0
    leases: int = 0
    locks: int = 0
    quarantined: int = 0
    bytes: int = 0


@dataclass(slots=True)
class Pruned:
    """Result of pruning.

    Attributes:
        dry_run: nothing was changed.
        limits: the limits.
        plan: the decision. Files that a build used after the decision were kept.
        evictions: evictions of the plan that were carried out, or would be.
        records, blobs, manifests: number of removed files of each, not counting files in packs.
        freed_bytes: size of these files and packs.
        leftovers: other files that were removed.
        names: names of kernels by action key, for the records in the plan.
        warnings: files that could not be inspected or removed.
    """

    dry_run: bool
    limits: Limits
    plan: Plan
    names: dict[str, list[str]]
    warnings: list[str]
    evictions: list[Eviction] = field(default_factory=list)
    blobs: int = 0
    manifests: int = 0
    freed_bytes: int = 0
    leftovers: Leftovers = field(default_factory=Leftovers)

    @property
    def records(self) -> int:
        """The number of removed records."""
        return sum(not eviction.unit.is_pack for eviction in self.evictions)

    @property
    def excess_bytes(self) -> int:
        """Bytes by which the store still exceeds its limit."""
        limit, left = self.limits.max_bytes, self.plan.bytes_before - self.freed_bytes
        return 0 if limit is None else max(0, left - limit)

    def to_json(self) -> dict[str, object]:
        """Return it as JSON."""
        evicted, packs = [], []
        for unit, reason, size, *_ in self.evictions:
            figures = {"reason": reason, "bytes": size, "last_use": unit.identity[1] / 1e9}
            if unit.is_pack:
                packs.append({"digest": unit.name, "records": len(unit.keys), **figures})
            else:
                names = self.names.get(unit.name, [])
                evicted.append({"key": unit.name, "names": names, **figures})
        return {
            "dry_run": self.dry_run,
            "limit_bytes": self.limits.max_bytes,
            "limit_age_s": self.limits.max_age_s,
            "bytes_before": self.plan.bytes_before,
            "bytes_after": self.plan.bytes_before - self.freed_bytes,
            "excess_bytes": self.excess_bytes,
            "records": self.records,
            "blobs": self.blobs,
            "manifests": self.manifests,
            "held": self.plan.held,
            "complete": self.plan.complete,
            "evicted": evicted,
            "packs": packs,
            "leftovers": asdict(self.leftovers),
            "warnings": self.warnings,
        }


def prune(
    store: Store,
    *,
    limits: Limits | None = None,
    keep: frozenset[str] = frozenset(),
    dry_run: bool = False,
    now_ns: int | None = None,
) -> Pruned:
    """Make a store fit its limits and remove leftovers of dead processes.

    Args:
        store: the store.
        limits: `read_limits()` by default.
        keep: action keys of artifacts to keep.
        dry_run: only report what would be removed.
        now_ns: the current time.

    Raises:
        SpecError: an environment variable is not a size or age.
        CorruptError: something replaces a folder of the store; nothing is changed.
        ToolError: the store cannot be listed.
    """
    limits = read_limits() if limits is None else limits
    store.folders.check()
    now_ns = time.time_ns() if now_ns is None else now_ns
    inventory = take_inventory(store, repair=not dry_run)
    held = uses.Held()
    try:
        held = uses.held_by_leases(store.folders, now_ns=now_ns)
    except OSError as error:
        inventory.faults.append(f"{error.filename}: cannot be read: {error.strerror or error}")
    held = held._replace(keys=held.keys | keep)
    plan = decide(inventory, limits, held, now_ns=now_ns)
    pruned = Pruned(dry_run, limits, plan, _names(inventory, plan), inventory.faults)
    _carry_out(store, inventory, pruned)
    pruned.leftovers = _sweep(store, limits, now_ns, dry_run)
    return pruned


def clear(store: Store, *, dry_run: bool = False, now_ns: int | None = None) -> Pruned:
    """Remove everything except files that running builds hold, and reset statistics.

    Raises:
        CorruptError, ToolError: as for `prune`.
    """
    # One nanosecond later, so that files published at this moment count as old.
    now_ns = (time.time_ns() if now_ns is None else now_ns) + 1
    nothing = Limits(max_bytes=0, max_age_s=0.0, grace_s=0.0, quarantine_s=0.0, clear=True)
    pruned = prune(store, limits=nothing, dry_run=dry_run, now_ns=now_ns)
    if not dry_run:
        for place in (INDEX, uses.USES):
            with contextlib.suppress(OSError):
                store.folders.unlink(place)
    return pruned


def tidy(
    store: Store,
    *,
    limits: Limits | None = None,
    keep: frozenset[str] = frozenset(),
    now_ns: int | None = None,
) -> Pruned | None:
    """Prune unless that was done within the last hour; return None if nothing had to be done.

    This runs at the end of a build that added something. A store that is certainly below its limits
    is not read. Disk errors are not raised.

    Args:
        store: the store.
        limits: `read_limits()` by default.
        keep: action keys of artifacts to keep: the ones that the build added or used.
        now_ns: the current time.

    Raises:
        SpecError: an environment variable is not a size or age.
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
            store.folders.rename(place, _TIDIED)
        if store.packed is not None:
            merge_packs(store)
        uses.shorten(store)
        if not _fits(store, limits):
            return prune(store, limits=limits, keep=keep, now_ns=now_ns)
    return None


def _fits(store: Store, limits: Limits) -> bool:
    """Return True if a store is certainly below its limits, by its file sizes alone."""
    if limits.max_age_s is not None:
        return False
    if limits.max_bytes is None:
        return True
    scan = Scan(store.folders)
    listed = [seen for area in (BLOBS, ARTIFACTS, MANIFESTS) for _, seen in scan.area(area)]
    listed += [seen for _, seen in scan.packs()]
    return sum(seen[2] for seen in listed) < limits.max_bytes


def _names(inventory: Inventory, plan: Plan) -> dict[str, list[str]]:
    going = {eviction.unit.name for eviction in plan.evictions}
    variants = inventory.variants(going)
    return {key: sorted({about.name for about in of}) for key, of in variants.items()}


def _carry_out(store: Store, inventory: Inventory, pruned: Pruned) -> None:
    """Remove the files of the plan, each record before its blobs, and count them.

    A file that a build has used since the decision has a different time, and stays.
    """
    plan = pruned.plan

    def remove(place: str, identity: files.Identity) -> bool:
        try:
            gone = pruned.dry_run or files.remove_same(store.folders, place, identity)
        except OSError as error:
            path = store.folders.path(place)
            pruned.warnings.append(f"{path}: cannot be removed: {error.strerror or error}")
            return False
        pruned.freed_bytes += identity[2] if gone else 0
        return gone

    spared: set[str] = set()
    for eviction in plan.evictions:
        unit = eviction.unit
        place = format.relative_path(ARTIFACTS, unit.name)
        if unit.is_pack:
            place = f"{PACKS}/{unit.name}"
        if not remove(place, unit.identity):
            spared.update(unit.keys, unit.blobs)
            continue
        pruned.evictions.append(eviction)
    for name in plan.orphans:
        if name not in spared:
            pruned.blobs += remove(format.relative_path(BLOBS, name), inventory.blobs[name])
    for found in map(inventory.manifests.__getitem__, plan.dangling):
        if found.facts.action not in spared:
            pruned.manifests += remove(format.relative_path(MANIFESTS, found.name), found.identity)
    store.relist_packs()


def _sweep(store: Store, limits: Limits, now_ns: int, dry_run: bool) -> Leftovers:
    """Remove, or only count, leftovers of dead processes, and old files in the quarantine."""
    folders, left = store.folders, Leftovers()
    quarantined_ns = now_ns - round(limits.quarantine_s * 1e9)

    def is_over(folder: str, name: str, status: os.stat_result) -> bool:
        if folder == files.QUARANTINE:
            # Quarantining sets the change time; the modification time is older.
            return status.st_ctime_ns <= quarantined_ns
        return files.is_over(name, status.st_mtime_ns, now_ns=now_ns)

    for folder in (files.TEMPORARY, uses.LEASES, files.QUARANTINE, files.LOCKS):
        names: list[str] = []
        with contextlib.suppress(OSError):
            names = folders.names(folder)
        for name in names:
            place = f"{folder}/{name}"
            with contextlib.suppress(OSError):
                if folder == files.LOCKS:
                    left.locks += files.is_free(folders, place, remove=not dry_run)
                    continue
                status = folders.status(place)
                if is_over(folder, name, status):
                    if stat.S_ISDIR(status.st_mode) and not dry_run:
                        folders.remove_tree(place)
                    elif not dry_run:
                        folders.unlink(place)
                    left.bytes += status.st_size
                    left.temporaries += folder == files.TEMPORARY
                    left.leases += folder == uses.LEASES
                    left.quarantined += folder == files.QUARANTINE
    return left


Listed = tuple[str, files.Identity]


def merge_packs(store: Store, *, most: int | None = None) -> int:
    """Merge small packs if there are more than `most`, by default `MOST_PACKS`.

    Packs with successive times of last use are merged, and the result gets the latest of their
    times, so files that a running build holds stay held. A damaged pack is not changed.

    Returns:
        The number of packs that were replaced.

    Raises:
        OSError: the disk fails; even then, every file is still in a pack.
    """
    packs = list(Scan(store.folders).packs())
    if len(packs) <= (MOST_PACKS if most is None else most):
        return 0
    small = [pack for pack in packs if pack[1][2] <= MAX_MERGED_BYTES // 2]
    small.sort(key=lambda pack: (pack[1][1], pack[0]), reverse=True)
    merged = size = 0
    group: list[Listed] = []
    for pack in small:
        if size + pack[1][2] > MAX_MERGED_BYTES:
            merged += _merge(store, group)
            group, size = [], 0
        group.append(pack)
        size += pack[1][2]
    merged += _merge(store, group)
    store.relist_packs()
    return merged


def _merge(store: Store, group: Sequence[Listed]) -> int:
    """Merge several packs into one, then remove them; return how many were removed."""
    out = io.BytesIO()
    writer = PackWriter(out)
    copied = [listed for listed in group if _copy(store, listed[0], writer)]
    if len(copied) < 2:
        return 0
    digest = writer.close().digest
    with files.temporary(store.folders, out.getvalue()) as place:
        store.folders.touch(place, time_ns=max(identity[1] for _, identity in copied))
        files.publish_first(store.folders, place, f"{PACKS}/{digest}")
    removed = 0
    for name, identity in copied:
        place = f"{PACKS}/{name}"
        # If a build has started to use the pack, the pack's time has changed, and the pack stays.
        removed += name != digest and files.remove_same(store.folders, place, identity)
    return removed


def _copy(store: Store, digest: str, writer: PackWriter) -> bool:
    """Copy the frames of a pack; return False if it is damaged."""
    with contextlib.suppress(CorruptError, OSError):
        pack = open_stored(store.folders, digest)
        for _ in pack.check():
            pass
        writer.copy(pack, pack.has)
        return True
    return False
