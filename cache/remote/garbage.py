"""Throw away what is old or too much: for stores whose server has no life-cycle rule.

A pack is the unit; its time is that of its last writing or use by a writer. Catalogs change before
anything is deleted, so that a reader finds a miss at worst. What no catalog leads to stays for a
day, because a writer sends packs before it makes them known.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pallasc.cache.remote import layout
from pallasc.cache.remote.catalog import Catalog, Change, Sized
from pallasc.cache.remote.failure import Failure, RemoteError
from pallasc.cache.remote.guard import Guard
from pallasc.cache.remote.index import Index, joined
from pallasc.cache.remote.reading import Known, read_catalog
from pallasc.cache.remote.settings import RemoteSettings
from pallasc.cache.remote.survey import read_index
from pallasc.cache.remote.transfer import namespaces_of, opened
from pallasc.cache.remote.writing import write_catalog
from pallasc.errors import CorruptError

GRACE_S = 24 * 3600


class Collected(NamedTuple):
    """What went, or would go.

    Attributes:
        packs: that were too old or too much.
        unknown: objects that no catalog leads to.
        bytes: of both.
        kept_packs, kept_bytes: of packs that stay.
        unread: what could not be read, and why. Where a catalog is among it, its namespace stays
            as it is, and so does what no other catalog leads to; a damaged index goes.
    """

    packs: int
    unknown: int
    bytes: int
    kept_packs: int
    kept_bytes: int
    unread: tuple[str, ...] = ()


def collect(
    settings: RemoteSettings,
    *,
    max_age_s: float | None = None,
    max_bytes: int | None = None,
    dry_run: bool = False,
    environ: Mapping[str, str] = os.environ,
    now_s: float | None = None,
) -> Collected:
    """Throw away packs that were not used for long, and the longest unused ones over a size.

    Args:
        settings: of the remote; `write` is not looked at.
        max_age_s: since the last use.
        max_bytes: of all packs together.
        dry_run: change nothing.
        environ: where credentials are looked up.
        now_s: the time, in seconds since 1970.

    Raises:
        RemoteError: the remote fails, or can neither list nor delete.
    """
    now = time.time() if now_s is None else now_s
    with opened(settings, environ) as guard:
        catalogs, unread = _catalogs(guard)
        packs = _packs(catalog for catalog, _ in catalogs.values())
        old = choose(packs, now_s=now, max_age_s=max_age_s, max_bytes=max_bytes)
        if not dry_run:
            for name, (catalog, version) in catalogs.items():
                if old & catalog.packs.keys():
                    unread += _forget(guard, name, Known(catalog, version), old, int(now))
        gone = {layout.pack_name(digest): packs[digest][0] for digest in sorted(old)}
        unknown = _unknown(guard, now, gone)
        for name in [] if dry_run else [*gone, *unknown]:
            guard.delete(name)
        kept = [size for digest, (size, _) in packs.items() if digest not in old]
        freed = sum(gone.values()) + sum(unknown.values())
        reasons = tuple(dict.fromkeys(unread))
        return Collected(len(old), len(unknown), freed, len(kept), sum(kept), reasons)


Read = dict[str, tuple[Catalog, str | None]]


def _catalogs(guard: Guard) -> tuple[Read, list[str]]:
    """Return catalogs and their versions by namespace, and which are damaged, with the reason."""
    found: Read = {}
    unread: list[str] = []
    for name in namespaces_of(guard):
        try:
            found[name] = read_catalog(guard, name, strict=True)
        except CorruptError as error:
            unread.append(f"namespace {name} stays as it is: {error.message}")
    return found, unread


def _packs(catalogs: Iterable[Catalog]) -> dict[str, Sized]:
    """Return all packs of some catalogs with the latest time of each."""
    packs: dict[str, Sized] = {}
    for catalog in catalogs:
        for digest, (size, used) in catalog.packs.items():
            packs[digest] = (size, max(used, packs.get(digest, (0, 0))[1]))
    return packs


def choose(
    packs: Mapping[str, Sized],
    *,
    now_s: float,
    max_age_s: float | None = None,
    max_bytes: int | None = None,
) -> set[str]:
    """Return the packs that have to go: the too old ones, then the longest unused ones."""
    order = sorted(packs, key=lambda digest: (packs[digest][1], digest))
    old = {d for d in order if max_age_s is not None and packs[d][1] < now_s - max_age_s}
    left = sum(packs[digest][0] for digest in order if digest not in old)
    for digest in order:
        if max_bytes is None or left <= max_bytes:
            break
        if digest not in old:
            old.add(digest)
            left -= packs[digest][0]
    return old


def _forget(guard: Guard, namespace: str, known: Known, old: set[str], now: int) -> list[str]:
    """Write a catalog and an index that do not need these packs; return what was damaged.

    Raises:
        RemoteError: an index cannot be read, which may be there.
    """
    found: list[Index] = []
    damaged = []
    for digest in known.catalog.newest():
        try:
            found.append(read_index(guard, namespace, digest))
        except CorruptError as error:
            damaged.append(f"index {digest} of namespace {namespace} is gone: {error.message}")
        except RemoteError as error:
            if error.failure is not Failure.MISSING:
                raise
    new: dict[str, Sized] = {}
    for index, data in _encoded([index.without_packs(old) for index in reversed(found)]):
        needs = {layout.pack_name(pack): size for pack, size in index.packs.items()}
        guard.put(layout.index_name(namespace, layout.sha256(data)), data, needs=needs)
        new[layout.sha256(data)] = (len(data), now)
    change = Change(
        indexes=new,
        dropped_indexes=frozenset(known.catalog.indexes.keys() - new.keys()),
        dropped_packs=frozenset(old & known.catalog.packs.keys()),
    )
    write_catalog(guard, namespace, change, known)
    return damaged


def _encoded(indexes: Sequence[Index]) -> list[tuple[Index, bytes]]:
    """Return one index for several, oldest first, and its bytes; more where one is too large."""
    left = [index for index in indexes if index.requests or index.actions]
    try:
        whole = [joined(left[::-1])] if left else []
        return [(index, index.encode()) for index in whole]
    except CorruptError:
        return [(index, index.encode()) for index in left]


def _unknown(guard: Guard, now_s: float, gone: Mapping[str, int]) -> dict[str, int]:
    """Return the objects that no catalog leads to any more and that are older than a day."""
    items = guard.list(f"{layout.ROOT}/")
    catalogs, unread = _catalogs(guard)
    if unread:
        return {}  # what a damaged catalog leads to is not known
    needed = set(gone)
    for namespace, (catalog, _) in catalogs.items():
        needed.add(layout.catalog_name(namespace))
        needed |= {layout.pack_name(digest) for digest in catalog.packs}
        needed |= {layout.index_name(namespace, digest) for digest in catalog.indexes}
        needed |= {layout.costs_name(namespace, digest) for digest in catalog.costs}
    return {
        item.name: item.size
        for item in items
        if item.name not in needed and item.modified_s < now_s - GRACE_S
    }
