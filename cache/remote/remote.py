"""A remote store as a build uses it, and the commands for remote stores.

    remote = Remote(settings, store, namespace, tell=…)
    remote.fetch(request keys, accept)        entries missing in the local store are downloaded
    remote.offer(name of a manifest)          after each compilation, if writing is on
    stats = remote.finish()                   the rest is sent

In `Remote`, remote failures do not raise, and waiting is bounded (`session.py`). Commands wait as
long as `--timeout` allows, and fail if the remote fails.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from pallasc.cache import format
from pallasc.cache.manifests import Manifest, Trust, read_trust, set_prefix
from pallasc.cache.remote.session import FAULTS, Objects, RemoteError, Session
from pallasc.cache.remote.settings import RemoteSettings, RemoteStats
from pallasc.cache.remote.transfer import (
    ROOT,
    Accept,
    Catalog,
    Change,
    Fetch,
    PackedVariant,
    PackRow,
    Writer,
    change_catalog,
    known_catalog,
    open_remote_pack,
    pack_name,
    read_catalog,
    read_pack,
)
from pallasc.cache.store import Store
from pallasc.errors import CorruptError

MOST_PACKS = 32
"""A build that had to read from more packs sends the entries again, in fewer packs."""
GRACE_S = 24 * 3600
"""Objects that no catalog lists stay for a day: their writer may still be running."""
_USED_AGAIN_S = 24 * 3600
_PROBE = f"{ROOT}/probe"

Judge = Callable[[RemoteStats, str, Manifest], bool]
OnStep = Callable[[int, int], None]
"""Called with the number of finished variants and the total number."""


class Remote:
    """A remote store for one build; see the module.

    Args:
        settings: the remote's address, and whether the build writes to it.
        store: the local store.
        namespace: namespace of the toolchain; see `transfer.namespace_of`.
        tell: called with a warning, at most once.

    Raises:
        SpecError, ToolError: signatures are required, and a key cannot be used.
    """

    def __init__(
        self,
        settings: RemoteSettings,
        store: Store,
        namespace: str,
        *,
        tell: Callable[[str], None],
    ) -> None:
        trust = _trust(settings)
        self._session = Session(settings, is_build=True, tell=tell)
        self._writes, self._store = settings.write, store
        self._namespace = namespace
        self._catalog: Catalog | None = None
        self._fetch = Fetch(self._session, store, namespace, trust)
        self._writer: Writer | None = None

    @property
    def stats(self) -> RemoteStats:
        """Statistics so far."""
        return self._session.stats

    def fetch(self, wanted: Sequence[str], accept: Accept) -> dict[str, str]:
        """Download variants into the local store.

        Args:
            wanted: request keys, from which the names of manifests follow.
            accept: called with the name of a manifest and the manifest; returns True if all files
                that the compilation read are the same here.

        Returns:
            The action keys of variants that the local store has now, by the name of the manifest.
        """
        catalog = self._load() if wanted else None
        if catalog is None:
            return {}
        with self._session.waiting():
            found = catalog.find(set_prefix(key) for key in wanted)
        self._fetch.run(found, accept)
        names = {name for names in found.values() for name in names}
        return {name: key for name, key in self._fetch.actions.items() if name in names}

    def offer(self, name: str) -> None:
        """If writing is on, send a variant, given the name of its local manifest."""
        if self._writes:
            self._send([name])

    def finish(self) -> RemoteStats:
        """Send the rest, end all requests, and return the statistics."""
        try:
            if len(self._fetch.used) > MOST_PACKS and self._writes:
                self._send([*self._fetch.actions], again=True)  # so the next build reads few packs
            if self._writes and (self._writer or self._fetch.used or self._fetch.bad):
                self._change_catalog()
        except RemoteError as error:
            self._session.fail(error)
        finally:
            self._session.close()
        return self.stats

    def _change_catalog(self) -> None:
        catalog = self._load()
        if catalog is None:
            return
        now = int(time.time())
        stale = {row.pack for row in catalog.rows if row.used < now - _USED_AGAIN_S}
        used = dict.fromkeys((self._fetch.used & stale) - self._fetch.bad, now)
        writer = self._writer or Writer(self._session, self._namespace, ())
        writer.finish(Change(used=used, dropped=self._fetch.bad))

    def _load(self) -> Catalog | None:
        """Return the catalog; None if it cannot be read."""
        if self._catalog is None and self._session.failed is None:
            try:
                self._catalog = known_catalog(self._session, self._namespace)
            except RemoteError as error:
                self._session.fail(error)
        return None if self._session.failed else self._catalog

    def _send(self, names: Sequence[str], *, again: bool = False) -> None:
        catalog = self._load()
        if catalog is None:
            return
        if self._writer is None:
            rows = tuple(row for row in catalog.rows if row.pack not in self._fetch.bad)
            self._writer = Writer(self._session, self._namespace, Catalog(rows).names())
        for name in names:
            try:
                self._writer.add(self._store, name, again=again)
            except CorruptError as error:
                self.stats.refuse(error.message)


def _trust(settings: RemoteSettings) -> Trust | None:
    """Return the keys that must sign manifests, None if remotes need no signatures."""
    return read_trust(os.environ, required=True) if settings.signed else None


# ---- commands


def _namespaces(session: Session, names: Sequence[str] | None = None) -> Sequence[str]:
    """Return `names`, or all namespaces in the remote if it is None."""
    if names is not None:
        return names
    folders, _ = session.result(session.submit(Objects.listed, ROOT))
    return sorted(filter(format.is_name, folders))


class Transfer(NamedTuple):
    """The result of a push or pull.

    Attributes:
        moved: variants that were sent or downloaded.
        present: variants that already existed.
        left: variants that are incomplete in the local store, or that did not arrive.
        stats: requests, bytes, and rejections.
    """

    moved: int
    present: int
    left: int
    stats: RemoteStats


def push(
    settings: RemoteSettings,
    store: Store,
    names: Mapping[str, Sequence[str]],
    *,
    on_step: OnStep = lambda done, of: None,
) -> Transfer:
    """Send variants of the local store to the remote; a killed push can be repeated.

    Args:
        settings: settings of the remote; `write` is ignored.
        store: the local store.
        names: names of manifests by namespace.
        on_step: called as variants are finished.

    Raises:
        RemoteError: the remote fails.
        CorruptError: a name is invalid.
    """
    left = refused = done = 0
    total = sum(map(len, names.values()))
    with Session(settings, is_build=False) as session:
        for namespace, wanted in names.items():
            writer = Writer(session, namespace, known_catalog(session, namespace).names())
            for name in wanted:
                try:
                    left += writer.add(store, name) is None
                except CorruptError as error:
                    session.stats.refuse(error.message)
                    refused += 1
                done += 1
                on_step(done, total)
            writer.finish(Change())
        moved = session.stats.offered
        return Transfer(moved, total - moved - left - refused, left, session.stats)


def pull(
    settings: RemoteSettings,
    store: Store,
    namespaces: Sequence[str] | None = None,
    *,
    accept: Judge = lambda stats, name, manifest: True,
    on_step: OnStep = lambda done, of: None,
) -> Transfer:
    """Download all variants of the remote into the local store.

    Only required signatures and `accept` are checked here; the next build compares sources. A
    manifest that leads to an artifact in the local store is not replaced.

    Args:
        settings: settings of the remote.
        store: the local store.
        namespaces: namespaces to read; None for all, if the remote can be listed.
        accept: returns True if an entry may be used, given its name and manifest.
        on_step: called as variants are finished.

    Raises:
        RemoteError: the remote fails, or cannot be listed.
        SpecError, ToolError: signatures are required, and a key cannot be used.
        ToolError: the store cannot be written.
    """
    trust = _trust(settings)
    present = left = 0
    with Session(settings, is_build=False) as session:
        for namespace in _namespaces(session, namespaces):
            catalog = known_catalog(session, namespace)
            absent: dict[PackRow, list[str]] = {}
            for row in catalog.rows:
                names = [name.hex() for name in row.each()]
                absent[row] = [name for name in names if _is_absent(store, name)]
                present += len(names) - len(absent[row])
            total, done = sum(map(len, absent.values())), 0
            for row, names in absent.items():
                fetch = Fetch(session, store, namespace, trust)
                fetch.run({row: names} if names else {}, partial(accept, session.stats))
                left += len(names) - len(fetch.actions)
                done += len(names)
                on_step(done, total)
        return Transfer(session.stats.hits, present, left, session.stats)


def _is_absent(store: Store, name: str) -> bool:
    manifest = store.find_manifest(name)
    if manifest is None:
        return True
    # A manifest without an action key is not a variant's; no remote manifest replaces it.
    return bool(manifest.action) and store.get_artifact(manifest.action) is None


def probe(settings: RemoteSettings, namespace: str) -> tuple[str, str]:
    """Read a catalog, and write a small object if writing is on; wait as a build does.

    Returns:
        The reasons why the remote cannot be read and cannot be written; each is "" if it can.
    """
    done = False
    try:
        with Session(settings, is_build=True) as session:
            known_catalog(session, namespace)
            done = True
            if settings.write:
                session.result(session.submit(Objects.put, _PROBE, b"pallasc\n"))
    except RemoteError as error:
        text = f"{error.message}. {error.hint}"
        return ("", text) if done else (text, "")
    return "", ""


class NamespaceStats(NamedTuple):
    """Statistics of a namespace.

    Attributes:
        namespace: its name.
        variants: number of distinct request keys.
        packs: number of its packs.
        bytes: size of its packs.
        oldest_use_s, newest_use_s: last uses of its packs, seconds since 1970; 0 without packs.
    """

    namespace: str
    variants: int
    packs: int
    bytes: int
    oldest_use_s: int
    newest_use_s: int


def survey(
    settings: RemoteSettings, namespaces: Sequence[str] | None = None
) -> list[NamespaceStats]:
    """Return statistics of some or all namespaces of a remote.

    Args:
        settings: the remote.
        namespaces: their names; None selects all, which requires a remote that can be listed.

    Raises:
        RemoteError: the remote fails, or cannot be listed.
    """
    found = []
    with Session(settings, is_build=False) as session:
        for namespace in _namespaces(session, namespaces):
            catalog = known_catalog(session, namespace)
            variants = len({set_prefix(name.hex()) for name in catalog.names()})
            size = sum(row.size for row in catalog.rows)
            used = [row.used for row in catalog.rows] or [0]
            packs = len(catalog.rows)
            found.append(NamespaceStats(namespace, variants, packs, size, min(used), max(used)))
    return found


def verify(settings: RemoteSettings, namespaces: Sequence[str] | None = None) -> list[str]:
    """Read everything that catalogs name; return the faults, [] if there are none.

    Raises:
        RemoteError: the remote fails, or cannot be listed.
    """
    with Session(settings, is_build=False) as session:
        names = _namespaces(session, namespaces)
        return [f"{name}: {fault}" for name in names for fault in _faults(session, name)]


def _faults(session: Session, namespace: str) -> Iterator[str]:
    try:
        rows = read_catalog(session, namespace)[0].rows
    except CorruptError as error:
        yield error.message
        return
    for row in rows:
        reading = read_pack(session, namespace, row)
        session.first([reading])
        try:
            pack = open_remote_pack(row, reading.result()[0])
            for packed in row.each():
                PackedVariant.read(pack, packed.hex())
            for entry in pack.check():
                format.check_file(*entry)
        except (CorruptError, RemoteError) as error:
            if isinstance(error, RemoteError) and error.failure not in FAULTS:
                raise
            yield f"pack {row.pack}: {error.message}"


class Pruned(NamedTuple):
    """Objects that were removed from a remote, or would be.

    Attributes:
        packs: packs that were unused for too long, or removed to meet the maximum size.
        unknown: objects that no catalog lists.
        bytes: total size of both.
        kept_packs, kept_bytes: packs that stay.
        unread: damaged catalogs; their namespaces are not changed.
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
) -> Pruned:
    """Remove packs unused for too long, then the least recently used until the rest fit.

    Catalogs change before anything is deleted, so a reader sees at worst a miss.

    Raises:
        RemoteError: the remote fails, or cannot be listed.
    """
    now = time.time()
    unread: list[str] = []
    catalogs: dict[str, Catalog] = {}
    unknown: dict[str, int] = {}
    with Session(settings, is_build=False) as session:
        for namespace in _namespaces(session):
            try:
                catalogs[namespace] = read_catalog(session, namespace)[0]
            except CorruptError as error:
                unread.append(f"namespace {namespace} stays as it is: {error.message}")
        rows = [row for catalog in catalogs.values() for row in catalog.rows]
        old = _old(rows, now, max_age_s, max_bytes)
        change = Change(dropped=frozenset(row.pack for row in old))
        gone = []
        for namespace, catalog in catalogs.items():
            names = [pack_name(namespace, row.pack) for row in catalog.rows if row in old]
            gone += names
            if names and not dry_run:
                catalog = change_catalog(session, namespace, change)
            named = {*names, *(pack_name(namespace, row.pack) for row in catalog.rows)}
            listing = session.submit(Objects.listed, f"{ROOT}/{namespace}/packs")
            _, listed = session.result(listing)
            for name, size, modified_s in listed:
                if name not in named and modified_s < now - GRACE_S:
                    unknown[name] = size
        for name in [] if dry_run else [*gone, *unknown]:
            session.result(session.submit(Objects.delete, name))
    freed = sum(row.size for row in old)
    kept = sum(row.size for row in rows) - freed
    removed = freed + sum(unknown.values())
    return Pruned(len(old), len(unknown), removed, len(rows) - len(old), kept, tuple(unread))


def _old(
    rows: Sequence[PackRow], now_s: float, max_age_s: float | None, max_bytes: int | None
) -> set[PackRow]:
    """Return the packs to remove: those unused for too long, then the least recently used."""
    size = sum(row.size for row in rows)
    old = set()
    for row in sorted(rows, key=lambda row: (row.used, row.pack)):
        too_old = max_age_s is not None and row.used < now_s - max_age_s
        if too_old or (max_bytes is not None and size > max_bytes):
            old.add(row)
            size -= row.size
    return old
