"""Write variants to a remote: packs as they fill, then the catalog; and prune what is not used."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import io
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

from pallasc.cache import format
from pallasc.cache.pack_writer import PackWriter
from pallasc.cache.packs import Entry
from pallasc.cache.remote.catalog import (
    MAX_CATALOG_BYTES,
    ROOT,
    Catalog,
    Change,
    PackRow,
    catalog_name,
    pack_name,
)
from pallasc.cache.remote.objects import Failure, RemoteError
from pallasc.cache.remote.read import known_catalog, read_catalog
from pallasc.cache.remote.session import Session, command_session
from pallasc.cache.remote.settings import RemoteSettings, RemoteStats
from pallasc.cache.store import Store
from pallasc.cache.transfer import entries_of_variant
from pallasc.errors import CorruptError

PACK_BYTES = 4 * 2**20
MAX_VARIANT_BYTES = 7 * 2**20
"""A larger variant is not sent; no kernel comes near."""
MOST_PACKS = 32
"""A build that had to read from more packs sends what it read again, in few packs."""
GRACE_S = 24 * 3600
"""Objects that no catalog names stay for a day: their writer may still be at work."""
_TAIL_BYTES = 3 * 2**20
_UNDER_WAY = 4
_ATTEMPTS = 10
_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_USED_AGAIN_S = 24 * 3600
OnStep = Callable[[int, int], None]
"""Is called with the number of variants that are done, and of all."""


class Transfer(NamedTuple):
    """The result of a push or pull.

    Attributes:
        moved: variants that were sent or brought.
        present: variants that were there before.
        left: variants that the local store lacks a part of, or that did not arrive.
        stats: requests, bytes and refusals.
    """

    moved: int
    present: int
    left: int
    stats: RemoteStats


class Writer:
    """Collects variants in packs, sends these, and at the end changes the catalog.

    Args:
        session: the remote.
        namespace: of the toolchain.
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
        self._tail: list[Entry] = []
        self._names: list[bytes] = []

    def add(self, store: Store, name: str) -> bool | None:
        """Send a variant of a store; return False if the remote has it, None if the store lacks it.

        Raises:
            CorruptError: it is damaged or too large.
        """
        packed = bytes.fromhex(name)
        if packed in self._known:
            return False
        entries = entries_of_variant(store, name)
        if entries is None:
            return None
        size = sum(len(entry.data) for entry in entries)
        if size > MAX_VARIANT_BYTES:
            raise CorruptError(f"manifest {name}: {size:,} bytes are too many for a remote store")
        self._known.add(packed)
        self._pack.add([entry for entry in entries if entry.area == format.BLOBS])
        self._tail += [entry for entry in entries if entry.area != format.BLOBS]
        self._names.append(packed)
        tail = sum(len(entry.data) for entry in self._tail)
        if self._pack.bytes_so_far >= PACK_BYTES or tail >= _TAIL_BYTES:
            self.flush()
        return True

    def flush(self) -> None:
        """Send the pack that is being filled."""
        if not self._names:
            return
        offset = self._pack.end_frame()
        self._pack.add(self._tail)
        digest = self._pack.close().digest
        data = self._out.getvalue()
        tail = hashlib.sha256(memoryview(data)[offset:]).hexdigest()
        names, now = b"".join(self._names), int(time.time())
        row = PackRow(digest, tail, len(data), offset, now, names)
        self._open()
        under_way = [future for future, _ in self._sent if not future.done()]
        if len(under_way) >= _UNDER_WAY:
            with self._session.waiting():
                self._session.first(under_way)
        put = self._session.objects.put(pack_name(self._namespace, digest), data)
        self._sent.append((self._session.submit(put), row))

    def finish(self, change: Change) -> int:
        """Send what is left and change the catalog; return the number of variants sent.

        Args:
            change: what else to change.

        Raises:
            RemoteError: the remote fails, or time is over.
        """
        self.flush()
        rows = []
        for future, row in self._sent:
            if self._session.first([future]) is None:
                break
            try:
                future.result()
            except RemoteError as error:
                self._session.failed_with(error)
                continue
            rows.append(row)
            self._session.earn(len(row.names) // 32)
        if self._session.failed is not None:
            raise self._session.failed
        change = change._replace(added=tuple(reversed(rows)))
        if change != Change():
            self._session.result(change_catalog(self._session, self._namespace, change))
        return sum(len(row.names) // 32 for row in rows)


async def change_catalog(session: Session, namespace: str, change: Change) -> Catalog:
    """Change a catalog, whoever else changes it; return the new one.

    Raises:
        RemoteError: it cannot be written, or other writers change it all the time.
    """
    name = catalog_name(namespace)
    async with _locked(session, namespace):
        for attempt in range(_ATTEMPTS):
            try:
                catalog, version = await read_catalog(session, namespace)
            except CorruptError:
                catalog = Catalog()
                version = (await session.objects.get(name, limit=4 * MAX_CATALOG_BYTES)).version
            new = catalog.changed(change)
            if new == catalog:
                return catalog
            if await session.objects.put_if(name, new.encode(), version):
                # Some servers ignore the condition, and some have none: see if the change stayed.
                with contextlib.suppress(CorruptError):
                    written, _ = await read_catalog(session, namespace)
                    if written.has(change):
                        return written
            await asyncio.sleep(random.uniform(0, 0.02 * 2 ** min(attempt, 5)))
    text = f"{session.stats.url}/{name}: other writers change it all the time"
    raise RemoteError(text, Failure.BROKEN)


@contextlib.asynccontextmanager
async def _locked(session: Session, namespace: str) -> AsyncIterator[None]:
    """Keep out other writers of a folder; servers have conditions instead, or nothing."""
    address = session.objects.address
    if address.scheme != "file":
        yield
        return
    folder = Path(address.path, ROOT, namespace)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / "lock", _LOCK_FLAGS, 0o666)
    except OSError as error:
        problem = error.strerror or "it cannot be locked"
    else:
        problem = ""
    if problem:
        raise RemoteError(f"{session.stats.url}: {problem}", Failure.REFUSED)
    try:
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            await asyncio.sleep(0.01)
        yield
    finally:
        os.close(lock)


def use_change(catalog: Catalog, used: Collection[str], bad: Collection[str]) -> Change:
    """Return the change for packs that were read today, and for packs gone or damaged."""
    now = int(time.time())
    stale = {row.pack for row in catalog.rows if row.used < now - _USED_AGAIN_S}
    read = {pack: now for pack in sorted(used) if pack in stale and pack not in bad}
    return Change(used=read, dropped=tuple(sorted(bad)))


def push(
    settings: RemoteSettings,
    store: Store,
    names: Mapping[str, Sequence[str]],
    *,
    environ: Mapping[str, str] = os.environ,
    on_step: OnStep = lambda done, of: None,
) -> Transfer:
    """Send variants of the local store to the remote; a killed push can be started again.

    Args:
        settings: of the remote; `write` does not matter.
        store: the local store.
        names: names of manifests by namespace.
        environ: where credentials are looked up.
        on_step: is called as variants are done.

    Raises:
        RemoteError: the remote fails.
        CorruptError: a name is not one.
    """
    moved = left = done = 0
    total = sum(map(len, names.values()))
    with command_session(settings, environ) as session:
        for namespace, wanted in names.items():
            writer = Writer(session, namespace, known_catalog(session, namespace).names())
            for name in wanted:
                try:
                    left += writer.add(store, name) is None
                except CorruptError as error:
                    session.stats.refuse(error.message)
                    left += 1
                done += 1
                on_step(done, total)
            moved += writer.finish(Change())
        session.stats.offered = moved
        return Transfer(moved, total - moved - left, left, session.stats)


async def _namespaces(session: Session) -> list[str]:
    try:
        return sorted(filter(format.is_name, await session.objects.folders(ROOT)))
    except RemoteError as error:
        if error.failure is Failure.MISSING:
            return []
        raise


def namespaces_of(session: Session) -> list[str]:
    """Return the namespaces of a remote.

    Raises:
        RemoteError: it cannot be listed.
    """
    return session.result(_namespaces(session))


class Pruned(NamedTuple):
    """What went from a remote, or would go.

    Attributes:
        packs: packs that were too old or over the size.
        unknown: objects that no catalog names.
        bytes: of both.
        kept_packs, kept_bytes: packs that stay.
        unread: catalogs that are damaged; their namespaces stay as they are.
    """

    packs: int
    unknown: int
    bytes: int
    kept_packs: int
    kept_bytes: int
    unread: tuple[str, ...] = ()


def prune(
    settings: RemoteSettings,
    *,
    max_age_s: float | None = None,
    max_bytes: int | None = None,
    dry_run: bool = False,
    environ: Mapping[str, str] = os.environ,
    now_s: float | None = None,
) -> Pruned:
    """Remove packs that were not used for long, and the longest unused ones over a size.

    Catalogs change before anything is deleted, so a reader finds a miss at worst.

    Raises:
        RemoteError: the remote fails, or cannot be listed.
    """
    now = time.time() if now_s is None else now_s
    unread: list[str] = []
    catalogs: dict[str, Catalog] = {}
    with command_session(settings, environ) as session:
        for namespace in namespaces_of(session):
            try:
                catalogs[namespace] = session.result(read_catalog(session, namespace))[0]
            except CorruptError as error:
                unread.append(f"namespace {namespace} stays as it is: {error.message}")
        rows = [(namespace, row) for namespace, each in catalogs.items() for row in each.rows]
        old = _old(rows, now, max_age_s, max_bytes)
        gone = [(namespace, row) for namespace, row in rows if row.pack in old]
        unknown = {}
        for namespace, catalog in catalogs.items():
            if not dry_run and any(row.pack in old for row in catalog.rows):
                change = Change(dropped=frozenset(old))
                catalog = session.result(change_catalog(session, namespace, change))
            named = {pack_name(namespace, row.pack) for row in catalog.rows}
            named |= {pack_name(namespace, digest) for digest in old}
            folder = f"{ROOT}/{namespace}/packs"
            for item in session.result(session.objects.listed(folder)):
                if item.name not in named and item.modified_s < now - GRACE_S:
                    unknown[item.name] = item.size
        names = [pack_name(namespace, row.pack) for namespace, row in gone]
        for name in [] if dry_run else [*names, *unknown]:
            session.result(session.objects.delete(name))
    kept = [row.size for _, row in rows if row.pack not in old]
    freed = sum(row.size for _, row in gone) + sum(unknown.values())
    return Pruned(len(gone), len(unknown), freed, len(kept), sum(kept), tuple(unread))


def _old(
    rows: Sequence[tuple[str, PackRow]],
    now_s: float,
    max_age_s: float | None,
    max_bytes: int | None,
) -> set[str]:
    """Return the packs that have to go: the too old ones, then the longest unused ones."""
    order = sorted((row.used, row.pack, row.size) for _, row in rows)
    left = sum(size for *_, size in order)
    old = set()
    for used, pack, size in order:
        too_old = max_age_s is not None and used < now_s - max_age_s
        if too_old or (max_bytes is not None and left > max_bytes):
            old.add(pack)
            left -= size
    return old
