"""A remote store behind the local one, as a build uses it: read through, written behind.

    remote = Remote.open(settings, store, tell=…)
    remote.prepare(namespace)                 reading of catalog and indexes begins
    remote.fetch(request keys, accept)        what the local store lacks arrives there
    remote.offer(request key)                 after each compilation, where writing is on
    stats = remote.finish()                   what is left is sent

Nothing here raises for what a remote does, and waiting is bounded (`cache/remote/guard.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace

from pallasc.cache.entries import entries_of_variant
from pallasc.cache.remote import layout
from pallasc.cache.remote.failure import RemoteError
from pallasc.cache.remote.fetching import Accept, Fetch
from pallasc.cache.remote.guard import BUILD, Guard, Limits
from pallasc.cache.remote.objects import OnBytes
from pallasc.cache.remote.opening import open_guard, trust_of
from pallasc.cache.remote.reading import FrameReader, Known, read_known, read_named
from pallasc.cache.remote.settings import RemoteSettings
from pallasc.cache.remote.stats import RemoteStats
from pallasc.cache.remote.writing import MOST_PACKS, Writer, group_of
from pallasc.cache.signing import Trust
from pallasc.cache.store import Store
from pallasc.errors import CorruptError

Tell = Callable[[str], None]
_WORTH_OF_COSTS = 40
"""Waiting for a snapshot of costs may take as long as for so many variants."""
_REQUEST_S = 10.0
"""A request of a build that takes longer is ended, long after the build has gone on without it."""


class Remote:
    """A remote store for one build; see the module. `stats` may be read at any time."""

    def __init__(
        self, settings: RemoteSettings, store: Store, guard: Guard, trust: Trust | None, tell: Tell
    ) -> None:
        self.settings = settings
        self.stats = guard.stats
        self._store, self._guard, self._trust, self._tell = store, guard, trust, tell
        self._namespace = ""
        self._loading: Future[Known] | None = None
        self._known: Known | None = None
        self._writer: Writer | None = None
        self._waiting: list[str] = []
        self._brought: list[str] = []
        self._readers: list[FrameReader] = []
        self._costs: dict[str, bytes] = {}
        self._told = False

    @classmethod
    def open(
        cls,
        settings: RemoteSettings,
        store: Store,
        *,
        tell: Tell,
        environ: Mapping[str, str] = os.environ,
        limits: Limits = BUILD,
    ) -> Remote:
        """Return a remote; no request is made.

        Args:
            settings: where it is, and whether it is written.
            store: the local store.
            tell: is called with each warning.
            environ: where credentials are looked up.
            limits: how patient to be.

        Raises:
            SpecError, ToolError: signatures are required, and a key cannot be used.
        """
        trust = trust_of(settings, environ)
        guard = open_guard(settings, environ, limits=limits, timeout_s=_REQUEST_S)
        return cls(settings, store, guard, trust, tell)

    def prepare(self, namespace: str) -> None:
        """Begin to read catalog and indexes, in the background.

        Args:
            namespace: see `layout.namespace_of`.
        """
        if self._loading is None:
            self._namespace = namespace
            self._loading = self._guard.submit(
                lambda: read_known(self._guard, self._store.root, namespace)
            )

    def fetch(self, wanted: Sequence[str], accept: Accept) -> Mapping[str, str]:
        """Bring variants into the local store.

        Args:
            wanted: request keys.
            accept: given the name of a manifest and the manifest, returns True if it is true here
                and now: nothing that the compilation read has changed. It is called in this thread.

        Returns:
            The action keys of variants that the local store has now, by the name of the manifest.
        """
        self._guard.expect(len(wanted))
        known = self._load()
        if known is None or not known.indexes or not wanted:
            return {}
        fetch = Fetch(self._guard, self._store, known, self._trust, hold=True)
        self._readers.append(fetch.reader)
        fetched = fetch.run(known.sets_of(wanted), accept)
        self._brought += fetched.actions
        self.stats.hits += len(fetched.actions)
        self.stats.saved_s += fetched.saved_s
        self._tell_once()
        return fetched.actions

    def offer(self, name: str) -> None:
        """Have a variant be sent, given the name of its manifest here, if writing is on."""
        if self.settings.write and self._guard.failed is None:
            self._guard.expect(1)
            self._waiting.append(name)
            if self._loading is not None and self._loading.done():
                self._write_waiting()

    def offer_costs(self, data: bytes) -> None:
        """Have a snapshot of costs written to the remote with the rest, if writing is on."""
        if self.settings.write:
            self._costs[layout.sha256(data)] = data

    def costs(self, before_s: float, *, is_needed: bool = False) -> bytes | None:
        """Return the newest snapshot of costs that was written before a time; None without one.

        Args:
            before_s: seconds since 1970.
            is_needed: it is worth waiting for before it is known to be right: up to 4 s more.
        """
        self._guard.expect(_WORTH_OF_COSTS)
        watch = self._worth if is_needed else None
        known = self._load()
        table = {} if known is None else known.catalog.costs
        older = [digest for digest, (_, time) in table.items() if time < before_s]
        for digest in sorted(older, key=lambda digest: (-table[digest][1], digest)):
            name = layout.costs_name(self._namespace, digest)
            future = self._guard.submit(
                lambda name=name, digest=digest: read_named(  # type: ignore[misc]
                    self._guard, name, digest, layout.MAX_COSTS_BYTES, watch=watch
                )
            )
            try:
                return self._guard.result(future)
            except CorruptError as error:
                self._guard.wrong(error.message)
            except RemoteError as error:
                self.stats.refuse(error.message)
        self._tell_once()
        return None

    def _worth(self) -> OnBytes:
        """Return what counts bytes as worth waiting for before they are known to be right."""
        return lambda data: self._guard.prove(len(data))

    def finish(self) -> RemoteStats:
        """Send what is left, end all threads, and return what was done."""
        try:
            if self.settings.write and self._guard.failed is None and self._has_news():
                self._finish_writing()
        except RemoteError as error:
            self._guard.trip(error)
        finally:
            self._tell_once()
            self._guard.close()
        return self.stats

    def _has_news(self) -> bool:
        bad = any(reader.bad for reader in self._readers)
        used = any(reader.packs for reader in self._readers)
        return bool(self._waiting or self._writer or self._costs or bad or used)

    def _finish_writing(self) -> None:
        if self._load() is None:
            return
        self._write_waiting()
        writer = self._open_writer()
        if sum(len(reader.packs) for reader in self._readers) > MOST_PACKS:
            for key in self._brought:
                self._write(key, again=True)
        bad = frozenset(pack for reader in self._readers for pack in reader.bad)
        used = frozenset(pack for reader in self._readers for pack in reader.packs) - bad
        writer.finish(used=used, bad=bad, costs=self._costs)

    def _load(self) -> Known | None:
        """Return what the remote has; None if that cannot be known."""
        if self._known is None and self._loading is not None and self._guard.failed is None:
            try:
                self._known = self._guard.result(self._loading)
            except RemoteError as error:
                self._guard.trip(error)
        self._tell_once()
        return self._known if self._guard.failed is None else None

    def _open_writer(self) -> Writer:
        if self._writer is None:
            known = self._known or Known()
            bad = {pack for reader in self._readers for pack in reader.bad}
            sound = {digest: index.without_packs(bad) for digest, index in known.indexes.items()}
            known = replace(known, indexes=sound)  # what was in a bad pack is sent again
            self._writer = Writer(self._guard, self._namespace, known)
        return self._writer

    def _write_waiting(self) -> None:
        """Hand what was offered to the writer."""
        if self._load() is None:
            return
        waiting, self._waiting = self._waiting, []
        self.stats.offered += sum(self._write(key) for key in waiting)

    def _write(self, key: str, *, again: bool = False) -> bool:
        """Hand a variant to the writer; tell whether the remote lacks it."""
        try:
            entries = entries_of_variant(self._store, key)
            return entries is not None and self._open_writer().add(
                group_of(key, entries), again=again
            )
        except CorruptError as error:
            self.stats.refuse(error.message)
            return False

    def _tell_once(self) -> None:
        error = self._guard.failed
        if error is not None and not self._told:
            self._told = True
            hint = f" {error.hint}" if error.hint else ""
            self._tell(
                f"the remote store is left alone for the rest of this build, which goes on without "
                f"it: {error.message}.{hint}"
            )
