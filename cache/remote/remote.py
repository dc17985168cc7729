"""A remote store of a build, and the commands that read one.

    remote = Remote(settings, store, tell=…)
    remote.prepare(namespace)
    remote.fetch(request keys, accept)        what the local store lacks arrives there
    remote.offer(name of a manifest)          after each compilation, where writing is on
    stats = remote.finish()                   what is left is sent

Nothing in `Remote` raises for what a remote does, and waiting is bounded: `session.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from pallasc.cache import format
from pallasc.cache.manifests import Manifest, set_prefix
from pallasc.cache.packs import open_pack
from pallasc.cache.remote.catalog import (
    ROOT,
    Catalog,
    PackRow,
    pack_name,
)
from pallasc.cache.remote.objects import OF_ONE_OBJECT, RemoteError
from pallasc.cache.remote.read import Accept, Fetch, known_catalog, open_tail, read_catalog
from pallasc.cache.remote.session import Session, command_session, trust_of
from pallasc.cache.remote.settings import RemoteSettings, RemoteStats
from pallasc.cache.remote.write import (
    MOST_PACKS,
    OnStep,
    Transfer,
    Writer,
    namespaces_of,
    use_change,
)
from pallasc.cache.store import Store
from pallasc.errors import CorruptError

Judge = Callable[[RemoteStats, str, Manifest], bool]
_PROBE = f"{ROOT}/probe"


class Remote:
    """A remote store for one build; see the module.

    Args:
        settings: where it is, and whether it is written.
        store: the local store.
        tell: is called with a warning, at most once.
        environ: where credentials are looked up.

    Raises:
        SpecError, ToolError: signatures are required, and a key cannot be used.
    """

    def __init__(
        self,
        settings: RemoteSettings,
        store: Store,
        *,
        tell: Callable[[str], None],
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._trust = trust_of(settings, environ)
        self._session = Session(settings, environ, is_build=True)
        self._writes, self._store, self._tell = settings.write, store, tell
        self._namespace = ""
        self._catalog: Catalog | None = None
        self._writer: Writer | None = None
        self._waiting: list[str] = []
        self._brought: list[str] = []
        self._used: set[str] = set()
        self._bad: set[str] = set()
        self._told = False

    @property
    def stats(self) -> RemoteStats:
        """Figures so far."""
        return self._session.stats

    def prepare(self, namespace: str) -> None:
        """Set the namespace; see `catalog.namespace_of`. No request is made."""
        self._namespace = namespace

    def fetch(self, wanted: Sequence[str], accept: Accept) -> dict[str, str]:
        """Bring variants into the local store.

        Args:
            wanted: request keys.
            accept: given the name of a manifest and the manifest, returns True if nothing that the
                compilation read differs here.

        Returns:
            The action keys of variants that the local store has now, by the name of the manifest.
        """
        if self._session.failed is not None or not wanted:
            return {}
        with self._session.waiting():
            catalog = self._load()
            if catalog is None:
                return {}
            found = catalog.find(set_prefix(key) for key in wanted)
            fetch = Fetch(
                self._session, self._store, self._namespace, self._trust, accept, hold=True
            )
            fetch.run(found)
        self._brought += fetch.actions
        self._used |= fetch.used
        self._bad |= fetch.bad
        self.stats.hits += len(fetch.actions)
        self.stats.saved_s += fetch.saved_s
        self._tell_once()
        return fetch.actions

    def offer(self, name: str) -> None:
        """Send a variant, given the name of its manifest here, if writing is on."""
        if not self._writes or self._session.failed is not None:
            return
        self._waiting.append(name)
        if self._catalog is not None:
            self._send_waiting(self._catalog)

    def finish(self) -> RemoteStats:
        """Send what is left, end all requests, and return what was done."""
        try:
            has_news = self._waiting or self._writer or self._used or self._bad
            if self._writes and self._session.failed is None and has_news:
                with self._session.waiting():
                    self._finish_writing()
        except RemoteError as error:
            self._session.fail(error)
        finally:
            self._tell_once()
            self._session.close()
        return self.stats

    def _finish_writing(self) -> None:
        catalog = self._load()
        if catalog is None:
            return
        if len(self._used) > MOST_PACKS:  # so that the next build reads from few packs
            self._writer = self._writer or Writer(self._session, self._namespace, ())
            for name in self._brought:
                self._add(self._writer, name)
        self._send_waiting(catalog)
        writer = self._writer or Writer(self._session, self._namespace, ())
        self.stats.offered = writer.finish(use_change(catalog, self._used, self._bad))

    def _load(self) -> Catalog | None:
        """Return the catalog; None if it cannot be known."""
        if self._catalog is None and self._session.failed is None:
            try:
                self._catalog = known_catalog(self._session, self._namespace)
            except RemoteError as error:
                self._session.failed_with(error)
                self._session.fail(error)
        self._tell_once()
        return None if self._session.failed else self._catalog

    def _send_waiting(self, catalog: Catalog) -> None:
        if self._writer is None:
            rows = tuple(row for row in catalog.rows if row.pack not in self._bad)
            self._writer = Writer(self._session, self._namespace, Catalog(rows).names())
        waiting, self._waiting = self._waiting, []
        for name in waiting:
            self._add(self._writer, name)

    def _add(self, writer: Writer, name: str) -> None:
        try:
            with self._session.own_work():
                writer.add(self._store, name)
        except CorruptError as error:
            self.stats.refuse(error.message)

    def _tell_once(self) -> None:
        error = self._session.failed
        if error is not None and not self._told:
            self._told = True
            hint = f" {error.hint}" if error.hint else ""
            self._tell(f"remote store disabled for this build: {error.message}.{hint}")


def pull(
    settings: RemoteSettings,
    store: Store,
    namespaces: Sequence[str] | None = None,
    *,
    accept: Judge = lambda stats, name, manifest: True,
    environ: Mapping[str, str] = os.environ,
    on_step: OnStep = lambda done, of: None,
) -> Transfer:
    """Bring all variants of the remote into the local store.

    Only signatures, where they are required, and `accept` decide; the next build compares sources.
    A manifest that leads to an artifact of the local store stays.

    Args:
        settings: of the remote.
        store: the local store.
        namespaces: which ones; None for all, if the remote can be listed.
        accept: returns True if an entry may be taken, given its name and manifest.
        environ: where credentials are looked up.
        on_step: is called as variants are done.

    Raises:
        RemoteError: the remote fails, or cannot be listed.
        SpecError, ToolError: signatures are required, and a key cannot be used.
    """
    trust = trust_of(settings, environ)
    moved = present = left = 0
    with command_session(settings, environ) as session:
        for namespace in namespaces_of(session) if namespaces is None else namespaces:
            catalog = known_catalog(session, namespace)
            absent: dict[PackRow, list[str]] = {}
            for row in catalog.rows:
                names = [name.hex() for name in row.each()]
                absent[row] = [name for name in names if _is_absent(store, name)]
                present += len(names) - len(absent[row])
            total, done = sum(map(len, absent.values())), 0
            for row, names in absent.items():
                fetch = Fetch(session, store, namespace, trust, partial(accept, session.stats))
                fetch.run({row: names} if names else {})
                moved += len(fetch.actions)
                left += len(names) - len(fetch.actions)
                done += len(names)
                on_step(done, total)
        session.stats.hits = moved
        return Transfer(moved, present, left, session.stats)


def _is_absent(store: Store, name: str) -> bool:
    manifest = store.find_manifest(name)
    if manifest is None:
        return True
    # An entry without an action is not of a variant, and nothing of a remote replaces it.
    return bool(manifest.action) and store.get_artifact(manifest.action) is None


def probe(
    settings: RemoteSettings, namespace: str, *, environ: Mapping[str, str] = os.environ
) -> tuple[str, str]:
    """Read a catalog, and write a small object where writing is on; wait as a build does.

    Returns:
        Why the remote cannot be read, and why it cannot be written; "" if it can.
    """
    session = Session(settings, environ, is_build=True)
    problems = ["", ""]
    try:
        with session.waiting():
            for number in range(1 + settings.write):
                try:
                    if number:
                        session.result(session.objects.put(_PROBE, b"pallasc\n"))
                    else:
                        known_catalog(session, namespace)
                except RemoteError as error:
                    problems[number] = f"{error.message}. {error.hint or ''}".strip()
                    break
    finally:
        session.close()
    return problems[0], problems[1]


class NamespaceStats(NamedTuple):
    """A namespace in figures.

    Attributes:
        namespace: its name.
        variants: requests that it answers.
        packs: packs that it has.
        bytes: of packs.
        oldest_use_s, newest_use_s: of packs, seconds since 1970; 0 without packs.
    """

    namespace: str
    variants: int
    packs: int
    bytes: int
    oldest_use_s: int
    newest_use_s: int


def survey(
    settings: RemoteSettings,
    namespaces: Sequence[str] | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
) -> list[NamespaceStats]:
    """Return figures of namespaces; None for all, if the remote can be listed.

    Raises:
        RemoteError: the remote fails, or cannot be listed.
    """
    with command_session(settings, environ) as session:
        names = namespaces_of(session) if namespaces is None else namespaces
        return [_figures(name, known_catalog(session, name)) for name in names]


def _figures(namespace: str, catalog: Catalog) -> NamespaceStats:
    times = [row.used for row in catalog.rows]
    return NamespaceStats(
        namespace,
        len({set_prefix(name.hex()) for name in catalog.names()}),
        len(catalog.rows),
        sum(row.size for row in catalog.rows),
        min(times, default=0),
        max(times, default=0),
    )


def verify(
    settings: RemoteSettings,
    namespaces: Sequence[str] | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
) -> list[str]:
    """Read everything that catalogs name; return what is wrong, [] if nothing is.

    Raises:
        RemoteError: the remote fails, or cannot be listed.
    """
    with command_session(settings, environ) as session:
        names = namespaces_of(session) if namespaces is None else namespaces
        return [f"{name}: {fault}" for name in names for fault in _faults(session, name)]


def _faults(session: Session, namespace: str) -> Iterator[str]:
    try:
        catalog, _ = session.result(read_catalog(session, namespace))
    except CorruptError as error:
        yield error.message
        return
    for row in catalog.rows:
        name = pack_name(namespace, row.pack)
        try:
            data = session.result(session.objects.get(name, limit=row.size)).data
            open_tail(row, data[row.offset :])
            for fault in _pack_faults(row, data):
                yield f"pack {row.pack}: {fault}"
        except CorruptError as error:
            yield f"pack {row.pack}: {error.message}"
        except RemoteError as error:
            if error.failure not in OF_ONE_OBJECT:
                raise
            yield f"pack {row.pack}: {error.message}"


def _pack_faults(row: PackRow, data: bytes) -> Iterator[str]:
    """Yield what is wrong with a pack; every file in it is verified."""
    pack = open_pack(data, digest=row.pack)
    yield from (fault for _, fault in pack.faults())
    records, manifests, blobs = {}, {}, set()
    for number in range(len(pack.frames)):
        for area, name, content in pack.entries(number):
            if area == format.BLOBS:
                blobs.add(name)
                if format.sha256(content) != name:
                    yield f"blob {name} is damaged"
            elif area == format.ARTIFACTS:
                records[name] = format.decode_artifact(name, content)
            else:
                manifests[name] = format.decode(format.KINDS[area], name, content)[0]
    for each in row.each():
        body = manifests.get(each.hex(), {})
        record, digest = records.get(str(body.get("action")), ({"blobs": {}}, ""))
        found = {blob["digest"] for blob in record["blobs"].values()}
        if not digest or digest != body.get("record") or not found <= blobs:
            yield f"manifest {each.hex()} does not lead to a whole artifact"
